"""Images into a file that is as short as a model's bound says, and out of it bit for bit."""

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
from reverie.base.progress import Tell, silent
from reverie.compression.chain import TIMES, Chain, chosen_chain
from reverie.compression.coder import FINENESS, ChainCoder, Stack, bits_to_begin, repeatable, stack_of
from reverie.compression.form import (
    MOST_IMAGES,
    MOST_STEPS,
    PER_BYTE,
    Header,
    check_amount,
    groups,
    pack,
    pack_names,
    read,
)
from reverie.compression.images import check_file, others, seen
from reverie.compression.results import Compressed, Decompressed, check_out
from reverie.data.dataset import spread
from reverie.diffusion.likelihood import mean_and_error
from reverie.draw.picture import channels_last
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

STEPS = 50
TOGETHER = 64  # images that a network sees as one batch, at most
CHOOSING = 8  # images by which the chain is chosen
JUDGED = 64  # images that the bound in continuous time is told of


def _weights(model: Diffusion) -> bytes:
    digest = hashlib.blake2b(digest_size=4)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _words(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(-len(data) % 4), "<u4").astype(np.uint32)


def _together(model: Diffusion) -> int:
    return max(1, min(TOGETHER, 2**17 // math.prod(model.shape)))


def _needs(model: Diffusion) -> list[int]:
    """Return the bits that an image needs to begin with, for each fineness, in 256ths of the last one."""
    needs = [bits_to_begin(model.shape, fineness) for fineness in FINENESS]
    return [math.ceil(256 * need / needs[-1]) for need in needs]


def _share(model: Diffusion, bits: float) -> int:
    return max(0, min(255, math.floor(256 * bits / bits_to_begin(model.shape, FINENESS[-1]))))


def _begun(coder: ChainCoder, x: Tensor) -> tuple[Stack, int, int]:
    """Return a stack that holds bits enough to begin with, of how many images, and as how many bytes if zlib made them."""
    wanted = bits_to_begin(coder.shape, coder.fineness)
    count, packed = 0, b""
    while 8 * len(packed) < wanted and count < len(x):
        count = min(len(x), max(count + 1, math.ceil(count * wanted / max(8 * len(packed), 1))))
        packed = zlib.compress(x[:count].numpy().tobytes(), 9)
    if not coder.knows_levels:
        return stack_of(_words(packed), seal=True), count, len(packed)
    stack, own = stack_of(_words(b"")), 0
    while stack.num_valid_bits() < wanted and own < len(x):
        coder.push_plain(stack, seen(x[own]))
        own += 1
    if stack.num_valid_bits() * count <= 8 * len(packed) * own:
        return stack, own, 0
    return stack_of(_words(packed), seal=True), count, len(packed)


def _check(run: Run, x: Tensor, steps: int) -> Diffusion:
    model = run.diffusion
    if tuple(x.shape[1:]) != tuple(model.shape):
        raise UserError(f"the images have the shape {tuple(x.shape[1:])} and the run models {tuple(model.shape)}")
    if not 1 <= len(x) <= MOST_IMAGES:
        raise UserError(f"a file holds from 1 to {MOST_IMAGES:,} images, got {len(x):,}")
    if not 2 <= steps <= MOST_STEPS:
        raise UserError(f"the chain needs from 2 to {MOST_STEPS:,} steps, got {steps}")
    if run.config.data.labels and not run.diffusion_settings.label_dropout:
        raise UserError("this run was trained with every label told; compression goes without labels: train with label_dropout")
    for part in x.split(512):
        again = model.codec.decode(model.codec.encode(seen(part)))
        if not torch.equal((255 * again).round().to(torch.uint8), part):
            raise UserError("these images hold values that the run's data never had, and its model cannot code them")
    return model


def compress(
    run: Run, x: Tensor, out: str | Path, *, names: Sequence[str] | None = None, steps: int = STEPS, end: float | None = None,
    seed: int = 0, tell: Tell = silent,
) -> Compressed:  # fmt: skip
    """Write images into a file, as short as the run's bound says.

    x: (N, C, H, W) uint8; names: of their files, to come back with them; steps, end: of the chain, see `chosen_chain`; seed: of
    the noise by which the chain is chosen and the bound is told.
    """
    out = check_file(out)
    model, began = _check(run, x, steps), time.monotonic()
    size = math.prod(model.shape)
    with repeatable():
        few = seen(x[spread(len(x), CHOOSING)]).to(model.device)
        chain, cost = chosen_chain(model, few, image_seeds(seed, len(few)), steps, end)
        check_amount(len(x), size, steps, math.ceil(len(x) * cost / (8 * math.log(2))), out)
        coders = [ChainCoder(model, chain, fineness) for fineness in FINENESS]
        stack, plain, plain_bytes = _begun(coders[0], x)
        begin = stack.num_valid_bits()
        header = Header(
            weights=_weights(model), pixels=_sum(x), end=chain.end, between=chain.between, begin=_share(model, begin),
            growth=_share(model, cost / math.log(2)), count=len(x), plain=plain, plain_bytes=plain_bytes, steps=steps,
            names_bytes=len(packed := pack_names(list(names or ()))),
        )  # fmt: skip
        done, fine, spent, nats = plain, 0, 0.0, 0.0
        for count, fineness in groups(header, _needs(model), _together(model)):
            before = stack.num_valid_bits()
            try:
                promise = float(coders[fineness].push(stack, seen(x[done : done + count])).sum())
            except (KeyError, ValueError):
                raise UserError("the model's guesses of these images are no numbers, or too far off to be coded by") from None
            if fineness == len(FINENESS) - 1:
                fine, spent, nats = fine + count, spent + stack.num_valid_bits() - before, nats + promise
            done += count
            tell("compressing", done - plain, len(x) - plain)
        seconds = time.monotonic() - began
        some = seen(x[spread(len(x), JUDGED)]).to(model.device)
        seeds = image_seeds(seed, len(some))
        bits = [
            model.bound(part, None, own, end=chain.end / TIMES).bits.cpu()
            for part, own in zip(some.split(_together(model)), seeds.split(_together(model)), strict=True)
        ]
    body = stack.get_compressed().astype("<u4").tobytes()
    if len(x) > PER_BYTE * len(body):
        raise UserError(f"{len(x):,} images take less than {len(x) // PER_BYTE:,} bytes, which a file may not promise")
    whole = pack(header, packed, body)
    check_amount(len(x), size, steps, len(whole), out)
    need = others(channels_last(x.numpy()), tell)
    with atomic(out) as aside:
        aside.write_bytes(whole)
    continuous, error = mean_and_error(torch.cat(bits))
    return Compressed(
        path=out, count=len(x), shape=tuple(model.shape), size=len(whole), header=len(whole) - len(packed) - len(body),
        names=len(packed), plain=plain, plain_bytes=math.ceil(begin / 8), fine=fine, bits=8 * len(whole) / (len(x) * size),
        coded=spent / (fine * size) if fine else None, promised=nats / (math.log(2) * fine * size) if fine else None,
        continuous=continuous, continuous_error=error, steps=steps, end=chain.end / TIMES, others=need,
        images_per_second=len(x) / max(seconds, 1e-9),
    )  # fmt: skip


def _sum(x: Tensor) -> bytes:
    return struct.pack("<I", zlib.crc32(x.numpy().tobytes()))


def decompress(
    run: Run, path: str | Path, *, out: str | Path | None = None, overwrite: bool = False, tell: Tell = silent
) -> Decompressed:
    """Return the images of a file, bit for bit, and write them to `out` if it is given, as `Decompressed.save` does."""
    header, names, bits = read(path)
    model = run.diffusion
    if run.kind != "images" or header.weights != _weights(model):
        raise UserError(f"{path} was compressed by another model than {run.path}; give the run that it was made with")
    check_amount(header.count, math.prod(model.shape), header.steps, Path(path).expanduser().stat().st_size, path)
    if out is not None:
        check_out(out, overwrite, header, names, tuple(model.shape))
    broken = UserError(
        f"{path} cannot be decoded: it is damaged, or this machine computes other last digits than the one that made it"
    )
    with repeatable():
        chain = Chain(header.steps, header.end, header.between)
        coders = [ChainCoder(model, chain, fineness) for fineness in FINENESS]
        try:
            found = _decoded(coders, header, bits, tell)
        except (KeyError, ValueError, AssertionError, RuntimeError, OverflowError, zlib.error):
            raise broken from None
    if len(found) != header.count or _sum(found) != header.pixels:
        raise broken
    made = Decompressed(found, names)
    if out is not None:
        made.save(out, overwrite, tell)
    return made


def _decoded(coders: Sequence[ChainCoder], header: Header, bits: bytes, tell: Tell) -> Tensor:
    stack = stack_of(np.frombuffer(bits, "<u4").astype(np.uint32))
    last: list[Tensor] = []
    coder, done, of = coders[0], 0, header.count - header.plain
    for count, fineness in reversed(groups(header, _needs(coder.model), _together(coder.model))):
        if stack.is_empty():
            raise ValueError("the bits are used up before the images are")
        last.insert(0, _bytes(coders[fineness].pop(stack, count)))
        done += count
        tell("decompressing", done, of)
    if header.plain_bytes:
        packed = stack.get_compressed(unseal=True).astype("<u4").tobytes()
        size = header.plain * math.prod(coder.shape)
        plain = zlib.decompressobj().decompress(packed[: header.plain_bytes], size + 1)
        if len(packed) - header.plain_bytes not in range(4):
            raise ValueError("bits are left over")
        return torch.cat([torch.frombuffer(bytearray(plain), dtype=torch.uint8).reshape(-1, *coder.shape), *last])
    first: list[Tensor] = []
    for _ in range(header.plain):
        if stack.is_empty():
            raise ValueError("the bits are used up before the images are")
        first.insert(0, _bytes(coder.pop_plain(stack)[None]))
    if not stack.is_empty():
        raise ValueError("bits are left over")
    return torch.cat([*first, *last])


def _bytes(x: Tensor) -> Tensor:
    return (255 * x).round().to(torch.uint8).cpu()
