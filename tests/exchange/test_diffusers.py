"""diffusers: imported and exported models have the same trajectories; hostile folders are refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.denoiser import LEVEL_FLOOR, noise_level
from reverie.nets.diffusers import FLOOR, DiffusersUNet
from reverie.runs.run import Run

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
SMALL: dict[str, Any] = {
    "sample_size": 8, "in_channels": 1, "out_channels": 1, "block_out_channels": (8, 16), "norm_num_groups": 4,
    "layers_per_block": 1, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8,
}  # fmt: skip
UNET, SCHEDULER = "unet/config.json", "scheduler/scheduler_config.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def unet(**options: Any) -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(**{**SMALL, **options}).eval()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders as diffusers writes them, with small random networks."""
    base = tmp_path_factory.mktemp("peers")
    for name, betas, predicts in (
        ("eps", "linear", "epsilon"), ("v", "squaredcos_cap_v2", "v_prediction"), ("sample", "scaled_linear", "sample"),
    ):  # fmt: skip
        scheduler = diffusers.DDIMScheduler(beta_schedule=betas, prediction_type=predicts, clip_sample=False)
        diffusers.DDIMPipeline(unet(), scheduler).save_pretrained(base / name)
    score = unet(time_embedding_type="fourier", resnet_time_scale_shift="scale_shift", mid_block_scale_factor=2**0.5)
    diffusers.ScoreSdeVePipeline(score, diffusers.ScoreSdeVeScheduler()).save_pretrained(base / "score")
    return base


def theirs(folder: Path, x: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the DDIM samples of a diffusers pipeline."""
    pipeline = diffusers.DDIMPipeline.from_pretrained(folder)
    scheduler = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    scheduler.set_timesteps(steps)
    with torch.no_grad():
        for t in scheduler.timesteps:
            x = scheduler.step(pipeline.unet(x, t).sample, t, x, eta=0.0).prev_sample
    return x


def ours(run: Run, n: int, steps: int) -> torch.Tensor:
    times = (torch.arange(0, 1000, 1000 // steps, dtype=torch.float64).flip(0) + 1) / 1000
    *_, last = run.frames(n, sampler="ddim", times=times)
    return last.x0


@pytest.mark.parametrize("name", ["eps", "v", "sample"])
def test_an_imported_model_has_the_samples_of_diffusers(name: str, peers: Path, tmp_path: Path) -> None:
    run = reverie.import_model(peers / name, tmp_path / "run")
    noise = Noise(image_seeds(0, 3)).like(torch.zeros(3, 1, 8, 8))
    wanted, found = theirs(peers / name, noise, 10), ours(run, 3, 10)
    assert (found - wanted).abs().max() < 1e-4 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("name", ["eps", "v", "sample"])
def test_noise_levels_map_to_time_steps_of_diffusers(name: str, peers: Path, tmp_path: Path) -> None:
    run = reverie.import_model(peers / name, tmp_path / "run")
    net, schedule = run.diffusion.denoiser.net, run.diffusion.denoiser.schedule
    assert isinstance(net, DiffusersUNet) and FLOOR == LEVEL_FLOOR
    peer, x = diffusers.UNet2DModel.from_pretrained(peers / name, subfolder="unet"), torch.randn(1, 1, 8, 8)
    bars = diffusers.DDIMScheduler.from_pretrained(peers / name, subfolder="scheduler").alphas_cumprod.double()
    for k in (0, 1, 17, 500, 998, 999):
        alpha, sigma = schedule((k + 1) / 1000)
        assert abs(float(alpha) - float(bars[k].sqrt())) < 1e-5
        level = torch.tensor([noise_level(alpha, sigma)], dtype=torch.float32)
        assert net.levels_and_steps(level)[1].tolist() == [k]  # exact
        with torch.no_grad():
            assert (net(x, level) - peer(x, k).sample).abs().max() < 1e-6


def test_a_score_model_has_the_score_of_diffusers(peers: Path, tmp_path: Path) -> None:
    run = reverie.import_model(peers / "score", tmp_path / "run")
    peer, x = diffusers.UNet2DModel.from_pretrained(peers / "score", subfolder="unet"), torch.randn(2, 1, 8, 8)
    for t in (0.0, 0.3, 0.7, 1.0):
        _, sigma = run.diffusion.denoiser.schedule(t)
        with torch.no_grad():
            wanted = peer(float(sigma) * x, torch.full((2,), float(sigma))).sample
            found = run.diffusion.denoiser.score(float(sigma) * x, t)
        assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_an_imported_model_is_a_run(peers: Path, tmp_path: Path, command: Any) -> None:
    code, out, _ = command("import", peers / "eps", "--out", tmp_path / "cats", "--json")
    assert code == 0 and json.loads(out)["run"] == str(tmp_path / "cats")
    run = reverie.load(tmp_path / "cats")
    assert run.sample(2, sampler="dpm++2m", steps=4).x.shape == (2, 8, 8)
    assert command("import", peers / "eps", "--out", tmp_path / "cats")[0] == 2  # without --overwrite
    images = torch.randint(0, 256, (24, 8, 8), dtype=torch.uint8).numpy()
    tuned = reverie.train(images, tmp_path / "tuned", start_from=tmp_path / "cats", steps=2, batch=4)
    assert tuned.diffusion_settings.network["name"] == "diffusers-unet"


@pytest.fixture(scope="module")
def ours_trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    images = torch.randint(0, 256, (24, 8, 8), dtype=torch.uint8).numpy()
    network = "diffusers-unet:widths=[8,16],norm_num_groups=4"
    return reverie.train(images, tmp_path_factory.mktemp("ours") / "run", network=network, steps=2, batch=4)


def test_a_run_with_a_diffusers_network_is_exported_and_imported(ours_trained: Run, tmp_path: Path) -> None:
    folder = reverie.export(ours_trained, tmp_path / "out", format="diffusers")
    assert not list(folder.rglob("*.bin"))
    noise = Noise(image_seeds(0, 2)).like(torch.zeros(2, 1, 8, 8))
    wanted, found = theirs(folder, noise, 10), ours(ours_trained, 2, 10)
    assert (found - wanted).abs().max() < 1e-4 * max(1.0, float(wanted.abs().max()))
    again = reverie.import_model(folder, tmp_path / "again")
    assert torch.equal(ours(again, 2, 5), ours(ours_trained, 2, 5))


def test_another_network_is_refused_with_an_alternative(made: Callable[..., Run], tmp_path: Path) -> None:
    run = made("digits", "unet:widths=[8,12],groups=4", (1, 8, 8))
    with pytest.raises(UserError, match=r"\.onnx"):
        reverie.export(run, tmp_path / "out", format="diffusers")
    assert not (tmp_path / "out").exists()


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "unet/diffusion_pytorch_model.bin").write_bytes(pickle.dumps({"conv_in.weight": 1}))


def _linked(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    (folder / WEIGHTS).symlink_to(folder.parent / "elsewhere.safetensors")


def _reshaped(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "conv_in.bias": torch.zeros(9)}, folder / WEIGHTS)


def _not_finite(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["conv_in.bias"][0] = float("nan")
    save_file(tensors, folder / WEIGHTS)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "huge width": (lambda f: _edit(f / UNET, block_out_channels=[2**20, 2**20]), "widths"),
    "huge size": (lambda f: _edit(f / UNET, sample_size=10**9), "sample_size"),
    "too many parameters": (lambda f: _edit(f / UNET, block_out_channels=[2048, 2048]), "parameters|differ"),
    "no groups": (lambda f: _edit(f / UNET, norm_num_groups=7), "UNet2DModel rejects"),
    "code by name": (lambda f: _edit(f / UNET, down_block_types=["os.system", "DownBlock2D"]), "down_block_types"),
    "unknown setting": (lambda f: _edit(f / UNET, secret_attention=3), "secret_attention"),
    "another class": (lambda f: _edit(f / UNET, _class_name="UNet3DConditionModel"), "class_name"),
    "deep": (lambda f: (f / UNET).write_text("[" * 100_000), "nested|not valid"),
    "no numbers": (lambda f: (f / SCHEDULER).write_text('{"_class_name": "DDIMScheduler", "beta_end": NaN}'), "beta_end"),
    "betas of its own": (lambda f: _edit(f / SCHEDULER, trained_betas=[0.1] * 1000), "trained_betas"),
    "no betas": (lambda f: (f / SCHEDULER).write_text('{"_class_name": "FlowMatchEulerDiscreteScheduler"}'), "without betas"),
    "no scheduler": (lambda f: (f / SCHEDULER).unlink(), "scheduler_config.json"),
    "pickle": (_pickled, "pickle"),
    "link": (_linked, "a link"),
    "wrong shape": (_reshaped, "conv_in.bias"),
    "not finite": (_not_finite, "not finite"),
    "torn": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:2000]), "truncated or damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_without_output(name: str, peers: Path, tmp_path: Path) -> None:
    shutil.copytree(peers / "eps", tmp_path / "folder")
    spoil, message = HOSTILE[name]
    spoil(tmp_path / "folder")
    with pytest.raises(UserError, match=message) as error:
        reverie.import_model(tmp_path / "folder", tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    yield
