"""Measurements against numpy, scipy and Pillow; their adjoints; systems solved side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from reverie.autodiff import vjp
from reverie.autodiff.conjugate import conjugate_residuals
from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.diffusion.measurements import MEASUREMENTS, Blur, Degradation, Grey, Keep, Pool


def image(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_pooling_is_the_mean_over_squares() -> None:
    x = image(2, 3, 8, 12)
    expected = x.numpy().reshape(2, 3, 2, 4, 3, 4).mean((3, 5))
    np.testing.assert_allclose(Pool(4)(x).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("width", [0.4, 1.0, 2.5, 9.0])
def test_blurring_is_that_of_scipy(width: float) -> None:
    x = image(2, 1, 11, 7)
    expected = [gaussian_filter(one, width, mode="nearest", radius=max(1, round(4 * width))) for one in x[:, 0].numpy()]
    np.testing.assert_allclose(Blur(width)(x)[:, 0].numpy(), np.stack(expected), rtol=1e-10, atol=1e-12)


def test_grey_is_that_of_pillow() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 5, 3), dtype=np.uint8)
    x = torch.from_numpy(pixels).double().permute(2, 0, 1)[None]
    np.testing.assert_allclose(Grey()(x)[0, 0].numpy(), np.asarray(Image.fromarray(pixels).convert("L")), atol=0.51)


@pytest.mark.parametrize("spec", ["upscale:factor=2", "deblur:width=1.5", "colour"])
def test_measurements_are_linear_keep_constants_and_have_the_declared_shape(spec: str) -> None:
    measure = build(MEASUREMENTS, spec, "task")
    x = image(2, 3, 8, 6)
    y = measure(x)
    assert tuple(y.shape[1:]) == measure.seen((3, 8, 6))
    torch.testing.assert_close(measure(2 * x - 1), 2 * y - 1)
    u = image(*y.shape, seed=1)
    torch.testing.assert_close((y * u).sum(), (x * vjp(measure, x, u)[1]).sum())
    assert y.dtype == torch.float64 and measure(x.float()).dtype == torch.float32


def test_keeping_some_numbers() -> None:
    known = torch.tensor([[True, False, True], [False, True, False]])
    x = image(4, 2, 3)
    torch.testing.assert_close(Keep(known)(x), torch.stack([x[:, 0, 0], x[:, 0, 2], x[:, 1, 1]], 1))


@pytest.mark.parametrize(
    ("measure", "shape", "message"), [(Pool(4), (1, 28, 30), "squares of 4"), (Grey(), (1, 8, 8), "3 channels")]
)
def test_measurements_that_do_not_fit(measure: Degradation, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure.seen(shape)


@pytest.mark.parametrize(
    "spec", ["upscale:factor=1", "upscale:factor=2.5", "deblur:width=0", "deblur:width=nan", "color", "colour:x=1"]
)
def test_tasks_that_make_no_sense(spec: str) -> None:
    with pytest.raises(UserError):
        build(MEASUREMENTS, spec, "task")


def systems(kind: str, count: int = 4, size: int = 6) -> Tensor:
    made = torch.randn(count, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    if kind == "positive":
        return made @ made.mT + 0.1 * torch.eye(size, dtype=torch.float64)
    return made + made.mT if kind == "indefinite" else made


@pytest.mark.parametrize("kind", ["positive", "indefinite", "neither"])
def test_systems_are_solved_in_as_many_products_as_they_have_numbers(kind: str) -> None:
    matrices, right = systems(kind), image(4, 2, 3, seed=3) - 0.5

    def product(v: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", matrices, v.flatten(1)).reshape(v.shape)

    solved = conjugate_residuals(product, right, 1e-10, 6)
    expected = torch.linalg.solve(matrices, right.flatten(1)).reshape(right.shape)
    torch.testing.assert_close(solved.x, expected, rtol=1e-6, atol=1e-7)
    assert solved.products == 6 and solved.residual.max() < 1e-8
    residuals = torch.stack([conjugate_residuals(product, right, 1e-10, k).residual for k in range(7)])
    assert (residuals[1:] <= residuals[:-1] + 1e-12).all() and (residuals[0] == 1).all()


def test_a_member_rests_when_it_is_solved_and_does_not_feel_the_others() -> None:
    matrices = systems("positive")
    matrices[0] = torch.eye(6, dtype=torch.float64)
    right = image(4, 6, seed=3)
    right[1] = 0
    solved = conjugate_residuals(lambda v: torch.einsum("bij,bj->bi", matrices, v), right, 1e-10, 6)
    torch.testing.assert_close(solved.x[0], right[0])
    assert (solved.x[1] == 0).all() and solved.residual[1] == 0 and solved.x.isfinite().all()
    alone = conjugate_residuals(lambda v: torch.einsum("bij,bj->bi", matrices[2:3], v), right[2:3], 1e-10, 6)
    torch.testing.assert_close(alone.x[0], solved.x[2])
