"""Cases by number: a damaged file of data, a damaged run or fuzzed options, and the command line that meets them."""

from __future__ import annotations

import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from reverie.cli.main import app
from reverie.compression.archive import compress
from reverie.compression.container import BYTES, MAGIC, NUMBERS, Header, pack
from reverie.compression.container import read as read_packed
from reverie.runs.run import load
from tests.fuzz import tables
from tests.fuzz.damage import NAMES, WORDS, damaged, reworded, scratched
from tests.fuzz.files import DATA, PICTURES, SETTINGS, place, saved

RUNS = Path(__file__).parents[1] / "runs" / "format1"
LONG = {
    "evaluate",
    "compare",
    "gallery",
    "train-classifier",
    "restore",
    "inpaint",
    "edit",
    "invert",
    "interpolate",
    "illusion",
    "compress",
}
READING: dict[str, tuple[str, ...]] = {
    "--size": ("4", "8x6", "1", "0", "1025", "9x", "\x1b[1m"),
    "--fit": ("pad", "stretch", "crop", "none"),
    "--channels": ("1", "3", "4", "2"),
    "--labels": ("none", "folder", "name", "csv", "jsonl", "label", "top-folder", "\x1b"),
    "--strict": (),
    "--json": (),
    "--seed": ("1", "-1"),
}
HOW_MUCH = ("-1", "0", "1", "2", "nan", "inf", "1e999", "9" * 30, "", "x", "\u0663", "1_0", "0x1", "2.5", "-0", "1e-300")
PLACES = ("run", "data.csv", "pictures", "spiral", "gone", ".", "out")
WHAT = (*(word for word in WORDS if word != "/" and not {"\x00", "\ud800"} & set(word)), *PLACES)  # "/" is read for hours
SPECS = (
    "mlp", "mlp:hidden=4", "mlp:hidden=-1", "mlp:hidden=1e9", "unet", "linear:steps=2", "linear:steps=0", "ddim:eta=nan",
    "karras:rho=0", "a:b=c", "none", "auto", "gaussian", "mixture:components=0", "pca:components=99", "gaussian,pca",
    "flip,shift:share=2", ":", "a=b", "v", "10:1.5,8:-1", "cosine", "converged", "muon", "bf16", "step", "all", "0", "1:nan",
    "spiral", "0.1,0.2", "1,0", "left-half", "0:1,0:1", "upscale:factor=3",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command line or a function to run; owned: the paths that it may change."""

    words: tuple[str, ...] = ()
    call: Callable[[], object] | None = None
    owned: tuple[str, ...] = ()


@cache
def _whole(name: str) -> bytes | dict[str, bytes]:
    return DATA[name]()


@cache
def _run(name: str) -> dict[str, bytes]:
    root = RUNS / name
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _options(table: dict[str, tuple[str, ...]], chance: random.Random, most: int) -> list[str]:
    words: list[str] = []
    for option in chance.sample(list(table), chance.randrange(most + 1)):
        words += [option, chance.choice(table[option])] if table[option] else [option]
    return words


def read(root: Path, chance: random.Random) -> Case:
    """A reader of data meets a damaged file."""
    if chance.random() < 0.1:
        return _picture(root, chance)
    name = chance.choice(list(DATA))
    content = _whole(name)
    if isinstance(content, dict):
        content = dict(content)
        file = chance.choice(list(content))
        if chance.random() < 0.3:
            content[chance.choice(NAMES).strip("/.").replace("../", "") or "x.png"] = content[file]
        content[file] = damaged(file, content[file], chance)
    else:
        content = damaged(name, content, chance)
    place(root, name, content)
    picture = ["--out", "out/p.png"] if chance.random() < 0.05 else []
    return Case(("inspect", name, *_options(READING, chance, 2), *picture))


def _picture(root: Path, chance: random.Random) -> Case:
    """One picture, or a mask, that is steered by."""
    from reverie.data.single_image import read_mask, read_picture

    name, content = chance.choice([*PICTURES.items(), ("a.npy", saved(only=np.linspace(0, 1, 64).reshape(8, 8)))])
    path = place(root, name, damaged(name, content, chance))
    shape = chance.choice(((1, 8, 8), (3, 8, 8), (3, 5, 9)))
    return Case(
        call=(lambda: read_picture(path, shape, "image")) if chance.random() < 0.5 else (lambda: read_mask(path, shape))
    )


def run_file(root: Path, chance: random.Random) -> Case:
    """A verb meets a run of which one file is damaged."""
    kind = "points" if chance.random() < 0.8 else "images"
    content = dict(_run(kind))
    file = chance.choice([name for name in content for _ in range(3 if name in ("config.toml", "metrics.jsonl") else 2)])
    if file == "metrics.jsonl":
        lines = content[file].splitlines(keepends=True)
        at = chance.randrange(len(lines))
        lines[at] = reworded(lines[at], chance)
        content[file] = b"".join(lines)
    else:
        content[file] = damaged(file, content[file], chance)
    place(root, "run", content)
    match chance.randrange(24):
        case number if number < 9:
            return Case(
                ("sample", "run", "-n", "2", "--steps", "2", "--out", chance.choice(("out/a.npy", "out/a.png", "out/b/")))
            )
        case number if number < 15:
            return Case(("inspect", "run"))
        case number if number < 20:
            return Case(("runs", "."))
        case 20:
            return Case(("train", "--config", "run", "--out", "out/again", "--steps", "1"))
        case 21 if kind == "points":
            return Case(("train", "patterns", "--points", "40", "--from", "run", "--steps", "1", "--out", "out/from"))
        case _:
            return Case(
                ("train", "--resume", "run", *(("--extend", "--steps", "1") if chance.random() < 0.5 else ())), owned=("run",)
            )


@cache
def _packed() -> bytes:
    """Return a few images, with names, compressed by a run."""
    model = load(RUNS / "images", "cpu")
    x = torch.randint(256, (8, *model.diffusion.shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        made = compress(model, x, Path(folder, "x.rvi"), names=[f"{'ab'[k % 2]}/{k}.png" for k in range(8)], steps=3)
        return made.path.read_bytes()


def _reheaded(root: Path, chance: random.Random) -> bytes:
    """Return the compressed images with another header and other bits."""
    place(root, "x.rvi", _packed())
    header, _, bits = read_packed(root / "x.rvi")
    change: dict[str, int] = {"names_bytes": 0}
    for field in chance.sample((*NUMBERS, *BYTES), chance.choice((1, 2))):
        many = (0, 1, 2, 7, 50, 255, 1000, 10**6, 10**7, 64 * len(bits))
        change[field] = chance.choice(many) if field in NUMBERS else chance.randrange(256)
    bits = chance.choice((bits, bits[: chance.randrange(len(bits))], bytes(len(bits)), chance.randbytes(12_500), bits * 20))
    return pack(Header.model_construct(**{**header.model_dump(), **change}), b"", bits)


def packed(root: Path, chance: random.Random) -> Case:
    """Decompressing meets a damaged file, most of them with a checksum that is right."""
    place(root, "run", _run("images"))
    content = _reheaded(root, chance) if chance.random() < 0.4 else scratched(_packed(), chance)
    if chance.random() < 0.7:
        content = MAGIC + struct.pack("<I", zlib.crc32(content[8:])) + content[8:]
    place(root, "x.rvi", content)
    return Case(("decompress", "run", "x.rvi", "--out", chance.choice(("out/", "out/a.npy", "out/a.png", "run", "x.rvi"))))


@cache
def _commands() -> dict[tuple[str, ...], list[Any]]:
    """Return every command of the command line with its parameters."""
    found: dict[tuple[str, ...], list[Any]] = {}

    def walk(command: Any, name: tuple[str, ...]) -> None:
        if inner := getattr(command, "commands", None):
            for key, value in inner.items():
                walk(value, (*name, key))
        else:
            found[name] = command.params

    walk(typer.main.get_command(app) if isinstance(app, typer.Typer) else app, ())
    return found


def options(root: Path, chance: random.Random) -> Case:
    """A command meets options with values that nobody means."""
    if chance.random() < 0.1:
        (root / "settings.toml").write_bytes(reworded(SETTINGS, chance))
        return Case(("train", "--config", "settings.toml", "--out", "out/r", "--points", "16", "--steps", "1"))
    place(root, "run", _run("points"))
    place(root, "data.csv", _whole("a.csv"))
    place(root, "pictures", _whole("classes"))
    commands = _commands()
    name = chance.choice(list(commands))
    if name[0] in LONG and chance.random() < 0.5:
        name = chance.choice([("train",), ("sample",), ("inspect",)])
    arguments = [p for p in commands[name] if p.param_type_name == "argument"]
    taken = [p for p in commands[name] if p.param_type_name == "option" and p.name != "version"]
    words = list(name)
    likely = {"run": "run", "runs": "run", "data": "data.csv", "what": "pictures", "image": "pictures/a/0.png", "folder": ".",
              "images": "pictures"}  # fmt: skip
    for argument in arguments:
        words.append(likely.get(argument.name, "x") if chance.random() < 0.8 else chance.choice(WHAT))
    if name == ("train",):
        words += ["--steps", "1", "--batch", "2", "--network", "mlp:hidden=4", "--out", "out/r"]
    if name == ("sample",):
        words += ["-n", "1", "--steps", "2", "--out", "out/s.npy"]
    elif name == ("distil",):
        words += ["--steps", "1", "--out", "out/fast"]
    wrong = chance.sample(taken, min(len(taken), chance.choice((1, 1, 2, 3))))
    for option in wrong:
        flag = chance.choice(option.opts)
        many = flag in ("-n", "--steps", "--minutes", "--epochs", "--points", "--batch", "--accumulate")
        pool = HOW_MUCH if many else chance.choice((WHAT, SPECS, HOW_MUCH))
        words += [flag] if option.is_flag else [flag, chance.choice(pool)]
    if name[0] in LONG:
        words += [chance.choice(("--nothing", "--device=none", "--seed=-1", "-n=x", "--seed"))]
    for k, word in enumerate(words[1:], 1):
        if words[k - 1] == "--out" and not word.startswith("out"):
            words[k] = "out/" + word.strip("/.")
    return Case(tuple(words), owned=("run",) if "--resume" in words or name == ("train-classifier",) else ())


def table(root: Path, chance: random.Random) -> Case:
    """A table is read, and what is read is compared with what it holds."""
    return Case(call=lambda: tables.read(root, chance), owned=("t.",))


def requests(root: Path, chance: random.Random) -> Case:
    """The studio receives requests with damaged paths, headers and bodies."""
    from tests.fuzz.studio import attack, place_folder

    opened = place_folder(root, chance, _run)
    return Case(call=lambda: attack(root, opened, chance), owned=("opened",))


# Of twenty cases, ten meet data, two a table, two a run, one a file of compressed images, one the studio and four options.
KINDS = (
    *[read] * 3, table, options, *[read] * 3, run_file, requests, options, table, *[read] * 3, options, read, run_file, packed,
    options,
)  # fmt: skip


def make(number: int, root: Path) -> Case:
    """Return a case by its number, with its files in a folder: always the same."""
    return KINDS[number % len(KINDS)](root, random.Random(number))
