"""Clusters of images: they agree with scikit-learn, are sampled by frequency, and condition the network."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import reverie
from reverie import api
from reverie.base.deadline import Deadline
from reverie.base.distances import squared
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import Dataset, load_data
from reverie.diffusion.condition import NULL
from reverie.diffusion.guidance import ClassifierFree
from reverie.families.diffusion.clusters import Clusters, WithClusters, default_cluster_count, downscale, k_means
from reverie.families.diffusion.noise_levels import noised_losses, optimum_levels

TINY = "unet:widths=[8,12],groups=4,embedding_dim=16"


def mean_distance(x: torch.Tensor, centres: torch.Tensor) -> float:
    return float(squared(x.double(), centres.double()).min(1).values.sum())


def test_centres_of_blobs_are_their_means() -> None:
    random = torch.Generator().manual_seed(0)
    means = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = (means[:, None] + 0.1 * torch.randn(3, 50, 2, generator=random)).flatten(0, 1)
    found = k_means(x, 3)
    order = squared(means.double(), found).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(found[order], x.double().reshape(3, 50, 2).mean(1))


def test_clusters_of_digits_are_as_tight_as_those_of_scikit_learn() -> None:
    x = downscale(load_data("digits8").batch(torch.arange(1500))[0])
    peer = KMeans(30, n_init=3, random_state=0).fit(x.numpy())
    assert mean_distance(x, k_means(x, 30)) < 1.05 * peer.inertia_


def test_fewer_data_than_clusters_leave_centres_over() -> None:
    x = torch.tensor([[0.0], [0.0], [1.0]])
    assert k_means(x, 5).unique(dim=0).flatten().tolist() == [0.0, 1.0]


def labelled(count: int = 400) -> Dataset:
    """Dark, middling and bright images; the label a is never bright, b is always."""
    random = torch.Generator().manual_seed(1)
    level = torch.randint(3, (count,), generator=random)
    x = (level * 100)[:, None, None, None] + torch.randint(20, (count, 1, 20, 20), generator=random)
    return Dataset("levels", x.to(torch.uint8), (level == 2).long(), ("a", "b"))


def test_clusters_are_drawn_as_often_as_they_occur_with_a_label() -> None:
    data, clusters = labelled(), Clusters(3, (1, 20, 20), 2)
    clusters.fit(data)
    x, labels = data.batch(torch.arange(len(data)))
    assert labels is not None
    of = clusters.assign(x)
    np.testing.assert_array_equal(
        clusters.counts.numpy(), [[int(((labels == a) & (of == k)).sum()) for k in range(3)] for a in range(2)]
    )
    assert len(of[labels == 1].unique()) == 1 and len(of[labels == 0].unique()) == 2
    seeds = image_seeds(0, 20_000)
    requested = torch.arange(20_000) % 2
    drawn = clusters.sample(seeds, requested)
    assert set(drawn[requested == 1].tolist()) == set(of[labels == 1].tolist())
    wanted = clusters.counts[0] / clusters.counts[0].sum()
    found = torch.bincount(drawn[requested == 0], minlength=3) / 10_000
    assert float((found - wanted).abs().max()) < 4 * 0.5 / 100
    assert torch.equal(clusters.sample(seeds[7:9], requested[7:9]), drawn[7:9])  # each by its own seed alone


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> reverie.Run:
    place = tmp_path_factory.mktemp("clusters") / "r"
    return reverie.train("digits8", place, steps=30, clusters=4, network=TINY, augment="shift", progress=False)


def test_a_run_stores_its_clusters_and_is_conditioned_on_them(run: reverie.Run) -> None:
    model = reverie.load(run.path).diffusion
    assert model.clusters is not None and len(model.clusters) == 4 and model.augmentation_width == 2
    assert int(model.clusters.counts.sum()) > 1000
    net = model.denoiser.net
    assert net.told.weight.shape == (16, 6) and bool((net.told.weight[:, 2:].abs().sum(0) > 0).all())
    conditioning = model.conditioning_of(
        torch.rand(3, 1, 8, 8), torch.tensor([[0.5, 0.0]] * 3), torch.tensor([False, True, False])
    )
    assert conditioning is not None
    assert conditioning[:, :2].tolist() == [[0.5, 0.0]] * 3 and conditioning[:, 2:].sum(1).tolist() == [1, 0, 1]


def test_without_a_label_there_is_no_cluster_conditioning(run: reverie.Run) -> None:
    model = run.diffusion
    assert model.clusters is not None
    with torch.no_grad():
        model.denoiser.net.leave.weight.normal_(generator=torch.Generator().manual_seed(0))  # a short training left it silent
        x, cond = torch.randn(2, 1, 8, 8), torch.tensor([3, 5])
        conditioning = model.clusters.one_hot(torch.tensor([1, 2]), model.augmentation_width)
        guided = ClassifierFree(WithClusters(model.denoiser, conditioning), 2.0)(x, 0.5, cond)
        this = model.denoiser.estimate(x, 0.5, cond, conditioning)
        none = model.denoiser(x, 0.5, torch.full_like(cond, NULL))
        assert not torch.allclose(this.x0, model.denoiser(x, 0.5, cond).x0, atol=1e-4)
    torch.testing.assert_close(guided.x0, none.x0 + 2 * (this.x0 - none.x0), rtol=1e-4, atol=1e-5)


def test_samples_are_conditioned_on_clusters_and_steering_is_not(run: reverie.Run) -> None:
    model = run.diffusion
    assert model.clusters is not None
    seen: list[torch.Tensor | None] = []
    handle = model.denoiser.net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[3] if len(inputs) > 3 else None))
    try:
        run.sample(5, label="2", steps=3, autoguidance=1.0)
        wanted = model.clusters.sample(image_seeds(0, 5), torch.full((5,), 2))
        assert len(seen) == 3 and all(
            conditioning is not None and torch.equal(conditioning[:, 2:].argmax(1), wanted) for conditioning in seen
        )
        seen.clear()
        run.sample(2, label="2:1,3:1", steps=3, autoguidance=1.0)
        reverie.inpaint(run, image=np.zeros((8, 8), np.float32), mask=np.eye(8, dtype=bool), n=1, steps=3)
        assert seen and all(conditioning is None for conditioning in seen)
    finally:
        handle.remove()


def test_the_held_out_loss_uses_cluster_conditioning(run: reverie.Run) -> None:
    data = load_data("digits8").split(0)[1]
    conditional, without = (
        noised_losses(run.diffusion, data, 0, denoiser)[1].mean() for denoiser in (None, run.diffusion.denoiser)
    )
    assert conditional < without


def test_the_optimum_is_conditioned_on_clusters(run: reverie.Run) -> None:
    data = load_data("digits8").split(0)[0]
    least = optimum_levels(run.diffusion, data, 0)
    unconditional = copy.deepcopy(run.diffusion)
    unconditional.clusters = None
    assert least[-1] < 0.9 * optimum_levels(unconditional, data, 0)[-1]  # at the largest noise


def test_a_resumed_run_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clusters": 3, "network": TINY, "labels": "none", "steps": 8}
    whole = reverie.train("digits8", tmp_path / "whole", **options)
    steps = iter(api.prepare("digits8", tmp_path / "parts", **options))
    assert len(list(islice(steps, 3))) == 3
    steps.close()
    kept, again = whole.model.state_dict(), reverie.train(resume=tmp_path / "parts").model.state_dict()
    assert kept.keys() == again.keys() and all(torch.equal(kept[name], again[name]) for name in kept)


def test_a_finetuned_run_keeps_the_clusters_and_recounts_them(run: reverie.Run, tmp_path: Path) -> None:
    some = load_data("digits8").take(torch.arange(300))
    images, labels = some.x.numpy()[:, 0], some.labels.numpy()
    made = reverie.train((images, labels), tmp_path / "r", steps=1, start_from=run.path, augment="shift", progress=False)
    ours, theirs = made.diffusion.clusters, run.diffusion.clusters
    assert ours is not None and theirs is not None and torch.equal(ours.centres, theirs.centres)
    assert int(ours.counts.sum()) == 285  # all that are trained on
    weight, before = made.diffusion.denoiser.net.told.weight, run.diffusion.denoiser.net.told.weight
    torch.testing.assert_close(weight, before, atol=0.02, rtol=0)


def test_a_run_starts_from_one_with_other_clusters(run: reverie.Run, tmp_path: Path) -> None:
    made = reverie.train("digits8", tmp_path / "r", steps=1, start_from=run.path, clusters=7, augment="shift", progress=False)
    weight, before = made.diffusion.denoiser.net.told.weight, run.diffusion.denoiser.net.told.weight
    assert weight.shape == (16, 9)
    torch.testing.assert_close(weight[:, :2], before[:, :2], atol=0.02, rtol=0)  # what it knows of changes
    assert float(weight[:, 2:].abs().max()) < 0.02  # but nothing yet of clusters, which are others


def test_an_adapter_fits_a_run_with_clusters(run: reverie.Run, tmp_path: Path) -> None:
    reverie.train("digits8", tmp_path / "a", steps=2, start_from=run.path, lora="rank=2", augment="shift", progress=False)
    samples = api.with_adapters(reverie.load(run.path), (str(tmp_path / "a"),)).sample(2, steps=2)
    assert samples.x.shape == (2, 8, 8)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("moons", {"points": 100}, "--clusters needs images"),
        ("digits8", {"network": "diffusers-unet"}, "takes no clusters"),
        ("digits8", {"clusters": 5000}, "clusters"),
        ("digits8", {"purpose": "likelihood"}, "give --clusters 0"),
    ],
)
def test_invalid_clusters_raise_user_errors(data: str, options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        reverie.train(data, tmp_path / "r", steps=2, progress=False, **{"clusters": 3, **options})
    assert not (tmp_path / "r").exists()


def test_small_sets_are_not_taken_apart() -> None:
    assert [default_cluster_count(n) for n in (200, 410, 2000)] == [0, 10, 50]
    assert default_cluster_count(10**6) == default_cluster_count(10**7)


def test_k_means_ends_with_its_time() -> None:
    """Whatever the time, each centre is a mean of data; with none left there is one round."""
    x = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    whole, none, plenty = (k_means(x, 20, deadline=until) for until in (None, Deadline(0.0), Deadline(1e9)))
    start = k_means(x, 20, deadline=Deadline(-1.0))
    assert torch.equal(whole, plenty) and torch.equal(none, start) and not torch.equal(none, whole)
    mean_distance = [float(torch.cdist(x.double(), centres).min(1).values.square().mean()) for centres in (whole, none)]
    assert mean_distance[0] < mean_distance[1] < 1.5 * mean_distance[0]
