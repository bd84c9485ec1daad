"""One option, declared once, reaches every command and every verb that it means something for."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import reverie
from reverie import api
from reverie.api.kinds import METRICS
from reverie.api.sources import PAPERS, split_source
from reverie.base.errors import UserError
from reverie.base.name_tables import NameTable
from reverie.base.spec import complete
from reverie.cli.layout import EXAMPLES, PANEL_OPTIONS, TRAINING_PANELS
from reverie.cli.main import app
from reverie.cli.options import COMMON, options_of_training
from reverie.evaluation.scores import HEADLINE_METRICS
from reverie.families import FAMILIES
from reverie.families.language.token_sampling import PAIR_OPTIONS
from reverie.gallery.samplers import draw_cell
from reverie.runs.config import TrainingConfig
from reverie.runs.folder import read_config
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

BOOK = Path(__file__).parents[2]  # sources without a paper are pages of the documentation

# The commands that sample, and the options of sampling that mean nothing for each.
SAMPLING: dict[str, set[str]] = {
    "sample": set(), "evaluate": set(), "edit": set(), "inpaint": set(), "restore": set(),
    "illusion": {"label"},  # there is one for each view
    "invert": {"seed"}, "interpolate": {"seed"},  # nothing is random
    # what a page or a file begins with; the rest is chosen where it is used
    "export": {"label", "guidance_interval", "guidance_rescale", "classifier_guidance", "precision", "prompt",
               "negative_prompt", "condition", "condition_image"},
    "gallery samplers": {"sampler", "steps"}, "gallery guidance": {"label", "guidance"},  # they show all of them
    "gallery spiral": {"label", "guidance", "guidance_interval", "guidance_rescale", "classifier_guidance"},  # has no labels
}  # fmt: skip


def commands(group: Any = None, before: str = "") -> dict[str, set[str]]:
    """Return the options of every command."""
    group = group or typer.main.get_command(app)
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{before}{name} ")
        else:
            found[before + name] = {parameter.name for parameter in command.params}
    return found


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train("patterns", tmp_path_factory.mktemp("runs") / "p", points=300, steps=60, network="mlp:hidden=16")


def test_every_command_that_samples_takes_every_option_of_sampling() -> None:
    found, options = commands(), set(Options.__annotations__)
    assert {name for name, taken in found.items() if "grid" in taken} == set(SAMPLING)
    for name, without in SAMPLING.items():
        of_text = set() if name in ("sample", "evaluate") else set(PAIR_OPTIONS) - {"prompt"}
        assert options & found[name] == options - without - of_text, name


@pytest.mark.parametrize("verb", ["sample", "sample_to", "evaluate", "edit", "illusion", "invert", "interpolate", "inpaint",
                                  "restore", "gallery"])  # fmt: skip
def test_every_verb_that_samples_takes_the_same(verb: str) -> None:
    assert inspect.signature(getattr(api, verb)).parameters["options"].annotation == "Unpack[Options]"


def test_every_setting_of_a_training_is_an_option() -> None:
    of_diffusion = {"network", "schedule", "target", "weight", "variance", "times", "augment", "label_dropout"}
    assert (
        {*TrainingConfig.model_fields, *of_diffusion}
        <= set(options_of_training())
        <= commands()["train"] | {"from", "for", "latent"}
    )
    assert all(name == family.name for name, family in FAMILIES.items())


def test_what_the_doctor_advises_can_be_set(command, tmp_path: Path) -> None:
    wanted = {"ema_share": 0.2, "warmup": 0.1, "weight_decay": 0.01, "gradient_clip": 2.0, "label_dropout": 0.3}
    words = [word for key, value in wanted.items() for word in (f"--{key.replace('_', '-')}", value)]
    code, _, err = command("train", "patterns", "--points", 100, "--steps", 2, "--out", tmp_path / "r", *words)
    assert code == 0, err
    config = read_config(tmp_path / "r")
    kept = {**dict(config.training), **dict(config.family)}
    assert {key: kept[key] for key in wanted} == wanted and config.requested.items() >= wanted.items()
    code, _, err = command("train", "patterns", "--out", tmp_path / "s", "--ema-share", 2)
    assert code == 2 and "ema_share" in err and not (tmp_path / "s").exists()


def test_the_galleries_take_options_of_sampling(labelled: Run, command, tmp_path: Path) -> None:
    plain, guided = (draw_cell(labelled, "ddim", 0, 20, label="moons", guidance=scale) for scale in (1.0, 4.0))
    assert np.abs(plain.x - guided.x).max() > 1e-3 and plain.evaluations == guided.evaluations
    limits = ("--guidance-interval", "0.1,0.5", "--precision", "bf16", "--steps", 2, "--scales", "1,3")
    assert command("gallery", "guidance", labelled.path, *limits, "--out", tmp_path / "g.png")[0] == 0
    assert (tmp_path / "g.png").exists()
    code, _, err = command("gallery", "guidance", labelled.path, *limits[:4], "--guidance-rescale", 2)
    assert code == 2 and "rescal" in err


@pytest.mark.parametrize(
    ("name", "given", "needle"),
    [
        ("transprot", {}, "transprot.*transport"),
        ("samplers", {}, "samplers.*run"),
        ("samplers", {"run": "{run}", "sampler": "ddim"}, "samplers.*sampler"),
        ("guidance", {"run": "{run}", "label": "moons"}, "label.*guidance"),
        ("embeddings", {"seed": 1}, "embeddings.*seed"),
        ("kernels", {"run": "{run}"}, "kernels.*run"),
    ],
)
def test_a_gallery_refuses_what_it_cannot_take(labelled: Run, tmp_path: Path, name: str, given: Any, needle: str) -> None:
    given = {**given, "run": labelled.path} if "run" in given else given
    with pytest.raises(UserError, match=needle):
        api.gallery(name, tmp_path / "x.png", **given)
    assert not list(tmp_path.iterdir())


def test_names_are_listed_with_what_they_mean(command) -> None:
    for kind, parts in api.KINDS.items():
        entries = {entry.name: entry for entry in api.entries(kind)}
        assert list(entries) == api.names_of(kind)
        for entry in entries.values():
            assert len(entry.about) > 4 and "\n" not in entry.about, f"{kind} {entry.name} has no docstring"
            number = re.search(r"arXiv:(\S+?)(,|$)", entry.source or "")
            assert number is None or number[1] in PAPERS, f"{kind} {entry.name}: {entry.source}"
            assert number or re.search(r"\b(1[89]|20)\d\d\b", entry.source or "") or (BOOK / (entry.source or "")).is_file()
        if kind in ("samplers", "grids", "schedules", "views"):  # what is listed is what a spec is completed with
            table = parts[0].load() if isinstance(parts[0], NameTable) else {}
            for name, entry in entries.items():
                assert complete(table, name, kind) == {"name": name, **entry.options}
    code, out, _ = command("list", "samplers")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and ["eta=0.0"] in lines and any(line[:2] == ["ddim", "Step"] for line in lines)
    assert "start=1.0, rho=7.0; chosen by default: end" in command("list", "grids")[1]
    listed = command("list", "families")[1]
    assert "chosen by default: purpose, target, " in listed and "components=auto, " in listed and "Undefined" not in listed
    listed = json.loads(command("list", "samplers", "--json")[1])["samplers"]
    assert (
        "arXiv:2010.02502" in listed["ddim"]["source"]
        and listed["ddim"]["options"] == {"eta": 0.0}
        and list(listed) == api.names_of("samplers")
    )
    assert "overfitting  " in command("list", "checks")[1] and "checks" in command("list")[1]
    assert "channels" not in json.dumps(json.loads(command("list", "networks", "--json")[1]))


def test_the_metrics_are_those_of_reports() -> None:
    assert {entry.name for entry in METRICS} == set(HEADLINE_METRICS)


@pytest.mark.parametrize(
    ("text", "about", "source"),
    [
        ("Step (arXiv:2010.02502).", "Step.", "Song et al. 2020, arXiv:2010.02502"),
        ("A net (DiT, arXiv:2212.09748, eq. 3): x.", "A net: x.", "DiT, Peebles and Xie 2022, arXiv:2212.09748, eq. 3"),
        ("Spaced in (a / b)^(1 / c) (arXiv:2206.00364).", "Spaced in (a / b)^(1 / c).", "Karras et al. 2022, arXiv:2206.00364"),
        ("PCA (Tipping and Bishop 1999): linear.", "PCA: linear.", "Tipping and Bishop 1999"),
        ("Days from 1900 to 2099 (all).", "Days from 1900 to 2099 (all).", None),
        ("By arXiv:9999.99999 alone.", "By arXiv:9999.99999 alone.", "arXiv:9999.99999"),
    ],
)
def test_the_source_of_a_docstring(text: str, about: str, source: str | None) -> None:
    assert split_source(text) == (about, source)


def _all_commands(group: Any, before: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        found += _all_commands(command, f"{name} ") if hasattr(command, "commands") else [(before + name, command)]
    return found


def test_the_help_has_panels_defaults_and_examples() -> None:
    commands = dict(_all_commands(typer.main.get_command(app)))
    for name, command in commands.items():
        options = [p for p in command.params if p.param_type_name == "option"]
        assert all(p.help for p in options), name
        for p in options:
            shown = isinstance(p.show_default, str) or p.default is not None or p.required or p.is_flag
            assert shown, f"{name} {p.opts} shows no default"
        if len(options) >= PANEL_OPTIONS:
            loose = {p.name for p in options if p.rich_help_panel is None}
            assert loose <= {"seed", *COMMON} and len({p.rich_help_panel for p in options}) > 3, (name, loose)
    assert {p.rich_help_panel for p in commands["train"].params} > set(TRAINING_PANELS)
    assert set(EXAMPLES) == {name for name in commands if " " not in name}
    for name, examples in EXAMPLES.items():
        for words in (shlex.split(example) for example in examples):
            assert words[0] == name
            commands[name].make_context(name, words[1:])  # which parses them
