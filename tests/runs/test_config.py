"""Specs, configuration, run folders: everything that is written down and read back."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

import reverie
from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.spec import build, complete, parse
from reverie.base.visible import visible
from reverie.data.codec import Standard, standard_spec
from reverie.diffusion.samplers import SAMPLERS
from reverie.diffusion.samplers.onestep import DDIM
from reverie.diffusion.schedule import Linear
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs.config import Config, DataConfig, TrainingConfig, build_model
from reverie.runs.folder import read_config, read_metrics, write_config
from reverie.runs.run import Run

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)

TRAINING: dict[str, st.SearchStrategy[Any]] = {
    "batch": st.integers(8, 10**6),
    "learning_rate": st.floats(1e-9, 10),
    "warmup": st.floats(0, 0.5),
    "ema_share": st.floats(1e-6, 1),
    "gradient_clip": st.floats(1e-6, 1e6),
    "accumulate": st.integers(1, 10_000),
    "micro_batches": st.integers(1, 8),
    "exact": st.booleans(),
    "decay": st.sampled_from(["cosine", "step"]),
    "until": st.sampled_from(["end", "converged"]),
    "clock": st.sampled_from(["wall", "processor"]),
    "keep": st.sampled_from(["last", "best"]),
    "optimizer": st.sampled_from(["adamw", "muon"]),
    "weight_decay": st.floats(0, 10),
    "precision": st.sampled_from(["fp32", "bf16"]),
    "lora": st.integers(1, 1024),
    "seed": st.integers(0, 2**31 - 1),
}
FAMILY: dict[str, st.SearchStrategy[Any]] = {
    "target": st.sampled_from(["v", "flow"]),
    "sigma_data": st.floats(1e-3, 1e3),
    "loss": st.sampled_from([{"name": "mse"}, {"name": "huber", "delta": 0.5}]),
    "weight": st.sampled_from(["uniform", "vlb"]),
    "times": st.sampled_from(["uniform", "logit-normal"]),
    "purpose": st.sampled_from(["samples", "likelihood"]),
    "variance": st.sampled_from(["fixed", "learned"]),
    "label_dropout": st.floats(0, 1),
    "autoguidance": st.floats(1, 10),
    "examples": st.integers(0, 1024),
    "clusters": st.integers(0, 1024),
    "sampling": st.fixed_dictionaries(
        {"sampler": st.sampled_from(["ddim:eta=0.5", "heun"]), "steps": st.integers(1, 100), "grid": st.just("karras:rho=3")},
        optional={
            "precision": st.sampled_from(["fp32", "bf16"]),
            "source": st.sampled_from(["default", "version", "selected"]),
            "samples": st.integers(0, 100),
            "candidates": st.lists(
                st.fixed_dictionaries(
                    {"sampler": st.just("ddpm"), "steps": st.integers(1, 100), "grid": st.just("uniform")}
                    | {"distance": st.floats(-10, 10), "error": st.floats(0, 10)},
                    optional={"octaves": st.lists(st.floats(0, 10), max_size=8)},
                ),
                max_size=3,
            ),
        },
    ),
    "distilled": st.fixed_dictionaries({}, optional={"guidance": st.floats(-1000, 1000), "samples": st.integers(0, 10**7)}),
    "augment": st.lists(
        st.sampled_from(
            [{"name": "flip"}, {"name": "shift", "share": 0.1}, {"name": "shift"}, {"name": "flip", "conditioned": False}]
        ),
        max_size=5,
    ),
}
LENGTH = st.one_of(
    st.fixed_dictionaries({"steps": st.integers(1, 10**9)}), st.fixed_dictionaries({"minutes": st.floats(1e-3, 10**6)})
)
DATA = st.integers(0, 4).flatmap(
    lambda k: st.fixed_dictionaries(
        {
            "name": NAMES,
            "source": NAMES,
            "count": st.integers(1, 10**9),
            "seed": st.integers(0, 2**31 - 1),
            "shape": st.lists(st.integers(1, 16384), min_size=1, max_size=3),
            "labels": st.lists(NAMES, min_size=k, max_size=k),
            "label_counts": st.lists(st.integers(0, 100), min_size=k, max_size=k),
            "fingerprint": NAMES,
            "reading": st.fixed_dictionaries(
                {},
                optional={
                    "points": st.integers(1, 10**9),
                    "size": NAMES,
                    "fit": st.sampled_from(["crop", "pad", "stretch"]),
                    "channels": st.sampled_from([1, 3, 4]),
                    "labels": NAMES,
                    "data_dir": NAMES,
                },
            ),
        },
        optional={
            "condition": st.sampled_from(
                [
                    {"tokenizer": {"name": "characters", "alphabet": "ab"}, "length": 4},
                    {"numbers": [{"name": "angle", "mean": 1.5, "std": 0.5}]},
                    {"tokenizer": {"name": "bytes"}, "length": 8, "image": [1, 8, 8]},
                ]
            )
        },
    )
)


def valid() -> dict[str, Any]:
    return {
        "data": {"name": "spiral", "count": 100, "shape": [2]},
        "family": {
            "name": "diffusion",
            "codec": {"name": "standard", "mean": [0.0, 0.0], "std": [1.0, 1.0]},
            "schedule": {"name": "cosine"},
            "network": {"name": "mlp", "channels": 2, "labels": 0},
        },
        "training": {"steps": 10},
    }


def with_family(change: dict[str, Any]) -> dict[str, Any]:
    table = valid()
    return {**table, "family": {**table["family"], **change}}


@given(
    training=st.fixed_dictionaries({}, optional=TRAINING),
    family=st.fixed_dictionaries({}, optional=FAMILY),
    length=LENGTH,
    data=DATA,
)
def test_any_valid_configuration_survives_toml(training, family, length, data) -> None:
    assume(training.get("lora") is None or training.get("optimizer") != "muon")  # which is refused
    config = Config.model_validate({**with_family(family), "data": data, "training": {**training, **length}})
    assert Config.model_validate(tomllib.loads(tomli_w.dumps(config.as_table()))) == config


@given(columns=st.lists(NAMES, min_size=2, max_size=2), series=st.booleans())
def test_names_of_columns_survive_toml_and_are_safe_to_show(columns: list[str], series: bool) -> None:
    data = {"name": "x", "count": 9, "shape": [5, 2] if series else [2], "columns": columns}
    config = Config.model_validate({**valid(), "data": data})
    assert Config.model_validate(tomllib.loads(tomli_w.dumps(config.as_table()))) == config
    shown = config.data.columns
    assert len(set(shown)) == 2 and all(name and visible(name) == name for name in shown)
    for wrong in ({**data, "columns": ["a"]}, {**data, "shape": [1, 2, 2]}, {**data, "columns": ["a", "b" * 1000]}):
        with pytest.raises(ValidationError):
            Config.model_validate({**valid(), "data": wrong})


def test_a_configuration_of_format_1_is_read_as_the_same_of_format_2() -> None:
    new = {**with_family({"target": "eps", "sigma_data": 0.5, "weight": "vlb", "label_dropout": 0.2}), "format": 2}
    old: dict[str, Any] = {"format": 1, "family": "diffusion", "data": new["data"]}
    old |= {key: new["family"][key] for key in ("target", "sigma_data", "codec", "schedule", "network")}
    old["training"] = {**new["training"], "weight": "vlb", "label_dropout": 0.2}
    assert Config.model_validate(old) == Config.model_validate(new)
    for wrong in ({"family": "gan"}, {"training": 3}, {"network": 3}):
        with pytest.raises(ValidationError):
            Config.model_validate({**old, **wrong})


def test_the_strategies_know_every_field() -> None:
    assert set(TrainingConfig.model_fields) == {*TRAINING, "steps", "minutes"}
    fields = {"name", "source", "count", "seed", "shape", "labels", "label_counts", "fingerprint", "reading", "kind"}
    assert set(DataConfig.model_fields) == {*fields, "condition", "columns"}
    assert set(DiffusionSettings.model_fields) == {*FAMILY, "name", "codec", "schedule", "network"}


BAD = [
    ("training", "steps", 0),
    ("training", "steps", -5),
    ("training", "steps", 1.5),
    ("training", "minutes", 3),
    ("training", "batch", 0),
    ("training", "learning_rate", -1e-3),
    ("training", "learning_rate", float("nan")),
    ("training", "warmup", 0.9),
    ("training", "ema_share", 0),
    ("training", "gradient_clip", 0),
    ("family", "label_dropout", 1.5),
    ("training", "seed", -1),
    ("training", "seed", 2**31),
    ("training", "colour", "red"),
    ("training", "accumulate", 0),
    ("training", "decay", "linear"),
    ("training", "weight_decay", -1),
    ("training", "precision", "fp16"),
    ("family", "weight", 3),
    ("family", "times", None),
    ("family", "augment", "flip"),
    ("family", "augment", [{"name": "flip"}] * 17),
    ("family", "target", 1),
    ("family", "sigma_data", 0),
    ("data", "name", 7),
    ("data", "source", 7),
    ("data", "count", 0),
    ("data", "seed", "x"),
    ("data", "shape", []),
    ("data", "shape", [10**10]),
    ("data", "labels", ["a"]),
    ("data", "label_counts", [3]),
    ("data", "fingerprint", 5),
    ("data", "reading", {"on_shape": "x"}),  # an argument of load_data, and no option
    ("data", "reading", {"points": "many"}),
    ("data", "reading", {"fit": "squeeze"}),
    ("data", "reading", {"channels": 2}),
    ("data", "reading", "crop"),
    ("family", "codec", {"name": "standard", "mean": 3, "std": 3}),
    ("family", "network", {"name": "unet", "widths": "many"}),
    ("family", "network", ["mlp"]),
    ("family", "schedule", {"name": ["cosine"]}),
]


@pytest.mark.parametrize(("section", "field", "value"), BAD)
def test_a_bad_field_is_refused(section: str, field: str, value: Any) -> None:
    table = valid()
    table[section][field] = value
    with pytest.raises(ValidationError):
        Config.model_validate(table)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 3),
        ("family", "gan"),
        ("family", {"name": "gan"}),
        ("family", {}),
        ("target", "v"),
        ("extra", 1),
        ("start", "runs/a"),
    ],
)
def test_a_bad_top_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({**valid(), field: value})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"target": "epsilon"}, "did you mean 'eps'"),
        ({"schedule": {"name": "lienar"}}, "did you mean 'linear'"),
        ({"schedule": {"name": "linear", "beta_strat": 1}}, "did you mean 'beta_start'"),
        ({"schedule": {"name": "linear", "steps": "many"}}, "steps"),
        ({"schedule": {"name": "linear", "steps": 10}}, "strictly between 0 and 1"),
        ({"schedule": {"name": "rectified", "steps": 10}}, "takes no options"),
        ({"schedule": {}}, "needs a name"),
        ({"network": {"name": "os.system", "channels": 2}}, "unknown network"),
        ({"network": {"name": "mlp", "channels": 2, "hidden": 10**10}}, "hidden"),
        ({"network": {"name": "mlp", "channels": 2, "layers": 10**9}}, "layers"),
        ({"network": {"name": "mlp", "channels": 2, "layers": 64, "hidden": 8192}}, "500,000,000"),
        ({"network": {"name": "mlp", "channels": 2, "embedding_dim": 15}}, "even dimension"),
        ({"network": {"name": "mlp", "channels": 3}}, "the network has"),
        ({"network": {"name": "unet", "channels": 2, "height": 28}}, "the network has"),  # a width is missing
        ({"network": {"name": "mlp", "channels": 2, "labels": 4}}, "0 labels.* has 4"),
        ({"data": {"name": "x", "count": 3, "shape": [2, 2]}}, "the network has"),
        ({"codec": {"name": "standard"}}, "needs a value for 'mean'"),
        ({"codec": {"name": "standard", "mean": [0.0, 1.0], "std": [0.0, 1.0]}}, "all above 0"),
        ({"codec": {"name": "standard", "mean": [0.0], "std": [1.0]}}, "2 coordinates.* has 1"),
        ({"weight": "heavy"}, "unknown weight"),
        ({"times": "never"}, "unknown distribution of times"),
        ({"augment": [{"name": "flap"}]}, "did you mean 'flip'"),
        ({"augment": [{"name": "flip", "conditioned": False}]}, "points cannot be augmented"),
        ({"augment": [{"name": "shift"}]}, "2 values.*cond_dim=0"),
        ({"target": "eps", "schedule": {"name": "rectified"}}, "divides by alpha"),
        ({"target": "score", "schedule": {"name": "cosine"}}, "divides by alpha"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(change: dict[str, Any], match: str) -> None:
    with pytest.raises((UserError, ValidationError), match=match):
        build_model(
            Config.model_validate(
                {
                    **with_family({k: v for k, v in change.items() if k != "data"}),
                    **{k: v for k, v in change.items() if k == "data"},
                }
            )
        )


def test_specs_are_read_from_text() -> None:
    assert parse("ddim:eta=0.5, x=1") == {"name": "ddim", "eta": "0.5", "x": "1"}
    assert parse("unet:widths=[8, 12],stem=1") == {"name": "unet", "widths": ["8", "12"], "stem": "1"}
    made = build(SAMPLERS, "ddim:eta=0.5", "sampler")
    assert isinstance(made, DDIM) and made.eta == 0.5
    assert complete(SCHEDULES, "linear:steps=40", "schedule") == {
        "name": "linear",
        "steps": 40,
        "beta_start": 1e-4,
        "beta_end": 0.02,
        "scale": True,
    }
    for text in ("ddim:eta", "ddim:eta=", "ddim:eta=nan", "ddim:eta=inf", "ddim:eta=2", "ddpm:variance=none", "ddmi", ""):
        with pytest.raises(UserError):
            build(SAMPLERS, text, "sampler")


@given(text=st.text(max_size=30))
def test_any_text_is_a_spec_or_a_clear_refusal(text: str) -> None:
    try:
        build(SAMPLERS, text, "sampler")
    except UserError as error:
        assert "\n" not in str(error) or "\n" in text


def test_codec_round_trip() -> None:
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.0]) + 2
    spec = standard_spec(x)
    codec = build({"standard": Standard}, spec, "codec")
    z = codec.encode(x)
    torch.testing.assert_close(z[:, :2].std(0), torch.ones(2))
    assert (z[:, 2].abs() < 1e-5).all()
    torch.testing.assert_close(codec.decode(z), x)


def test_save_load_sample_gives_equal_numbers(spiral_run: Run) -> None:
    again = reverie.load(spiral_run.path)
    assert again.config == spiral_run.config
    assert (again.sample(50, seed=3).x == spiral_run.sample(50, seed=3).x).all()


def _copy(run: Run, to: Path) -> Path:
    return Path(shutil.copytree(run.path, to))


def _nan(path: Path) -> None:
    state = load_file(path)
    state[next(iter(state))].fill_(float("nan"))
    save_file(state, path)


def _extra(path: Path) -> None:
    save_file({**load_file(path), "evil": torch.zeros(1)}, path)


@pytest.mark.parametrize(
    ("file", "harm", "match"),
    [
        ("model.safetensors", lambda p: p.unlink(), "missing"),
        ("model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-100]), "truncated or damaged"),
        ("model.safetensors", lambda p: p.write_bytes(b""), "truncated or damaged"),
        ("model.safetensors", lambda p: p.write_bytes(b"\xff" * 64), "truncated or damaged"),
        ("model.safetensors", _nan, "not finite"),
        ("model.safetensors", _extra, "does not fit"),
        ("config.toml", lambda p: p.unlink(), "not a run"),
        ("config.toml", lambda p: p.write_text("= = ="), "not valid TOML"),
        ("config.toml", lambda p: p.write_bytes(b"\xff\xfe"), "not valid TOML"),
        (
            "config.toml",
            lambda p: p.write_text(p.read_text().replace('name = "cosine"', 'name = "cosnie"')),
            "did you mean 'cosine'",
        ),
        ("config.toml", lambda p: p.write_text(p.read_text().replace("hidden = 42", "hidden = 43")), "does not fit"),
        ("config.toml", lambda p: p.write_text("format = 1"), "not a valid configuration"),
    ],
)
def test_a_damaged_run_is_refused_in_one_sentence(spiral_run: Run, tmp_path: Path, file: str, harm, match: str) -> None:
    folder = _copy(spiral_run, tmp_path / "run")
    harm(folder / file)
    with pytest.raises(UserError, match=match) as caught:
        reverie.load(folder)
    assert "\n" not in str(caught.value)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run"):
        reverie.load(tmp_path / "nowhere")
    (tmp_path / "emoji").mkdir()
    write_config(tmp_path / "emoji", Config.model_validate(valid()))
    with pytest.raises(UserError, match=r"did you mean .*emoji\? else train one with"):
        reverie.load(tmp_path / "emojis")


def test_metrics_survive_a_line_cut_off(tmp_path: Path) -> None:
    row = '{"i": 1, "loss": 1.0, "fraction": 0.5, "seconds": 2.0}'
    (tmp_path / "metrics.jsonl").write_text(f'{row}\n{row}\n{{"i": ')
    assert [r["i"] for r in read_metrics(tmp_path)] == [1, 1]


def test_atomic_writes_leave_the_old_file_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_config_file_can_be_read_back(tmp_path: Path) -> None:
    config = Config.model_validate(valid())
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config
    assert isinstance(build_model(config).denoiser.schedule, SCHEDULES["cosine"])
    assert not isinstance(build_model(config).denoiser.schedule, Linear)
