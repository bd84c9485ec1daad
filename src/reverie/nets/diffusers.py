"""The U-Net of the package diffusers, `UNet2DModel`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from reverie.base.errors import UserError

INSTALL = "pip install 'reverie[exchange]'"
FLOOR = 1e-6  # minimum noise level, as in `reverie.diffusion.denoiser.noise_level`
STEP_TOLERANCE = 0.02  # time steps closer than this to an integer are rounded

Down = Literal[
    "DownBlock2D", "AttnDownBlock2D", "ResnetDownsampleBlock2D", "SkipDownBlock2D", "AttnSkipDownBlock2D"
]  # fmt: skip
Up = Literal["UpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D", "SkipUpBlock2D", "AttnSkipUpBlock2D"]
Wide = Annotated[int, Field(ge=4, le=2048)]


def alpha_bars(schedule: str, start: float, end: float, steps: int) -> np.ndarray:
    """Return prod (1 - beta) of each time step of diffusers, (steps,), as in its schedulers."""
    if schedule == "squaredcos_cap_v2":  # arXiv:2102.09672
        nodes = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - nodes[1:] / nodes[:-1], 0.999)
    elif schedule == "scaled_linear":
        betas = np.linspace(start**0.5, end**0.5, steps) ** 2
    else:
        betas = np.linspace(start, end, steps)
    return np.asarray(np.cumprod(1 - betas))


class DiffusersUNet(nn.Module):
    """`UNet2DModel` of diffusers, conditioned on the time step, or on sigma for time_embedding_type=fourier (arXiv:2006.11239).

    It expects data of unit variance: train it with sigma_data 1.  Row 0 of the class embeddings is the null label.
    x: (B, C, H, W); level: (B,); cond: (B,) or None.  widths is block_out_channels; the other options have the names of
    diffusers.
    """

    def __init__(
        self,
        channels: Annotated[int, Field(ge=1, le=64)] = 1,
        height: Annotated[int, Field(ge=1, le=1024)] = 28,
        width: Annotated[int, Field(ge=1, le=1024)] = 28,
        labels: Annotated[int, Field(ge=0, le=100_000)] = 0,
        widths: Annotated[tuple[Wide, ...], Field(min_length=1, max_length=8)] = (32, 64),
        down_block_types: Annotated[tuple[Down, ...], Field(min_length=1, max_length=8)] = ("DownBlock2D", "AttnDownBlock2D"),
        up_block_types: Annotated[tuple[Up, ...], Field(min_length=1, max_length=8)] = ("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block: Annotated[int, Field(ge=1, le=8)] = 1,
        mid_block: bool = True,
        mid_block_scale_factor: Annotated[float, Field(gt=0, le=100)] = 1.0,
        add_attention: bool = True,
        attention_head_dim: Annotated[int, Field(ge=0, le=2048)] = 8,
        norm_num_groups: Annotated[int, Field(ge=1, le=256)] = 8,
        norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-5,
        act_fn: Literal["silu", "swish", "mish", "gelu", "relu"] = "silu",
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        downsample_padding: Annotated[int, Field(ge=0, le=1)] = 1,
        downsample_type: Literal["conv", "resnet"] = "conv",
        upsample_type: Literal["conv", "resnet"] = "conv",
        resnet_time_scale_shift: Literal["default", "scale_shift"] = "default",
        time_embedding_type: Literal["positional", "fourier"] = "positional",
        freq_shift: Annotated[int, Field(ge=0, le=1)] = 0,
        flip_sin_to_cos: bool = True,
        center_input_sample: bool = False,
        beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear",
        beta_start: Annotated[float, Field(gt=0, lt=1)] = 1e-4,
        beta_end: Annotated[float, Field(gt=0, lt=1)] = 0.02,
        num_train_timesteps: Annotated[int, Field(ge=2, le=100_000)] = 1000,
    ) -> None:
        super().__init__()
        try:
            from diffusers import UNet2DModel
        except ImportError:
            raise UserError(f"the network diffusers-unet needs the package diffusers; install it with: {INSTALL}") from None
        unit = 2 ** (len(widths) - 1)
        if height % unit or width % unit:
            raise UserError(f"this U-Net needs a height and width divisible by {unit}, got {height}x{width}")
        if not len(widths) == len(down_block_types) == len(up_block_types):
            raise UserError("diffusers-unet needs as many down_block_types and up_block_types as widths")
        self.dropout, self.by_sigma = dropout, time_embedding_type == "fourier"
        bars = alpha_bars(beta_schedule, beta_start, beta_end, num_train_timesteps)
        if not (bars.min() > 0 and bars.max() < 1):
            raise UserError(f"betas from {beta_start} to {beta_end} leave no signal or no noise at some time step")
        # decreasing; a plain float64 attribute on the CPU, which is never cast or moved
        self.log_snr = torch.tensor(np.log(bars) - np.log1p(-bars), dtype=torch.float64, device="cpu")
        options: dict[str, Any] = {
            "sample_size": (height, width), "in_channels": channels, "out_channels": channels,
            "block_out_channels": widths, "down_block_types": down_block_types, "up_block_types": up_block_types,
            "layers_per_block": layers_per_block, "mid_block_type": "UNetMidBlock2D" if mid_block else None,
            "mid_block_scale_factor": mid_block_scale_factor, "add_attention": add_attention,
            "attention_head_dim": attention_head_dim or None, "norm_num_groups": norm_num_groups, "norm_eps": norm_eps,
            "act_fn": act_fn, "dropout": dropout, "downsample_padding": downsample_padding, "downsample_type": downsample_type,
            "upsample_type": upsample_type, "resnet_time_scale_shift": resnet_time_scale_shift,
            "time_embedding_type": time_embedding_type, "freq_shift": freq_shift, "flip_sin_to_cos": flip_sin_to_cos,
            "center_input_sample": center_input_sample, "num_class_embeds": labels + 1 if labels else None,
        }  # fmt: skip
        try:
            self.unet: Any = UNet2DModel(**options)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise UserError(f"UNet2DModel rejects these options: {' '.join(str(error).split())[:200]}") from None
        self.labels = labels

    def levels_and_steps(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-SNR of noise levels and their time steps, rounded within STEP_TOLERANCE of an integer: (B,) each."""
        e = level.to(device="cpu", dtype=torch.float64).clamp(-13.815, 13.815).exp()
        log_snr = (e * (1 + FLOOR) - FLOOR).log() - (1 + FLOOR - FLOOR * e).log()
        table = self.log_snr
        below = ((table[None] >= log_snr[:, None]).sum(1) - 1).clamp(0, len(table) - 2)
        step = (below + (table[below] - log_snr) / (table[below] - table[below + 1])).clamp(0, len(table) - 1)
        return log_snr, torch.where((step - step.round()).abs() < STEP_TOLERANCE, step.round(), step)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        """Return the output, (B, C, H, W); with sigma conditioning it is eps = -sigma score."""
        if self.labels:
            cond = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device) if cond is None else cond + 1
        log_snr, step = (level, level) if level.is_meta else self.levels_and_steps(level)
        if not self.by_sigma:
            out: Tensor = self.unet(x, step.to(x), cond if self.labels else None, return_dict=False)[0]
            return out
        sigma = (-log_snr / 2).exp().to(x)
        scale = (sigma[:, None, None, None] ** 2 + 1).sqrt()  # the network expects x = x0 + sigma eps
        score: Tensor = self.unet(scale * x, sigma, cond if self.labels else None, return_dict=False)[0]
        return -sigma[:, None, None, None] * score
