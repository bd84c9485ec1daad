"""Import and export of diffusers models: a folder with a UNet2DModel and a scheduler.

Time step k of T in diffusers is t = (k + 1) / T here, and its network is conditioned on k instead of the noise level.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from reverie.base.atomic_folders import atomic_folder
from reverie.base.errors import UserError
from reverie.base.files import own_file, read_own
from reverie.base.parse import read_json
from reverie.base.spec import Spec, build, complete, first_problem
from reverie.base.tensors import TensorSpec, read_tensors, tensor_specs
from reverie.base.visible import storable
from reverie.exchange.folders import write_run
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.nets import NETWORKS
from reverie.nets.diffusers import INSTALL, DiffusersUNet
from reverie.runs.config import Config, DataConfig, TrainingConfig, build_model
from reverie.runs.run import Run

NETWORK = "diffusers-unet"
WEIGHTS, PICKLE = "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin"
MAX_CONFIG = 2**18  # bytes
TARGETS = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
SCHEDULES = {"linear": "linear", "scaled_linear": "scaled-linear", "squaredcos_cap_v2": "cosine"}
WRITTEN = ("model_index.json", "unet/config.json", f"unet/{WEIGHTS}", "scheduler/scheduler_config.json")
# Keys of config.json that are also options of DiffusersUNet.
SHARED = (
    "down_block_types", "up_block_types", "layers_per_block", "mid_block_scale_factor", "add_attention",
    "norm_num_groups", "norm_eps", "act_fn", "dropout", "downsample_padding", "downsample_type", "upsample_type",
    "resnet_time_scale_shift", "time_embedding_type", "freq_shift", "flip_sin_to_cos", "center_input_sample",
)  # fmt: skip
DEFAULTS = {"norm_num_groups": 32, "layers_per_block": 2}  # of diffusers, where those of DiffusersUNet differ
Side = Annotated[int, Field(ge=1, le=1024)]


class ForeignConfig(BaseModel):
    """A config file of diffusers: required keys are checked, others are available in `more`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def more(self) -> dict[str, Any]:
        """The other keys, without comments."""
        extra = self.__pydantic_extra__ or {}
        return {key: value for key, value in extra.items() if not key.startswith("_") and value is not None}


class UNetConfig(ForeignConfig):
    """config.json of a UNet2DModel, except for keys that the network checks."""

    class_name: Literal["UNet2DModel"] = Field(alias="_class_name")
    sample_size: Side | tuple[Side, Side]
    in_channels: Annotated[int, Field(ge=1, le=64)] = 3
    out_channels: Annotated[int, Field(ge=1, le=128)] = 3
    block_out_channels: Annotated[tuple[int, ...], Field(min_length=1, max_length=8)] | None = None
    attention_head_dim: Annotated[int, Field(ge=1, le=2048)] | None = 8
    mid_block_type: Literal["UNetMidBlock2D"] | None = "UNetMidBlock2D"
    attn_norm_num_groups: None = None
    time_embedding_dim: None = None
    class_embed_type: None = None
    num_class_embeds: Annotated[int, Field(ge=1, le=100_001)] | None = None
    num_train_timesteps: Annotated[int, Field(ge=1, le=100_000)] | None = None


class SchedulerConfig(ForeignConfig):
    """scheduler_config.json: the noise schedule and the prediction target; the sampler of diffusers is ignored."""

    class_name: str = Field(alias="_class_name", max_length=100)
    num_train_timesteps: Annotated[int, Field(ge=2, le=100_000)] = 1000
    beta_start: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    beta_end: Annotated[float, Field(gt=0, lt=1)] = 0.02
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] | None = None
    trained_betas: None = None
    rescale_betas_zero_snr: Literal[False] = False
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    sigma_min: Annotated[float, Field(gt=0, le=10)] = 0.01
    sigma_max: Annotated[float, Field(gt=0, le=10**5)] = 1348.0

    @property
    def explodes(self) -> bool:
        """Whether the schedule is variance exploding (ScoreSdeVe)."""
        return self.class_name == "ScoreSdeVeScheduler"


def is_diffusers(folder: Path) -> bool:
    """Return whether a folder looks like a diffusers model."""
    return any((folder / name).is_file() for name in ("model_index.json", "unet/config.json", "config.json"))


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    path = folder / name
    if not path.is_file():
        raise UserError(f"{folder} has no {name}, which a diffusers model must have")
    try:
        return kind.model_validate(read_json(read_own(folder, name, MAX_CONFIG)))
    except ValidationError as error:
        raise UserError(f"{path} describes a model that cannot be imported: {first_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid: {error}") from None


def _locate(folder: Path) -> tuple[Path, str]:
    """Return the folder of the network, and the relative path of the scheduler's file."""
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    scheduler = "scheduler/scheduler_config.json"
    return unet, scheduler if (folder / scheduler).is_file() else "scheduler_config.json"


def settings_of_folder(folder: Path) -> tuple[DiffusionSettings, tuple[int, int, int], Path]:
    """Return the settings of a diffusers folder, the shape of its images, and the folder with its weights."""
    unet, scheduler = _locate(folder)
    net: UNetConfig = _read(unet, "config.json", UNetConfig)
    noise: SchedulerConfig = _read(folder, scheduler, SchedulerConfig)
    if noise.beta_schedule is None and not noise.explodes:
        raise UserError(f"{folder} has a {noise.class_name} without betas, which cannot be imported")
    if net.num_class_embeds is not None:
        raise UserError(f"{folder} is conditioned on classes without a null class for guidance, which cannot be imported")
    if net.out_channels != net.in_channels:
        raise UserError(f"{folder} predicts {net.out_channels} channels for {net.in_channels}, including variances, which"
                        " cannot be imported")  # fmt: skip
    shared = DEFAULTS | {key: value for key, value in net.more.items() if key in SHARED}
    if unknown := sorted(key for key, value in net.more.items() if key not in SHARED and value is not False):
        raise UserError(f"{unet / 'config.json'} sets {unknown[0]!r}, which Reverie does not support")
    shared |= {} if net.block_out_channels is None else {"widths": net.block_out_channels}
    if noise.explodes != (shared.get("time_embedding_type") == "fourier"):
        raise UserError(f"{folder} combines a network with {shared.get('time_embedding_type', 'positional')} time embedding and"
                        f" a {noise.class_name}, which do not match")  # fmt: skip
    height, width = net.sample_size if isinstance(net.sample_size, tuple) else (net.sample_size, net.sample_size)
    table: Spec = {} if noise.explodes else {
        "beta_schedule": noise.beta_schedule, "beta_start": noise.beta_start, "beta_end": noise.beta_end,
        "num_train_timesteps": noise.num_train_timesteps,
    }  # fmt: skip
    network = complete(NETWORKS, {
        "name": NETWORK, "channels": net.in_channels, "height": height, "width": width, **shared, **table,
        "mid_block": net.mid_block_type is not None, "attention_head_dim": net.attention_head_dim or 0,
    }, "network")  # fmt: skip
    settings = DiffusionSettings.model_validate({
        "target": "eps" if noise.explodes else TARGETS[noise.prediction_type], "sigma_data": 1.0, "label_dropout": 0.0,
        "codec": {"name": "pixels"}, "schedule": _schedule(noise), "network": network,
    })  # fmt: skip
    return settings.recorded(), (net.in_channels, height, width), unet


def _schedule(noise: SchedulerConfig) -> Spec:
    steps = {"steps": noise.num_train_timesteps}
    if noise.explodes:
        return {"name": "log-linear", "sigma_min": noise.sigma_min, "sigma_max": noise.sigma_max}
    if noise.beta_schedule == "squaredcos_cap_v2":
        return {"name": "cosine", **steps}
    scale = noise.num_train_timesteps / 1000  # betas in Reverie refer to 1,000 steps
    if noise.beta_schedule == "linear":
        return {"name": "linear", **steps, "beta_start": noise.beta_start, "beta_end": noise.beta_end, "scale": False}
    return {"name": "scaled-linear", **steps, "beta_start": noise.beta_start * scale, "beta_end": noise.beta_end * scale}


def import_diffusers(folder: Path, out: Path, name: str, overwrite: bool) -> Run:
    """Import a folder with a UNet2DModel and a scheduler as a run."""
    settings, shape, unet = settings_of_folder(folder)
    if not (unet / WEIGHTS).is_file():
        if (unet / PICKLE).exists():
            raise UserError(f"{unet} has its weights as a pickle ({PICKLE}), which can run code; download {WEIGHTS}")
        raise UserError(f"{unet} has no weights: {WEIGHTS} is missing; download it")
    own_file(unet, WEIGHTS)
    versions = {"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()}
    config = Config(
        versions=versions, data=DataConfig(name=storable(name), count=1, shape=shape), family=settings,
        training=TrainingConfig(steps=1, batch=64),
    )  # fmt: skip
    with torch.device("meta"):
        expected = build(NETWORKS, settings.network, "network")
    prefix = "unet."
    specs = {key.removeprefix(prefix): spec for key, spec in tensor_specs(expected.state_dict()).items()}

    def expected_tensors(_: None) -> dict[str, TensorSpec]:
        return specs

    config_file = f"{unet / 'config.json'}"
    tensors, _ = read_tensors(unet / WEIGHTS, expected_tensors, TypeAdapter(None), fits=config_file, foreign=True)
    model = build_model(config)
    net = model.get_submodule("denoiser.net")
    net.load_state_dict({f"{prefix}{key}": tensor for key, tensor in tensors.items()})
    return write_run(out, config, model, lambda run_folder: None, overwrite)


def export_diffusers(run: Run, out: Path, overwrite: bool) -> Path:
    """Export a run with a diffusers network as a diffusers folder."""
    settings = run.diffusion_settings
    net = run.diffusion.denoiser.net
    if not isinstance(net, DiffusersUNet):
        raise UserError(f"{run.path} has the network {settings.network['name']!r}, which diffusers does not have;"
                        f" export to .onnx, or train with --network {NETWORK}")  # fmt: skip
    names = {target: prediction_type for prediction_type, target in TARGETS.items()}
    if settings.sigma_data != 1 or settings.target not in names or settings.codec["name"] != "pixels":
        raise UserError(f"{run.path} has a target or codec without a diffusers scheduler; train with --target v, eps or x0 and"
                        " --no-latent")  # fmt: skip
    try:
        from diffusers import DDPMPipeline, DDPMScheduler, ScoreSdeVePipeline, ScoreSdeVeScheduler
    except ImportError:
        raise UserError(f"--format diffusers needs diffusers: {INSTALL}") from None
    network: dict[str, Any] = settings.network
    if net.by_sigma:
        ends = {key: settings.schedule[key] for key in ("sigma_min", "sigma_max") if key in settings.schedule}
        pipeline: Any = ScoreSdeVePipeline(net.unet, ScoreSdeVeScheduler(**ends))
    else:
        table = {key: network[key] for key in ("beta_schedule", "beta_start", "beta_end", "num_train_timesteps")}
        pipeline = DDPMPipeline(
            net.unet, DDPMScheduler(**table, prediction_type=names[settings.target], clip_sample=run.diffusion.clips)
        )
    with atomic_folder(out, lambda name: name in WRITTEN, overwrite) as temporary:
        pipeline.save_pretrained(temporary, safe_serialization=True)
    return out
