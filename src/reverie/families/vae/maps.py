"""Autoencoders with a feature map as latent: each patch of an image, with its neighbours, becomes a few channels.

They are initialized as the principal components of patches, the linear map with the smallest error for this number of channels
(Eckart and Young 1936).  The parallel convolutions are initialized to zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.nets.unet import zero_init

MIN_RELATIVE_STD = 1e-3  # smallest standard deviation of a component, as a share of the first one's
INITIAL_LOG_STD = -3.0  # initial log standard deviation of a code; codes have standard deviation 1


class LocalResidual(nn.Module):
    """h + conv(SiLU(conv(SiLU(h)))), initially h; without normalisation, so that a position depends on its neighbours only.

    Hidden parts of an image thus do not change the codes of known parts.  h: (B, width, h, w).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), zero_init(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        """Return (B, width, h, w)."""
        out: Tensor = h + self.second(functional.silu(self.first(functional.silu(h))))
        return out


class LinearPlusConv(nn.Module):
    """A linear map of each position plus convolutions that are initially zero."""

    def __init__(self, inputs: int, outputs: int, width: int, blocks: int, parameter_maps: int = 1) -> None:
        super().__init__()
        self.linear, self.parameter_maps = nn.Conv2d(inputs, outputs, 1), parameter_maps
        self.enter = nn.Conv2d(inputs, width, 3, padding=1)
        self.blocks = nn.Sequential(*(LocalResidual(width) for _ in range(blocks)))
        self.leave = zero_init(nn.Conv2d(width, parameter_maps * outputs, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, parameter_maps * outputs, h, w); the linear map contributes to the first `outputs` channels."""
        x = x.contiguous(memory_format=torch.channels_last)  # faster on a CPU
        added: Tensor = self.leave(functional.silu(self.blocks(self.enter(x))))
        linear = self.linear(x)
        return added + functional.pad(linear, (0, 0, 0, 0, 0, (self.parameter_maps - 1) * linear.shape[1]))


class MapEncoder(nn.Module):
    """(B, C, H, W) -> (B, parameter_maps * c, H / patch, W / patch)."""

    def __init__(self, shape: tuple[int, ...], latent: int, parameter_maps: int, patch: int, width: int, blocks: int) -> None:
        super().__init__()
        self.patch, self.net = patch, LinearPlusConv(shape[0] * patch**2, latent, width, blocks, parameter_maps)
        if parameter_maps == 2:
            assert self.net.leave.bias is not None
            nn.init.constant_(self.net.leave.bias[latent:], INITIAL_LOG_STD)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the feature map; `cond` is ignored."""
        out: Tensor = self.net(functional.pixel_unshuffle(x, self.patch))
        return out


class MapDecoder(nn.Module):
    """The inverse direction: (B, c, h, w) -> (B, C, H, W, 1)."""

    def __init__(self, shape: tuple[int, ...], latent: int, patch: int, width: int, blocks: int) -> None:
        super().__init__()
        self.patch, self.net = patch, LinearPlusConv(latent, shape[0] * patch**2, width, blocks)

    def forward(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the image; `cond` is ignored."""
        return functional.pixel_shuffle(self.net(z), self.patch)[..., None]


@torch.no_grad()
def begin_with_components(encoder: MapEncoder, decoder: MapDecoder, x: Tensor) -> None:
    """Initialize with the principal components of patches, scaled to unit variance.  x: (N, C, H, W), mean 0."""
    patches = functional.pixel_unshuffle(x, encoder.patch).movedim(1, -1).flatten(0, 2)  # (positions, C patch²)
    moments = (patches.T.double() @ patches.double() / len(patches)).cpu()
    values, vectors = torch.linalg.eigh(moments)
    project, reconstruct = encoder.net.linear, decoder.net.linear
    count = project.out_channels
    deviations = values.flip(0)[:count].clamp_min(0).sqrt()
    deviations = deviations.clamp_min(MIN_RELATIVE_STD * float(deviations[0]) + 1e-6)
    axes = vectors.flip(1)[:, :count]  # (C patch², c)
    project.weight.copy_((axes / deviations).T[..., None, None])
    reconstruct.weight.copy_((axes * deviations)[..., None, None])
    for layer in (project, reconstruct):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def map_latent(shape: tuple[int, ...], latent: int, patch: int) -> tuple[int, int, int]:
    """Return the shape of the feature map; raise a UserError if there is none."""
    if len(shape) != 3:
        raise UserError(f"layers=map needs images, and these are points of {shape[0]} coordinates; give layers=dense")
    if shape[1] % patch or shape[2] % patch:
        raise UserError(f"images of {shape[1]}x{shape[2]} have no patches of {patch}x{patch}; give another patch")
    if latent > shape[0] * patch**2:
        raise UserError(f"the latent has more channels than a patch has values: {latent} > {shape[0] * patch**2}; give fewer")
    return latent, shape[1] // patch, shape[2] // patch
