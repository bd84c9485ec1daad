"""Inversion and interpolation against the exact flow of a Gaussian."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.samplers import SAMPLERS, start, trajectory
from reverie.diffusion.samplers.grids import Uniform
from reverie.diffusion.schedule import Cosine, Linear, Rectified, Schedule
from reverie.steering.editing import check_strengths, invert_to_noise, slerp, unit_noise

MEAN = torch.tensor([0.4, -0.2], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
DATA = torch.tensor([[0.9, 0.1], [-0.5, -0.6], [0.3, 0.4]], dtype=torch.float64)


def there_and_back(oracle: GaussianDenoiser, name: str, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x at the first time of the inversion, the noise, and x where the sampling reaches the same time."""
    grid = Uniform()(oracle.schedule, steps)
    frames = list(invert_to_noise(oracle, SAMPLERS[name](), DATA, grid.flip(0)))
    top = frames[-1]
    x = start(oracle.schedule, top.t, unit_noise(oracle.schedule, top.x, top.t))
    back = list(trajectory(oracle, SAMPLERS[name](), x, grid, Noise(torch.zeros(3, dtype=torch.int64))))[-1]
    return frames[0].x, top.x, back.x


def slope(errors: list[float]) -> float:
    return math.log2(errors[0] / errors[-1]) / (len(errors) - 1)


@pytest.mark.parametrize("make", [Linear, Cosine, Rectified], ids=lambda s: s.__name__)
@pytest.mark.parametrize(("name", "order"), [("ddim", 1), ("heun", 2)])
def test_inversion_follows_the_flow_at_its_order(name: str, order: int, make: type[Schedule]) -> None:
    oracle = GaussianDenoiser(make(), MEAN, COVARIANCE)
    there, back = [], []
    for steps in (33, 65, 129, 257):
        first, top, again = there_and_back(oracle, name, steps)
        exact = oracle.flow(first, oracle.schedule.t_min, 1.0)
        there.append(float((top - exact).norm()))
        back.append(float((again - first).norm()))
    assert slope(there) > order - 0.25 and slope(back) > order - 0.25
    assert back[-1] < (0.03 if order == 1 else 1e-3)


def test_inversion_begins_at_the_data() -> None:
    oracle = GaussianDenoiser(Cosine(), MEAN, COVARIANCE)
    first, _, _ = there_and_back(oracle, "ddim", 9)
    assert float((oracle(first, oracle.schedule.t_min).x0 - DATA).abs().max()) < 1e-4


def test_slerp_keeps_norms_and_rotates_uniformly() -> None:
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, 4, 5, dtype=torch.float64, generator=random) for _ in range(2))
    b = b / b.norm() * a.norm()
    share = torch.linspace(0, 1, 11)
    arc = slerp(a, b, share)
    torch.testing.assert_close(arc.flatten(1).norm(dim=1), a.norm().expand(11))
    torch.testing.assert_close(arc[0], a)
    torch.testing.assert_close(arc[-1], b)
    cosines = torch.nn.functional.cosine_similarity(arc[:-1].flatten(1), arc[1:].flatten(1))
    torch.testing.assert_close(cosines, cosines[:1].expand(10))
    torch.testing.assert_close(slerp(a, 3 * b, share).flatten(1).norm(dim=1), a.norm() * (1 + 2 * share.double()))
    torch.testing.assert_close(slerp(a, a, share), a.expand(11, -1, -1, -1))
    with pytest.raises(UserError, match="opposite"):
        slerp(a, -a, share)
    assert slerp(a.float(), b.float(), share).dtype == torch.float32


def test_strengths() -> None:
    assert check_strengths("0.2,1", 1e-3) == (0.2, 1.0) and check_strengths(0.6, 1e-3) == (0.6,)
    for bad in ("1.2", "0", "-0.1", "nan", "a", "", "0.0001"):
        with pytest.raises(UserError):
            check_strengths(bad, 1e-3)
