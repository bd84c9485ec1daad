"""Every family goes through the same verbs: trained, kept, sampled, measured, described; and refuses what it cannot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.families import FAMILIES
from reverie.families.model import TrainedModel
from reverie.runs.config import Config, build_model
from reverie.runs.folder import read_config
from reverie.runs.run import Run, load
from reverie.training.summary import verdict
from tests.families.objectives import OBJECTIVES, Objective, bound, likelihood_of_tokens, objectives, whole_bound

AUTOENCODERS = ("autoencoder", "denoising-autoencoder", "vae", "hvae", "mhvae")
SLOW = [*(f"{name}-points" for name in ("autoencoder", "vae", "mhvae")), *(f"{name}-images" for name in AUTOENCODERS[1::2]),
        "mhvae-images", "rnn-text", "mlp-lm-text"]  # fmt: skip  # whose parts are those of others
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "points": ("patterns", {"points": 300}), "series": ("oscillation", {"points": 1600, "window": 16}),
    "images": ("digits8", {}), "text": ("TEXT", {"window": 16}), "pairs": ("numbers-en", {"points": 200}),
}  # fmt: skip
SEQUENCES, PAIRED = ("rnn", "lstm", "transformer"), ("seq2seq", "transformer-seq2seq")
FEW: dict[str, Any] = {"steps": 12, "batch": 32}
SHORT: dict[str, dict[str, Any]] = {
    "diffusion": {"steps": 40, "batch": 32}, "mixture": {"family": "mixture:components=2"},
    **{name: {"family": f"{name}:hidden=32", **FEW} for name in (*AUTOENCODERS, "nade", "flow", "sinkhorn")}, "fvsbn": FEW,
    **{name: {"family": f"{name}:dim=16", **FEW} for name in (*SEQUENCES, "mlp-lm", *PAIRED)},
}  # fmt: skip
TINY = {"points": "mlp:hidden=16", "images": "unet:widths=[8,16],embedding_dim=16"}


def each() -> list[Any]:
    """Return every family with each kind of data that it takes."""
    pairs = [(name, kind) for name, family in FAMILIES.items() for kind in family.kinds]
    return [pytest.param(pair, marks=[pytest.mark.slow] if "-".join(pair) in SLOW else [], id="-".join(pair)) for pair in pairs]


@pytest.fixture(scope="module", params=each())
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run of each family on each kind of data that it takes."""
    name, kind = request.param
    data, reading = DATA[kind]
    if kind == "text":
        data = tmp_path_factory.mktemp("text") / "prose.txt"
        data.write_text(" ".join(topics.values())[:8000])
    network = {"network": TINY[kind]} if "network" in FAMILIES[name].option_names else {}
    options = {"family": name, **network, **SHORT.get(name, {}), **reading}
    return reverie.train(data, tmp_path_factory.mktemp("runs") / f"{name}-{kind}", **options)


def test_a_saved_run_loads_and_samples_the_same(run: Run) -> None:
    config = read_config(run.path)
    assert (
        isinstance(config, Config)
        and config.as_table() == run.config.as_table()
        and config.family.name == run.config.family.name
    )
    again = load(run.path)
    assert np.array_equal(again.sample(5, seed=3).x, run.sample(5, seed=3).x)
    assert again.sample(5, seed=3).x[2:3] == pytest.approx(again.sample(1, 2, seed=3).x, abs=1e-5)
    assert {name: t.shape for name, t in build_model(config).state_dict().items()} == {
        name: t.shape for name, t in run.model.state_dict().items()
    }


def test_samples_have_the_shape_and_range_of_the_data(run: Run) -> None:
    x, names = run.sample(7).x, run.config.data.labels
    assert (
        x.shape[1:] == {"points": (2,), "series": (16, 1), "images": (8, 8), "text": (16,), "pairs": (2, x.shape[-1])}[run.kind]
        and np.isfinite(x).all()
    )
    assert run.kind != "images" or (x.min() >= 0 and x.max() <= 1)
    if not names:
        return
    if "labels" not in run.config.model_family.capabilities:
        assert run.sample(3).labels is None and run.label_names == ()
        for label in ("all", names[0], f"{names[0]}:2"):
            with pytest.raises(UserError, match=r"families that can: .*diffusion.*vae") as refused:
                run.sample(3, label=label)
            assert repr(label) in str(refused.value)
        return
    assert run.sample(6, label="all").labels == [names[k % len(names)] for k in range(6)]


def test_held_out_metrics_are_recorded_and_compared(run: Run) -> None:
    last = run.metrics()[-1]
    assert last["fraction"] == 1 and np.isfinite([last["held_out"], last["train_loss"]]).all()
    lines = verdict(run).lines
    assert len(lines) == 3 and "held-out" in lines[1]


def test_the_likelihood_is_of_the_declared_kind(run: Run) -> None:
    family = run.config.model_family
    data = load_data(run.config.data.source, **run.config.data.reading)
    x, labels = data.batch(torch.arange(3))
    if family.likelihood == "none":
        return
    found = run.model.log_prob(x, labels, torch.arange(3))
    assert found.nats.shape == (3,) and found.size == x[0].numel() and bool(found.nats.isfinite().all())
    if family.likelihood == "exact":
        assert torch.equal(found.nats, run.model.log_prob(x, labels, torch.arange(3)).nats)


def test_every_family_has_an_objective() -> None:
    assert set(OBJECTIVES) == set(FAMILIES)


def assert_trained_by(run: Run, objective: Objective) -> None:
    """The mean training loss is what the objective says, within four standard errors."""
    data = load_data(run.config.data.source, **run.config.data.reading).split(run.config.data.seed)[0]
    trained, expected = objectives(run.model, data, objective)
    error = math.hypot(trained.error, expected.error)
    assert abs(trained.value - expected.value) < 4 * error + 1e-3 * (1 + abs(expected.value)), (trained, expected)


def test_the_training_loss_has_the_declared_measure(run: Run) -> None:
    assert_trained_by(run, likelihood_of_tokens if run.kind == "text" else OBJECTIVES[run.config.family.name])


@pytest.mark.parametrize(
    "family", ["mhvae:encoder=linear", "vae:beta=0.3,kl_warmup=0", "hvae:importance=4", "mhvae:importance=4"]
)
def test_the_training_loss_of_other_bounds_is_what_they_say(family: str, tmp_path: Path) -> None:
    assert_trained_by(reverie.train("patterns", tmp_path / "run", points=300, family=f"{family},hidden=32", **FEW), bound)


def test_a_model_for_the_likelihood_is_trained_by_the_bound(tmp_path: Path) -> None:
    run = reverie.train("patterns", tmp_path / "run", points=300, purpose="likelihood", network=TINY["points"], **FEW)
    assert_trained_by(run, whole_bound)


def test_a_finished_run_is_not_trained_again(run: Run) -> None:
    with pytest.raises(UserError, match=r"is finished|without steps"):
        reverie.train(resume=run.path)
    if not isinstance(run.model, TrainedModel):
        with pytest.raises(UserError, match="without steps"):
            reverie.train(resume=run.path, extend=True, steps=1)


def test_it_is_described(run: Run) -> None:
    found = reverie.inspect(run.path)
    assert found["family"] == run.config.family.name and found["finished"] and found["parameters"] > 0


def test_it_is_measured_and_compared(run: Run) -> None:
    found = reverie.evaluate(run, 24, quick=True, **({"steps": 3} if "steps" in run.config.model_family.options else {}))
    assert found["family"] == run.config.family.name
    exact = "dequantised" if run.kind == "images" and run.config.model_family.dequantises else "exact"
    costs = {"exact": exact, "lower bound": "bound", "none": ""}[run.config.model_family.likelihood]
    assert not costs or any(key.startswith(costs) for key in found["sections"]["likelihood"])


IMAGE = np.zeros((8, 8))
ASKING = {
    "edit": lambda run: reverie.edit(run, IMAGE),
    "invert": lambda run: reverie.invert(run, IMAGE),
    "interpolate": lambda run: reverie.interpolate(run, 1, 2, 3),
    "illusion": lambda run: reverie.illusion(run, "identity,rotate180"),
    "inpaint": lambda run: reverie.inpaint(run, IMAGE, mask="left-half"),
    "restore": lambda run: reverie.restore(run, IMAGE, task="deblur"),
    "train-classifier": lambda run: reverie.train_classifier(run, steps=1),
}


@pytest.mark.parametrize("verb", ASKING)
def test_missing_abilities_raise_user_errors_that_name_families(run: Run, verb: str) -> None:
    if verb in run.config.model_family.capabilities:
        return
    with pytest.raises(UserError, match=f"which cannot {verb}; families that can: .*diffusion"):
        ASKING[verb](run)


def test_options_of_other_families_raise_user_errors(run: Run) -> None:
    if "sampler" not in run.config.model_family.options:
        with pytest.raises(UserError, match="has no --sampler; families that have: diffusion"):
            run.sample(1, sampler="ddim")
    if "sampler" not in run.config.model_family.options and run.label_names:
        with pytest.raises(UserError, match="give one label"):
            run.sample(1, label=f"{run.config.data.labels[0]}:1.5")
    with pytest.raises(UserError, match="unknown option of sampling 'stepz'"):
        run.sample(1, stepz=3)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"family": "gausian"}, "did you mean 'gaussian'"),
        ({"family": "gaussian:rnak=3"}, "has no option 'rnak'"),
        ({"family": "gaussian", "network": "mlp"}, "family gaussian has no option 'network'.*diffusion"),
        ({"family": "gaussian:rank=0"}, "rank"),
        ({"family": "mixture:components=many"}, "components"),
        ({"family": "gaussian", "start_from": "."}, "run|start"),
    ],
)
def test_invalid_options_raise_user_errors_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match):
        reverie.train("spiral", tmp_path / "run", points=100, **given)
    assert not (tmp_path / "run").exists()


def test_families_are_compared_on_the_same_data(command, tmp_path: Path) -> None:
    words = ("compare", "digits8", "--families", "gaussian,pca:latent=4", "--runs", tmp_path, "--quick", "-n", 32, "--json")
    code, out, _ = command(*words)
    found = json.loads(out)
    assert code == 0 and set(found["runs"]) == {"gaussian", "pca:latent=4"}
    assert set(found["comparison"]["dequantised"]["values"]) == {"gaussian", "pca:latent=4"}
    assert {run["family"] for run in found["runs"].values()} == {"gaussian", "pca"}
    code, out, err = command("compare", "digits8", "--families", "gaussian,pac", "--runs", tmp_path / "other")
    assert code == 2 and "did you mean 'pca'" in err and not (tmp_path / "other").exists()
    code, _, err = command("compare", "digits8", "--families", "gaussian", "--runs", tmp_path / "other")
    assert code == 2 and "at least two families" in err
