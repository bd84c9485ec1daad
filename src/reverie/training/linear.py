"""Baselines of a network: the loss of the best linear denoiser, and the noise that the first layer loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reverie.diffusion.learned import Learned
from reverie.diffusion.loss import Squared, weight_of
from reverie.diffusion.pair import row
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.noise_levels import T_RANGES, level_of

TIMES = 16  # times in each range of t at which the error of the filter is averaged
TARGETED = 0.25  # minimum share of noise in the target of a compared range, relative to the maximum
MAX_COORDINATES = 1024  # dimension of points up to which the full covariance is used


def power(z: Tensor) -> Tensor:
    """Return the variances of data along nearly independent directions: (D,) float64.

    For images these are the frequencies of each principal color; for points, the eigenvectors of the covariance.
    z: (n, C, H, W) or (n, D).
    """
    centred: Tensor = (z - z.mean(0)).double()
    unbiased = len(z) / max(1, len(z) - 1)
    if z.ndim == 2:
        is_wide = z.shape[1] > MAX_COORDINATES
        values: Tensor = centred.var(0, correction=0) if is_wide else torch.linalg.eigvalsh(centred.T @ centred / len(z))
        return values.clamp_min(0) * unbiased
    colors = centred.transpose(0, 1).flatten(1)
    _, basis = torch.linalg.eigh(colors @ colors.T)
    mixed = torch.einsum("nchw,cd->ndhw", centred, basis)
    strength: Tensor = torch.fft.fft2(mixed, norm="ortho").abs().square().mean(0)
    return strength.flatten() * unbiased


@dataclass(frozen=True)
class Filter:
    """The best linear denoiser of data with a known power spectrum (Wiener 1949), by its loss in each range of t.

    E|x0 - x0_hat|² = mean over S of S sigma² / (alpha² S + sigma²).  loss_levels: the filter's loss, in the units of the
    training loss; noise_levels: variance of the noise in the target, b², in the same units.
    """

    loss_levels: tuple[float, ...]
    noise_levels: tuple[float, ...]

    def missed(self, loss_levels: Sequence[float]) -> float:
        """Return the share of the noise that a network misses beyond the filter, in the range with most noise in the target."""
        if not max(self.noise_levels) > 0:  # the target is the clean data
            return 0.0
        k = max(k for k in range(T_RANGES) if self.noise_levels[k] >= TARGETED * max(self.noise_levels))
        return (loss_levels[k] - self.loss_levels[k]) / self.noise_levels[k]


def linear_filter(model: Diffusion, z: Tensor) -> Filter | None:
    """Return the loss of the best linear filter, without evaluating the network; None for fewer than 2 data.

    z: (n, ...) in model units; data that are not finite are ignored.  None also for losses other than the squared error, and
    for learned schedules, whose noise levels at each t change.
    """
    z, d = z[z.flatten(1).isfinite().all(1)], model.denoiser
    if len(z) < 2 or not isinstance(model.measure, Squared) or isinstance(d.schedule, Learned):
        return None
    start = d.schedule.t_min
    t = start + (1 - start) * (torch.arange(T_RANGES * TIMES, dtype=torch.float64) + 0.5) / (T_RANGES * TIMES)
    alpha, sigma = (torch.as_tensor(c, dtype=torch.float64)[:, None] for c in d.schedule(t))
    variances = power(z).cpu()
    error = (variances * sigma**2 / (alpha**2 * variances + sigma**2)).mean(1)
    level, weight = level_of(model, t, T_RANGES), weight_of(model.weight, d.schedule, t, d.target, d.sigma_data)
    norm = (alpha**2 + sigma**2).sqrt()[:, 0]
    _, b = row(d.target, alpha[:, 0] / norm, sigma[:, 0] / norm, d.sigma_data)
    unit_weight = weight_of("uniform", d.schedule, t, d.target, d.sigma_data)  # the target's own units

    def levels(values: Tensor) -> tuple[float, ...]:
        return tuple(float(values[level == k].mean()) for k in range(T_RANGES))

    return Filter(levels(error * weight), levels(torch.as_tensor(b).expand(len(t)) ** 2 * weight / unit_weight))


@dataclass(frozen=True)
class FirstMap:
    """Outputs (width) and inputs (folded) of the first layer of an image network at each position."""

    width: int
    folded: int

    @property
    def lost(self) -> float:
        """The share of white noise that the layer loses."""
        return max(0.0, 1 - self.width / self.folded)


@torch.no_grad()
def first_map(model: Diffusion) -> FirstMap | None:
    """Return the sizes of the first convolution, or dense layer on tokens, after the input; None without one."""
    maps: list[FirstMap] = []
    size = torch.Size(model.model_shape).numel()

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.ndim == 4 or (isinstance(layer, nn.Linear) and output.ndim == 3):
            width = output.shape[1 if isinstance(layer, nn.Conv2d) else 2]
            maps.append(FirstMap(width, round(size * width / output.numel())))

    layers = [m for m in model.denoiser.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        model.denoiser(torch.zeros(1, *model.model_shape, device=model.device), 0.5)
    finally:
        for hook in hooks:
            hook.remove()
    return maps[0] if maps else None
