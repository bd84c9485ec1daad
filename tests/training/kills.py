"""Kills trainings at every change of their folder, resumes each, and compares its end with that of one that was left alone.

python -m tests.training.kills CASE FOLDER [END]   prints what was done as JSON; only the changes whose path ends with END

The trainings are forks of one program that has trained the case itself, and so has loaded all that they need.  A change is a
rename, a removal, a folder that is made, or a write to metrics.jsonl, of which half is written.  Checks and checkpoints come
with every report, whatever time they take.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from reverie import api
from reverie.base.errors import UserError
from reverie.families import FAMILIES
from reverie.runs import folder
from reverie.runs.weights import is_finished
from reverie.training import doctor, loop, trainer

STEPS, FEWER = 3, 2  # those of most families
TINY: dict[str, str] = {
    "diffusion": "", "gaussian": "", "mixture": ":components=2", "pca": ":latent=1", "fvsbn": "", "ar1": "", "ar": "",
    "bigram": "", **dict.fromkeys(("autoencoder", "denoising-autoencoder", "vae", "hvae", "mhvae", "flow", "sinkhorn", "nade"),
    ":hidden=8"), **dict.fromkeys(("rnn", "lstm", "mlp-lm", "seq2seq"), ":dim=8"),
    **dict.fromkeys(("transformer", "transformer-seq2seq"), ":dim=8,layers=1,heads=2"),
}  # fmt: skip
READING: dict[str, dict[str, Any]] = {
    "points": {"data": "moons", "points": 60}, "series": {"data": "oscillation", "points": 200, "window": 8},
    "text": {"data": "text.txt", "window": 16}, "pairs": {"data": "numbers-en", "points": 60}, "images": {"data": "images.npy"},
}  # fmt: skip
NETWORKS = {"points": "mlp:hidden=8,layers=1", "images": "unet:widths=8,embedding_dim=8"}
BASIC: dict[str, Any] = {"steps": FEWER, "batch": 8, "seed": 3}
LATENT = {"latent_space": True, "network": NETWORKS["images"], "steps": 5}

Begin = Callable[[Path, Path], api.Training]  # (folder of the data, folder of the run), as the user would


def options_of(name: str, kind: str) -> dict[str, Any]:
    """Return how a family is trained on data of a kind."""
    network = {"network": NETWORKS[kind]} if kind in NETWORKS and "network" in FAMILIES[name].option_names else {}
    return {**READING[kind], **BASIC, **network, "family": name + TINY[name]}


def started(**options: Any) -> Begin:
    """Return how a training is begun, over whatever is in its folder."""

    def begin(place: Path, run: Path) -> api.Training:
        data = place / options["data"] if "." in options["data"] else options["data"]
        others = {key: place / value if key == "start_from" else value for key, value in options.items() if key != "data"}
        return api.begin(data, run, overwrite=True, **others)

    return begin


def distilled(place: Path, run: Path) -> api.Training:
    """Begin to distil the teacher."""
    return api.prepare_distillation(place / "teacher", run, steps=STEPS, overwrite=True, seed=3)


def cases() -> dict[str, Begin]:
    """Return every family on its first kind of data, and every further stage and way of training."""
    found = {name: started(**options_of(name, family.kinds[0])) for name, family in FAMILIES.items()}
    images, points = ({**options_of("diffusion", kind), "steps": STEPS} for kind in ("images", "points"))
    return found | {
        "diffusion": started(**points), "images": started(**images), "latent": started(**images | LATENT), "distil": distilled,
        "best": started(**points, keep="best"), "lora": started(**points, start_from="teacher", lora=1),
        "kept-data": started(**points, keep_data=True),
        "alone": started(**points, exact=True), "processes": started(**points, processes=2, exact=True),
    }  # fmt: skip


def write_data(place: Path, case: str) -> None:
    """Write the data of the cases, and the run that others begin from."""
    random = np.random.default_rng(0)
    np.save(place / "images.npy", (random.random((48, 16, 16)) * 255).astype(np.uint8))
    (place / "text.txt").write_text("so say we all, and so it goes. " * 20)
    if case in ("distil", "lora"):
        list(started(**options_of("diffusion", "points"))(place, place / "teacher"))


class Watch:
    """Counts the changes of a folder, and kills the process before the one that is named."""

    def __init__(self, run: Path, kill: int | None = None) -> None:
        self.run, self.kill, self.seen = str(run), kill, list[str]()
        self.process = os.getpid()
        sys.addaudithook(self.heard)
        plain = Path.open

        def opened(path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
            if path.name == folder.METRICS and mode == "a":
                return io.TextIOWrapper(io.BufferedWriter(Rows(path, self)), encoding="utf-8")
            return plain(path, mode, *others, **named)

        Path.open = opened  # type: ignore[method-assign]  # of this process, which ends soon

    def heard(self, event: str, given: tuple[Any, ...]) -> None:
        """Hear of everything that the interpreter does."""
        if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") and os.getpid() == self.process:
            path = os.fspath(given[1] if event == "os.rename" else given[0])
            if isinstance(path, str) and path.startswith(self.run):
                self.changes(f"{event} {path}")

    def changes(self, what: str, before: Callable[[], Any] = lambda: None) -> None:
        """Note a change that is about to be made, or end here."""
        if len(self.seen) == self.kill:
            before()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(what)


class Rows(io.FileIO):
    """The file of metrics, of which a killed process has written half a row."""

    def __init__(self, path: Path, watched: Watch) -> None:
        super().__init__(path, "a")
        self.watched, self.path = watched, path

    def write(self, rows: Any) -> int:
        whole = bytes(rows)
        self.watched.changes(f"write {self.path}", lambda: super(Rows, self).write(whole[: len(whole) // 2]))
        return super().write(whole)


def forked(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run work in a fork; return how that ended and what it returned."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(read)
        code = 1
        try:
            found = json.dumps(work())
            with os.fdopen(write, "w") as file:
                file.write(found)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as file:
        message = file.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(message) if message else None


def all_of_it(begin: Begin, place: Path, run: Path, kill: int | None = None) -> list[str]:
    """Train from the beginning and return the changes of the folder; die before the one that is named."""
    watched = Watch(run, kill)
    list(begin(place, run))
    return watched.seen


def resumed(begin: Begin, place: Path, run: Path) -> str:
    """Resume what was killed, or start again if that is refused; return which."""
    try:
        list(api.begin(resume=run))
    except UserError as error:
        if is_finished(run):
            return "was finished"
        if not any(message in str(error) for message in ("there is no run", "is not a run", "train it again")):
            raise
        list(begin(place, run))
        return "begun again"
    return "resumed"


def end_of(run: Path) -> dict[str, Any]:
    """Return what a run came to: every tensor of its weights, and its reports but for times."""
    weights = {
        f"{file.relative_to(run)} {name}": tensor
        for file in sorted(run.rglob(folder.WEIGHTS_FILE))
        for name, tensor in load_file(file).items()
    }
    rows = [{key: row.get(key) for key in ("i", "loss", "fraction")} for row in folder.read_metrics(run)]
    return {"weights": weights, "rows": rows}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two runs have equal weights, bit for bit."""
    first, second = a["weights"], b["weights"]
    alike = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return alike and a["rows"] == b["rows"]


def kills(case: str, place: Path, ending: str = "") -> dict[str, Any]:
    """Kill the training of a case before every change whose path has this ending, and return how they went."""
    begin, began, wrong, how = cases()[case], time.monotonic(), list[str](), dict[str, int]()
    place.mkdir(parents=True, exist_ok=True)
    write_data(place, case)
    list(cases()["alone" if case == "processes" else case](place, place / "whole"))  # which loads what forks then have
    gc.freeze()
    status, changes = forked(lambda: all_of_it(begin, place, place / "counted"))
    assert status == 0 and is_finished(place / "counted") and same(end_of(place / "counted"), end_of(place / "whole"))
    whole, chosen = end_of(place / "whole"), [k for k, change in enumerate(changes) if change.endswith(ending)]
    for k in chosen:
        run = place / f"killed-{k}"
        status, _ = forked(lambda k=k, run=run: all_of_it(begin, place, run, k))
        if not os.WIFSIGNALED(status):
            wrong.append(f"{k} {changes[k]}: the training was not killed")
            continue
        status, found = forked(lambda run=run: resumed(begin, place, run))
        how[str(found)] = how.get(str(found), 0) + 1
        if status or not is_finished(run) or not same(end_of(run), whole):
            wrong.append(f"{k} {changes[k]}: {found or 'could not be resumed'}")
    return {"case": case, "kills": len(chosen), "how": how, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """Do as the first lines say."""
    torch.set_num_threads(1)
    trainer.WRITE_SHARE, loop.FREE, doctor.PREVIEW_SHARE, doctor.FREE = 1e9, 1e9, 0.0, -1.0  # a preview at the end alone
    print(json.dumps(kills(sys.argv[1], Path(sys.argv[2]).resolve(), *sys.argv[3:])))


if __name__ == "__main__":
    main()
