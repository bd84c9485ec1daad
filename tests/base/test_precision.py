"""The default of bfloat16, and the accuracy of attention in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import reverie
from reverie.base import precision
from reverie.base.precision import default_precision, has_fast_bf16
from reverie.nets.sdpa import scaled_dot_product_attention

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("shape", "quick", "wanted"),
    [
        ((1, 28, 28), True, "bf16"), ((3, 16, 16), True, "bf16"), ((1, 8, 8), True, "fp32"),  # too small for a gain
        ((1, 28, 28), False, "fp32"), ((2,), True, "fp32"), ((), True, "fp32"),
    ],
)  # fmt: skip
def test_default_depends_on_size_and_processor(
    shape: tuple[int, ...], quick: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_fast_bf16", lambda device: quick)
    assert default_precision(shape, CPU) == wanted


def test_processor_flags_match() -> None:
    """The flags of /proc/cpuinfo, if available."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "flags" not in (text := cpuinfo.read_text()):
        pytest.skip("the system does not list the processor's features")
    flags = set(next(line for line in text.splitlines() if line.startswith("flags")).split())
    assert has_fast_bf16(CPU) == bool(flags & {"avx512_bf16", "amx_tile"})
    assert not has_fast_bf16(torch.device("meta"))


def test_attention_gradients_in_bfloat16() -> None:
    """Also under autocast and with a mask: as accurate as the rounding of its inputs."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 9, 8, generator=random)
    mask = torch.arange(9) < torch.tensor([5, 9])[:, None]
    found = []
    for kind in (torch.float32, torch.bfloat16):
        rows = [x.to(kind, copy=True).requires_grad_() for x in (q, k, v)]
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            out = scaled_dot_product_attention(*rows, mask[:, None, None])
        assert out.dtype == torch.float32
        out.square().sum().backward()
        found.append([out, *(x.grad.float() for x in rows if x.grad is not None)])
    for exact, rounded in zip(*found, strict=True):
        assert torch.allclose(exact, rounded, atol=0.05, rtol=0.02)


def test_training_and_sampling_record_their_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default, the requested precision, and fp32 for steering and small images."""
    monkeypatch.setattr(precision, "has_fast_bf16", lambda device: True)
    images = torch.rand(40, 16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    network = "unet:widths=[8,16]"
    run = reverie.train(images, tmp_path / "quick", steps=2, network=network, progress=False)
    assert run.config.training.precision == "bf16"
    requested = reverie.train(images, tmp_path / "full", steps=2, network=network, precision="fp32", progress=False)
    assert requested.config.training.precision == "fp32"
    usual, low, full = (run.sample(2, steps=4, precision=p).x for p in (None, "bf16", "fp32"))
    assert (usual == low).all() and 0 < abs(usual - full).max() < 0.1
    steered = run.sample(2, steps=4, steer=lambda denoiser: denoiser, sampler="dpm++sde").x
    assert abs(steered - full).max() < 1e-5
