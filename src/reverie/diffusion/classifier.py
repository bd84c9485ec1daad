"""A noise-aware classifier, for classifier guidance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.base.scalar import Time, expand, sqrt
from reverie.diffusion.denoiser import noise_level
from reverie.diffusion.schedule import Schedule
from reverie.nets.classify import network_for


class Classifier(nn.Module):
    """log p(label | x at time t), for any schedule: its network receives c_in x and the noise level, as a denoiser's does.

    logits = prior + alpha k c_in net(c_in x, level),  c_in = 1 / sqrt(alpha² k² + sigma²), k = sigma_data.  The factor alpha
    makes the gradient vanish with the signal, like the exact one, so that sigma² / alpha times the gradient stays finite.
    """

    def __init__(self, schedule: Schedule, shape: tuple[int, ...], classes: int, sigma_data: float, seed: int = 0) -> None:
        super().__init__()
        self.schedule, self.sigma_data = schedule, sigma_data
        self.net = network_for(shape, classes, seed)
        self.prior = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor, t: Time) -> Tensor:
        """Return the logits, (B, classes).  x: (B, ...) in model units; t: float or (B,)."""
        alpha, sigma = self.schedule(t)
        c_in = 1 / sqrt(alpha**2 * self.sigma_data**2 + sigma**2)
        level = torch.as_tensor(noise_level(alpha, sigma), dtype=torch.float64).to(device=x.device, dtype=x.dtype)
        scores: Tensor = self.net(expand(c_in, x) * x, level.expand(len(x)))
        return self.prior + expand(alpha * self.sigma_data * c_in, scores) * scores

    def log_prob(self, x: Tensor, t: Time, label: Tensor) -> Tensor:
        """Return log p(label | x), (B,).  label: (B,)."""
        scores: Tensor = self(x, t)
        return scores.log_softmax(-1).gather(1, label[:, None])[:, 0]
