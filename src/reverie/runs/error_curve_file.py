"""The error curve of a run, measured on training data and cached in its folder."""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field, model_validator

from reverie.base.config_section import ConfigSection
from reverie.base.errors import UserError
from reverie.base.files import atomic, own_file, read_own
from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.diffusion.error_curve import ErrorCurve
from reverie.runs.source_data import load_source_data

if TYPE_CHECKING:
    from reverie.runs.run import Run

ERROR_CURVE_FILE = "spread.json"
MEASURED, NUMBERS = 128, 8192  # minimum numbers of training data, and of values in them, for the measurement
MAX_BYTES = 2**16

LogSnrs = Annotated[
    tuple[Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)], ...], Field(min_length=2, max_length=1024)
]
Shares = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)], ...], Field(min_length=2, max_length=1024)
]


class ErrorCurveFile(ConfigSection):
    """The content of the file: a hash of the measured weights, and the points of an `ErrorCurve`."""

    weights: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    log_snr: LogSnrs
    share: Shares

    @model_validator(mode="after")
    def _rising(self) -> ErrorCurveFile:
        rises = all(a < b for a, b in zip(self.log_snr, self.log_snr[1:], strict=False))
        if len(self.log_snr) != len(self.share) or not rises:
            raise ValueError("log_snr must increase and have the length of share")
        return self

    def curve(self) -> ErrorCurve:
        """Return the curve."""
        return ErrorCurve(*(torch.tensor(part, dtype=torch.float64) for part in (self.log_snr, self.share)))


def _hash_weights(run: Run) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(run.model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def measure_error_curve(run: Run, train: Dataset, seed: int = 0) -> ErrorCurve:
    """Measure the curve on evenly spaced training data."""
    count = min(len(train), max(MEASURED, NUMBERS // math.prod(train.shape)))
    x, labels = train.batch(torch.linspace(0, len(train) - 1, count, dtype=torch.float64).long())
    device, cond = run.diffusion.device, labels if run.conditional else None
    seeds, share = image_seeds(seed, len(x)), torch.zeros(())
    for part in torch.arange(len(x)).split(run.batch_size()):
        curve = run.diffusion.mean_error(x[part].to(device), None if cond is None else cond[part].to(device), seeds[part])
        share = share + curve.share * (len(part) / len(x))
    return ErrorCurve(curve.log_snr, share)


def load_error_curve(run: Run) -> ErrorCurve:
    """Return the error curve of a run, from its cache or measured and cached if the folder is writable."""
    file, weights = own_file(run.path, ERROR_CURVE_FILE), _hash_weights(run)
    with suppress(OSError, ValueError):  # missing or damaged
        cached = ErrorCurveFile.model_validate_json(read_own(run.path, ERROR_CURVE_FILE, MAX_BYTES))
        if cached.weights == weights:
            return cached.curve()
    try:
        data = load_source_data(run.config.data, folder=run.path)
    except UserError as error:
        raise UserError(f"the optimal variance needs the training data of the run: {error}") from None
    curve = measure_error_curve(run, data.split(run.config.data.seed)[0])
    content = ErrorCurveFile(weights=weights, log_snr=tuple(curve.log_snr.tolist()), share=tuple(curve.share.tolist()))
    with suppress(UserError), atomic(file) as path:  # the folder may be read-only
        path.write_text(content.model_dump_json() + "\n", encoding="utf-8")
    return curve
