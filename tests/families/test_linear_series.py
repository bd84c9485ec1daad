"""Linear series against statsmodels and closed forms."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import reverie
from reverie import api
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.noise import image_seeds
from reverie.data.time_series import OSCILLATION
from reverie.families.linear_series import SeriesModel, fit_first_order, fit_least_squares
from reverie.gallery.series import continuation, sample_autocovariance


def first_order(rho: float, mu: float, sigma: float, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Series of order 1 from their stationary state on: (N, T)."""
    eps = np.random.default_rng(seed).normal(size=shape)
    x = np.empty(shape)
    x[:, 0] = sigma / (1 - rho**2) ** 0.5 * eps[:, 0]
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + sigma * eps[:, t]
    return torch.from_numpy(x + mu)


def model_of(steps: Tensor, noise: Tensor, mean: Tensor, moments: int) -> SeriesModel:
    model = SeriesModel((moments, len(mean)), len(steps)).double()
    for name, value in (("steps", steps), ("noise", noise), ("mean", mean)):
        getattr(model, name).copy_(value)
    return model


def second_order() -> SeriesModel:
    """A stationary series of two numbers a moment and order 2."""
    steps = torch.tensor([[[0.5, 0.2], [-0.1, 0.4]], [[-0.3, 0.0], [0.1, 0.2]]])
    return model_of(steps, torch.tensor([[1.0, 0.3], [0.3, 0.5]]), torch.tensor([1.0, -2.0]), 6)


def joint(model: SeriesModel) -> np.ndarray:
    """The covariance of all numbers of a series, by gamma: (T C, T C)."""
    gamma, t, c = model.autocovariance(model.length).numpy(), model.length, model.width
    whole = np.empty((t, c, t, c))
    for i, j in product(range(t), range(t)):
        whole[i, :, j] = gamma[i - j] if i >= j else gamma[j - i].T
    return whole.reshape(t * c, t * c)


def test_maximum_likelihood_is_that_of_statsmodels() -> None:
    arima = pytest.importorskip("statsmodels.tsa.arima.model")
    x = first_order(0.7, 3.0, 0.5, (1, 300))
    rho, mu, variance = (float(v) for v in fit_first_order(x))
    theirs = dict(zip(("mu", "rho", "variance"), arima.ARIMA(x[0].numpy(), order=(1, 0, 0)).fit().params, strict=True))
    assert (rho, mu, variance) == pytest.approx((theirs["rho"], theirs["mu"], theirs["variance"]), abs=2e-3)


def test_least_squares_are_those_of_statsmodels() -> None:
    var = pytest.importorskip("statsmodels.tsa.api")
    x = second_order()
    x.length = 400
    series = x.sample(image_seeds(0, 1), None).double()
    theirs = var.VAR(series[0].numpy()).fit(2, trend="c")
    mean, steps, _ = fit_least_squares(series, 2)
    assert np.allclose(steps.numpy(), theirs.coefs, atol=1e-6)
    wanted = np.linalg.solve(np.eye(2) - theirs.coefs.sum(0), theirs.params[0])
    assert np.allclose(mean.numpy(), wanted, atol=1e-5)


def test_many_short_series_give_the_truth_back() -> None:
    rho, mu, variance = (float(v) for v in fit_first_order(first_order(-0.6, 1.0, 2.0, (2000, 8))))
    # of 16,000 numbers, by the information of each: (1 - rho²) of rho, sigma² / (1 - rho)² of mu, 2 sigma^4 of sigma²
    assert rho == pytest.approx(-0.6, abs=4 * (0.64 / 14000) ** 0.5)
    assert mu == pytest.approx(1.0, abs=4 * 2 / 1.6 / 16000**0.5)
    assert variance == pytest.approx(4.0, abs=4 * (32 / 16000) ** 0.5)


def test_gamma_is_the_closed_form_and_that_of_samples() -> None:
    rho, sigma = 0.8, 0.5
    model = model_of(torch.tensor([[[rho]]]), torch.tensor([[sigma**2]]), torch.zeros(1), 30)
    wanted = sigma**2 * rho ** np.arange(11) / (1 - rho**2)
    assert np.allclose(model.autocovariance(10)[:, 0, 0].numpy(), wanted)
    found, error = sample_autocovariance(model.sample(image_seeds(3, 4000), None), 10)
    assert bool((np.abs(found.numpy() - wanted) < 4.5 * error.numpy()).all())


def test_the_likelihood_is_that_of_all_numbers_together() -> None:
    model = second_order()
    x = model.sample(image_seeds(1, 5), None)
    wanted = multivariate_normal(model.mean.repeat(6).numpy(), joint(model)).logpdf(x.flatten(1).numpy())
    assert np.allclose(model.log_prob(x, None, torch.empty(0)).numpy(), wanted)


def test_what_is_drawn_has_the_covariance_of_all_numbers_together() -> None:
    model = second_order()
    x = (model.sample(image_seeds(0, 20_000), None) - model.mean).flatten(1).double()
    wanted = joint(model)
    error = np.sqrt((np.outer(wanted.diagonal(), wanted.diagonal()) + wanted**2) / 20_000)
    assert np.abs((x.T @ x / len(x)).numpy() - wanted).max() < 5 * error.max()


def test_predictions_are_the_conditional_of_all_numbers_together() -> None:
    model, whole = second_order(), joint(second_order())
    x = model.sample(image_seeds(2, 1), None)[0].double()
    mean, deviation = model.predict(x[:3], 3)
    d = (x[:3] - model.mean).flatten().numpy()
    gain = whole[6:, :6] @ np.linalg.inv(whole[:6, :6])
    assert np.allclose((mean - model.mean).flatten().numpy(), gain @ d)
    assert np.allclose(deviation.flatten().numpy() ** 2, (whole[6:, 6:] - gain @ whole[:6, 6:]).diagonal())
    with pytest.raises(UserError, match="needs 2 past time steps"):
        model.predict(x[:1], 3)


def test_a_nonstationary_series_warns_and_is_shrunk() -> None:
    walk = torch.from_numpy(1.02 ** np.arange(200.0)).reshape(2, 100, 1)
    model = SeriesModel((100, 1), 2)
    with pytest.warns(ReverieWarning, match="not stationary"):
        list(model.fit(walk, None, 0))
    assert float(torch.linalg.eigvals(model.parts[1]).abs().max()) < 1
    assert abs(float(fit_first_order(walk[..., 0])[0])) < 1


def test_a_run_finds_the_steps_of_its_data_and_continues_them(tmp_path: Path) -> None:
    run = reverie.train("oscillation", tmp_path / "run", family="ar:order=2", window=40, progress=False)
    found = reverie.inspect(run.path)
    assert np.allclose(np.ravel(found["coefficients"]), OSCILLATION, atol=0.03)
    files = api.gallery("series", tmp_path / "g", run=run)
    assert [path.name for path in files] == ["series.png", "continuation.png", "autocovariance.png"]
    x = torch.from_numpy(run.sample(1).x[0])
    middle, bands = continuation(run, x, 20)
    assert middle.shape == (20,) and bool((bands["95 %"][0] < bands["50 %"][0]).all())
    with pytest.raises(UserError, match=r"series.* gaussian takes points and images"):
        reverie.train("oscillation", tmp_path / "other", family="gaussian")
    with pytest.raises(UserError, match="order 40"):
        reverie.train("oscillation", tmp_path / "other", family="ar:order=40", window=40)
