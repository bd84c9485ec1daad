"""Networks: maps from noisy data, noise level and condition to an output, independent of the diffusion code."""

from __future__ import annotations

from torch import nn

from reverie.nets.diffusers import DiffusersUNet
from reverie.nets.mlp import RBF, ConditionalMLP
from reverie.nets.transformer import Transformer
from reverie.nets.unet import UNet

NETWORKS: dict[str, type[nn.Module]] = {
    "mlp": ConditionalMLP, "rbf": RBF, "unet": UNet, "transformer": Transformer, "diffusers-unet": DiffusersUNet,
}  # fmt: skip

__all__ = ["NETWORKS"]
