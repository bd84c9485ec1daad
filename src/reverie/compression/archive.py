"""A file of compressed images: a line that says what is in it, then the bits."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.progress import Tell, silent
from reverie.base.spec import one_line
from reverie.compression.coder import ChainCoder, repeatable, stack_of
from reverie.diffusion.likelihood.steps import even_times
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

MAGIC = b"reverie images 1\n"
LONGEST_HEADER, LARGEST_FILE, MOST_IMAGES = 4096, 2**31, 10**7
STEPS = 100


class Header(BaseModel):
    """What a file holds.

    plain: how many of the images stand at the bottom of the stack as zlib left them, in so many bytes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[int, Field(ge=1, le=MOST_IMAGES)]
    shape: Annotated[tuple[int, ...], Field(min_length=3, max_length=3)]
    steps: Annotated[int, Field(ge=2, le=100_000)]
    end: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    plain: Annotated[int, Field(ge=0, le=MOST_IMAGES)]
    plain_bytes: Annotated[int, Field(ge=0, le=LARGEST_FILE)]
    weights: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    pixels: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    coder: Literal["bits back"] = "bits back"


@dataclass(frozen=True)
class Compressed:
    """What compressing came to: bits/dim of the whole file, and of the images that were coded by the model (`coded`)."""

    path: Path
    count: int
    size: int
    bits: float
    coded: float


def as_bytes(x: Tensor) -> bytes:
    """Return images in user units as bytes, one a number."""
    return (255 * x).round().to(torch.uint8).cpu().numpy().tobytes()


def _weights(model: Diffusion) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _words(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(-len(data) % 4), np.uint32)


def _plain(coder: ChainCoder, images: Sequence[Tensor]) -> tuple[int, bytes]:
    """Return how many images, as zlib leaves them, are bits enough to begin with, and these."""
    wanted = coder.bits_to_begin() / 8
    count, packed = 0, b""
    while len(packed) < wanted and count < len(images):
        count = min(len(images), max(count + 1, math.ceil(count * wanted / max(len(packed), 1))))
        packed = zlib.compress(b"".join(map(as_bytes, images[:count])), 9)
    return count, packed


def compress(
    run: Run, images: Tensor, out: Path, *, steps: int = STEPS, end: float | None = None, tell: Tell = silent
) -> Compressed:
    """Write images into a file, as short as the run's bound says.

    images: (N, C, H, W) in user units; end: the least noise of the chain, as for the bound.
    """
    model = run.diffusion
    if tuple(images.shape[1:]) != tuple(model.shape):
        raise UserError(f"the images have the shape {tuple(images.shape[1:])} and the run models {tuple(model.shape)}")
    if run.config.data.labels and not run.diffusion_settings.label_dropout:
        raise UserError("this run was trained with every label told; compression goes without labels: train with label_dropout")
    whole = model.codec.decode(model.codec.encode(images))
    if as_bytes(whole) != as_bytes(images):
        raise UserError("these images hold values that the run's data never had, and its model cannot code them")
    end = model.denoiser.schedule.t_min if end is None else end
    end = max(end, 1e-6)
    with repeatable():
        grid = even_times(model.denoiser.schedule, steps, end)
        coder = ChainCoder(model, grid)
        count, packed = _plain(coder, list(images))
        stack = stack_of(_words(packed), seal=True)
        before = stack.num_bits()
        for k in range(count, len(images)):
            coder.push(stack, images[k])
            tell("compressing", k + 1 - count, len(images) - count)
        spent = stack.num_bits() - before
    header = Header(
        count=len(images), shape=model.shape, steps=steps, end=end, plain=count, plain_bytes=len(packed),
        weights=_weights(model), pixels=hashlib.sha256(as_bytes(images)).hexdigest(),
    )  # fmt: skip
    body = MAGIC + header.model_dump_json().encode() + b"\n" + stack.get_compressed().astype("<u4").tobytes()
    with atomic(out) as aside:
        aside.write_bytes(body)
    size = math.prod(model.shape)
    coded = max(1, len(images) - count)
    return Compressed(out, len(images), len(body), 8 * len(body) / (len(images) * size), spent / (coded * size))


def read_header(path: Path) -> tuple[Header, bytes]:
    """Return what a file says it holds, and its bits; refuse what is no such file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if path.stat().st_size > LARGEST_FILE:
        raise UserError(f"{path} is larger than {LARGEST_FILE:,} bytes, which no file of compressed images is")
    data = path.read_bytes()
    rest = data.removeprefix(MAGIC)
    line, _, bits = rest.partition(b"\n")
    if len(rest) == len(data) or len(line) > LONGEST_HEADER:
        raise UserError(f"{path} is no file of images that reverie compressed")
    try:
        header = Header.model_validate_json(line)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from None
    if len(bits) % 4 or header.plain > header.count or not bits:
        raise UserError(f"{path} is damaged: its end is missing")
    return header, bits


def decompress(run: Run, path: Path, *, tell: Tell = silent) -> Tensor:
    """Return the images of a file, bit for bit: (N, C, H, W) in user units."""
    header, bits = read_header(path)
    model = run.diffusion
    if header.shape != tuple(model.shape) or header.weights != _weights(model):
        raise UserError(f"{path} was compressed by another model than {run.path}; give the run that it was made with")
    broken = UserError(
        f"{path} cannot be decoded: it is damaged, or this machine computes other last digits than the one that made it"
    )
    with repeatable():
        coder = ChainCoder(model, even_times(model.denoiser.schedule, header.steps, header.end))
        images = []
        try:
            stack = stack_of(np.frombuffer(bits, "<u4").astype(np.uint32))
            for k in range(header.count - header.plain):
                images.append(coder.pop(stack))
                tell("decompressing", k + 1, header.count - header.plain)
            packed = stack.get_compressed(unseal=True).tobytes()[: header.plain_bytes]
            plain = zlib.decompressobj().decompress(packed, header.plain * math.prod(header.shape) + 1)
            first = torch.frombuffer(bytearray(plain), dtype=torch.uint8).reshape(-1, *header.shape).float() / 255
        except (KeyError, ValueError, AssertionError, RuntimeError, zlib.error):
            raise broken from None
    found = torch.cat([first, *(x[None].cpu() for x in reversed(images))]) if images else first
    if len(found) != header.count or hashlib.sha256(as_bytes(found)).hexdigest() != header.pixels:
        raise broken
    return (255 * found).round() / 255  # as a data set gives them
