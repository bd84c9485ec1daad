"""Lossless compression of images into a file, and decompression."""

from __future__ import annotations

import hashlib
import math
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.noise import image_seeds
from reverie.base.progress import OnProgress, silent
from reverie.compression.chain import TIME_UNITS, Chain, choose_chain
from reverie.compression.coder import FINENESS, ChainCoder, Stack, deterministic, initial_bits, stack_of
from reverie.compression.container import (
    MAX_IMAGES,
    MAX_IMAGES_PER_BYTE,
    MAX_STEPS,
    Header,
    check_amount,
    groups,
    pack,
    pack_names,
    read,
)
from reverie.compression.images import check_file, other_sizes, to_unit_range
from reverie.compression.results import Compressed, Decompressed, check_out
from reverie.data.dataset import evenly_spaced_indices
from reverie.diffusion.likelihood import mean_and_error
from reverie.draw.picture import channels_last
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

STEPS = 50
MAX_BATCH = 64  # maximum batch size
CHAIN_IMAGES = 8  # number of images for which the chain is chosen
BOUND_IMAGES = 64  # number of images for the continuous-time bound


def _weights(model: Diffusion) -> bytes:
    digest = hashlib.blake2b(digest_size=4)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _words(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(-len(data) % 4), "<u4").astype(np.uint32)


def _batch_size(model: Diffusion) -> int:
    return max(1, min(MAX_BATCH, 2**17 // math.prod(model.shape)))


def _initial_bits(model: Diffusion) -> list[int]:
    """Return the initial bits per image for each fineness, in 256ths of the last."""
    needs = [initial_bits(model.shape, fineness) for fineness in FINENESS]
    return [math.ceil(256 * need / needs[-1]) for need in needs]


def _in_units(model: Diffusion, bits: float) -> int:
    return max(0, min(255, math.floor(256 * bits / initial_bits(model.shape, FINENESS[-1]))))


def _initial_stack(coder: ChainCoder, x: Tensor) -> tuple[Stack, int, int]:
    """Return a stack with enough initial bits, the number of its images, and their bytes (0 if not compressed by zlib)."""
    needed = initial_bits(coder.shape, coder.fineness)
    count, packed = 0, b""
    while 8 * len(packed) < needed and count < len(x):
        count = min(len(x), max(count + 1, math.ceil(count * needed / max(8 * len(packed), 1))))
        packed = zlib.compress(x[:count].numpy().tobytes(), 9)
    if not coder.has_marginals:
        return stack_of(_words(packed), seal=True), count, len(packed)
    stack, coded = stack_of(_words(b"")), 0
    while stack.num_valid_bits() < needed and coded < len(x):
        coder.push_plain(stack, to_unit_range(x[coded]))
        coded += 1
    if stack.num_valid_bits() * count <= 8 * len(packed) * coded:
        return stack, coded, 0
    return stack_of(_words(packed), seal=True), count, len(packed)


def _check(run: Run, x: Tensor, steps: int) -> Diffusion:
    model = run.diffusion
    if tuple(x.shape[1:]) != tuple(model.shape):
        raise UserError(f"the images have the shape {tuple(x.shape[1:])} and the run models {tuple(model.shape)}")
    if not 1 <= len(x) <= MAX_IMAGES:
        raise UserError(f"a file holds from 1 to {MAX_IMAGES:,} images, got {len(x):,}")
    if not 2 <= steps <= MAX_STEPS:
        raise UserError(f"the chain needs from 2 to {MAX_STEPS:,} steps, got {steps}")
    if run.config.data.labels and not run.diffusion_settings.label_dropout:
        raise UserError("compression needs an unconditional model; train the run with label_dropout")
    for part in x.split(512):
        decoded = model.codec.decode(model.codec.encode(to_unit_range(part)))
        if not torch.equal((255 * decoded).round().to(torch.uint8), part):
            raise UserError("the run's model cannot represent some values of these images, which its data never had")
    return model


def compress(
    run: Run, x: Tensor, out: str | Path, *, names: Sequence[str] | None = None, steps: int = STEPS, end: float | None = None,
    seed: int = 0, on_progress: OnProgress = silent,
) -> Compressed:  # fmt: skip
    """Write images into a compressed file.

    x: (N, C, H, W) uint8; names: of their files; steps, end: of the chain, see `choose_chain`; seed: of the noise for choosing
    the chain and for the bound.
    """
    out = check_file(out)
    model, start = _check(run, x, steps), time.monotonic()
    size = math.prod(model.shape)
    with deterministic():
        chain_images = to_unit_range(x[evenly_spaced_indices(len(x), CHAIN_IMAGES)]).to(model.device)
        chain, cost = choose_chain(model, chain_images, image_seeds(seed, len(chain_images)), steps, end)
        check_amount(len(x), size, steps, math.ceil(len(x) * cost / (8 * math.log(2))), out)
        coders = [ChainCoder(model, chain, fineness) for fineness in FINENESS]
        stack, plain, plain_bytes = _initial_stack(coders[0], x)
        start_bits = stack.num_valid_bits()
        header = Header(
            weights=_weights(model), pixels=_checksum(x), end=chain.end, between=chain.between,
            begin=_in_units(model, start_bits), growth=_in_units(model, cost / math.log(2)), count=len(x), plain=plain,
            plain_bytes=plain_bytes, steps=steps, names_bytes=len(packed := pack_names(list(names or ()))),
        )  # fmt: skip
        done, fine_count, fine_bits, fine_nats = plain, 0, 0.0, 0.0
        for count, fineness in groups(header, _initial_bits(model), _batch_size(model)):
            bits_before = stack.num_valid_bits()
            try:
                batch_bound = float(coders[fineness].push(stack, to_unit_range(x[done : done + count])).sum())
            except (KeyError, ValueError):
                raise UserError("the model's estimates of these images are not finite or too far off to code them") from None
            if fineness == len(FINENESS) - 1:
                fine_count, fine_nats = fine_count + count, fine_nats + batch_bound
                fine_bits += stack.num_valid_bits() - bits_before
            done += count
            on_progress("compressing", done - plain, len(x) - plain)
        seconds = time.monotonic() - start
        bound_images = to_unit_range(x[evenly_spaced_indices(len(x), BOUND_IMAGES)]).to(model.device)
        seeds = image_seeds(seed, len(bound_images))
        bits = [
            model.bound(part, None, part_seeds, end=chain.end / TIME_UNITS).bits.cpu()
            for part, part_seeds in zip(bound_images.split(_batch_size(model)), seeds.split(_batch_size(model)), strict=True)
        ]
    body = stack.get_compressed().astype("<u4").tobytes()
    if len(x) > MAX_IMAGES_PER_BYTE * len(body):
        raise UserError(f"{len(x):,} images compress to less than one byte per {MAX_IMAGES_PER_BYTE}, the limit of the format")
    content = pack(header, packed, body)
    check_amount(len(x), size, steps, len(content), out)
    other_bytes = other_sizes(channels_last(x.numpy()), on_progress)
    with atomic(out) as temporary:
        temporary.write_bytes(content)
    continuous, error = mean_and_error(torch.cat(bits))
    return Compressed(
        path=out, count=len(x), shape=tuple(model.shape), size=len(content), header=len(content) - len(packed) - len(body),
        names=len(packed), plain=plain, plain_bytes=math.ceil(start_bits / 8), fine=fine_count,
        bits=8 * len(content) / (len(x) * size), coded=fine_bits / (fine_count * size) if fine_count else None,
        promised=fine_nats / (math.log(2) * fine_count * size) if fine_count else None,
        continuous=continuous, continuous_error=error, steps=steps, end=chain.end / TIME_UNITS, others=other_bytes,
        images_per_second=len(x) / max(seconds, 1e-9),
    )  # fmt: skip


def _checksum(x: Tensor) -> bytes:
    return struct.pack("<I", zlib.crc32(x.numpy().tobytes()))


def decompress(
    run: Run, path: str | Path, *, out: str | Path | None = None, overwrite: bool = False, on_progress: OnProgress = silent
) -> Decompressed:
    """Return the images of a compressed file; write them to `out` if given, see `Decompressed.save`."""
    header, names, bits = read(path)
    model = run.diffusion
    if run.kind != "images" or header.weights != _weights(model):
        raise UserError(f"{path} was compressed by another model than {run.path}; give the run that compressed it")
    check_amount(header.count, math.prod(model.shape), header.steps, Path(path).expanduser().stat().st_size, path)
    if out is not None:
        check_out(out, overwrite, header, names, tuple(model.shape))
    damaged = UserError(
        f"{path} cannot be decoded: it is damaged, or this machine's floating-point results differ from the encoder's"
    )
    with deterministic():
        chain = Chain(header.steps, header.end, header.between)
        coders = [ChainCoder(model, chain, fineness) for fineness in FINENESS]
        try:
            images = _decode(coders, header, bits, on_progress)
        except (KeyError, ValueError, AssertionError, RuntimeError, OverflowError, zlib.error):
            raise damaged from None
    if len(images) != header.count or _checksum(images) != header.pixels:
        raise damaged
    result = Decompressed(images, names)
    if out is not None:
        result.save(out, overwrite, on_progress)
    return result


def _decode(coders: Sequence[ChainCoder], header: Header, bits: bytes, on_progress: OnProgress) -> Tensor:
    stack = stack_of(np.frombuffer(bits, "<u4").astype(np.uint32))
    last: list[Tensor] = []
    coder, done, total = coders[0], 0, header.count - header.plain
    for count, fineness in reversed(groups(header, _initial_bits(coder.model), _batch_size(coder.model))):
        if stack.is_empty():
            raise ValueError("the bits end before the images do")
        last.insert(0, _bytes(coders[fineness].pop(stack, count)))
        done += count
        on_progress("decompressing", done, total)
    if header.plain_bytes:
        packed = stack.get_compressed(unseal=True).astype("<u4").tobytes()
        size = header.plain * math.prod(coder.shape)
        plain = zlib.decompressobj().decompress(packed[: header.plain_bytes], size + 1)
        if len(packed) - header.plain_bytes not in range(4):
            raise ValueError("unread bits remain")
        return torch.cat([torch.frombuffer(bytearray(plain), dtype=torch.uint8).reshape(-1, *coder.shape), *last])
    first: list[Tensor] = []
    for _ in range(header.plain):
        if stack.is_empty():
            raise ValueError("the bits end before the images do")
        first.insert(0, _bytes(coder.pop_plain(stack)[None]))
    if not stack.is_empty():
        raise ValueError("unread bits remain")
    return torch.cat([*first, *last])


def _bytes(x: Tensor) -> Tensor:
    return (255 * x).round().to(torch.uint8).cpu()
