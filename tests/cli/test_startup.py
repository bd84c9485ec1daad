"""What the command line loads, and what it does not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reverie
from reverie import api
from reverie.base import name_tables
from reverie.base.name_tables import NameTable

CLI = Path(reverie.__file__).parent / "cli"
HEAVY = ("sklearn", "scipy", "matplotlib", "imageio", "ot", "pandas", "sympy", "torch._dynamo", "reverie.autodiff",
         "reverie.training", "reverie.evaluation", "reverie.steering", "reverie.gallery")  # fmt: skip
RUN = """
import sys
from reverie.cli.main import main
sys.argv = ["reverie", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
{code}
print("\\nloaded:", *sys.modules, file=sys.stderr)
"""


TRANSFORMER = """
import torch
from reverie.nets import NETWORKS
with torch.device("meta"):  # as where the size of a network is known before it is built
    NETWORKS["transformer"](1, 8, 8)
"""


def run_and_list(*words: str, code: str = "", **more: str) -> tuple[str, set[str]]:
    """Run the command line in a process of its own; return what it printed and the modules that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(code=code), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **more},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.partition("\nloaded: ")[2].split())


def test_sampling_loads_only_what_it_needs(tmp_path: Path) -> None:
    run, out = Path(__file__).parents[1] / "runs" / "format1" / "images", tmp_path / "x.png"
    _, loaded = run_and_list("sample", str(run), "-n", "1", "--steps", "1", "--out", str(out), code=TRANSFORMER)
    assert out.exists() and "torch" in loaded and not loaded & set(HEAVY)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("reverie sample run --sampler dd", {"ddim", "ddpm"}),
        ("reverie train spi", {"spiral"}),
        ("reverie train --network unet-t", {"unet-tiny", "unet-teaching"}),
        ("reverie list sch", {"schedules"}),
        ("reverie gal", {"gallery"}),
    ],
)
def test_completion_loads_no_torch(line: str, wanted: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_REVERIE_COMPLETE": "complete_bash"}
    out, loaded = run_and_list(**words)
    assert set(out.split()) == wanted and not loaded & {"torch", "numpy"}


def test_the_names_that_are_completed_are_those_of_the_tables() -> None:
    for kind, parts in api.KINDS.items():
        for part in parts:
            if isinstance(part, NameTable):
                assert part.parse_names() == list(part.load()) != [], kind


def test_names_without_a_source_come_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(module: str) -> ast.Module:
        raise FileNotFoundError(module)

    monkeypatch.setattr(name_tables, "_parsed", gone)
    assert "ddim" in NameTable("diffusion.samplers", "SAMPLERS").names()


def test_a_table_that_cannot_be_read_from_its_source_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"ROOT of base\.name_tables"):
        NameTable("base.name_tables", "ROOT").parse_names()
    with pytest.raises(ValueError, match="has no NOTHING"):
        NameTable("base.name_tables", "NOTHING").parse_names()


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_the_command_line_goes_through_api_alone(path: Path) -> None:
    packages = ("api", "base", "cli", *(("studio",) if path.stem == "studio" else ()))  # which goes through api itself
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for name in (package + alias.name for alias in node.names):
            allowed = not name.startswith("reverie.") or name.split(".")[1] in packages
            assert allowed, f"{path.name}:{node.lineno} imports {name}"


COLLECTED = """
import gc
from reverie import api
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase))
api.load
print(len(seen), gc.isenabled())
"""


def test_loading_is_not_held_up_by_the_garbage_collector() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=300, check=True)
    collections, enabled = done.stdout.split()
    assert int(collections) < 10 and enabled == "True"  # a few hundred otherwise
