"""The container format of compressed images: a header, optional file names, and the bits.

    4 bytes   rvi1
    4         CRC-32 of the rest
    4         BLAKE2b of the model's weights
    4         CRC-32 of the pixels
    2         the end time of the chain, in units of 1/65,536
    3         its variance, the initial bits, the bits that an image adds: see `Chain` and `groups`
    numbers   five, 7 bits per byte, least significant first: images, plain images at the bottom of the stack, bytes of these
              (0: coded by the model), steps of the chain, bytes of names
    names     zlib of names, separated by zero bytes
    bits      32-bit words, little endian

The file is untrusted: no number allocates more memory than the size of the file justifies.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reverie.base.errors import UserError
from reverie.base.files import expanded, reason
from reverie.base.spec import first_problem
from reverie.base.visible import visible
from reverie.data.memory_limits import check_expansion

MAGIC = b"rvi1"
FIXED = struct.Struct("<4s4sHBBB")
MAX_FILE_BYTES, MAX_IMAGES, MAX_STEPS = 2**31, 10**7, 1000
MAX_IMAGES_PER_BYTE = 64  # maximum number of images per byte of a file
WORK_PER_BYTE, WORK_ALWAYS = 2**14, 2**23  # limits of numbers times steps, per byte of a file, and for any file
COPIES = 3  # copies of the images in memory while they are decoded
MAX_NAME_BYTES = 1024  # bytes
MAX_NAMES_RATIO = 100  # maximum compression ratio of the names

Byte = Annotated[int, Field(ge=0, le=255)]
Size = Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]


class Header(BaseModel):
    """The header of a file.

    end: in units of 1/65,536; plain: number of images at the bottom of the stack, compressed by zlib to plain_bytes, or coded
    by the model if that is 0; between, begin, growth: see `Chain` and `groups`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: Annotated[bytes, Field(min_length=4, max_length=4)]
    pixels: Annotated[bytes, Field(min_length=4, max_length=4)]
    end: Annotated[int, Field(ge=1, le=65_535)]
    between: Byte
    begin: Byte
    growth: Byte
    count: Annotated[int, Field(ge=1, le=MAX_IMAGES)]
    plain: Annotated[int, Field(ge=1, le=MAX_IMAGES)]
    plain_bytes: Size
    steps: Annotated[int, Field(ge=2, le=MAX_STEPS)]
    names_bytes: Size


NUMBERS = ("count", "plain", "plain_bytes", "steps", "names_bytes")
BYTES = ("end", "between", "begin", "growth")


def groups(header: Header, needs: Sequence[int], max_batch: int) -> list[tuple[int, int]]:
    """Return the batches, of at most `max_batch` images, and the bin width of each that the available bits allow.

    needs: initial bits per image for each fineness, increasing, in 256ths of the last, like begin and growth.  Returns
    (images, index of the fineness) of each batch.
    """
    available, done, batches = header.begin, header.plain, []
    while done < header.count:
        fineness = max([k for k, need in enumerate(needs) if need <= available], default=0)
        count = min(header.count - done, max_batch, max(1, available // needs[-1]))
        batches.append((count, fineness))
        done, available = done + count, available + count * header.growth
    return batches


def check_amount(count: int, numbers: int, steps: int, size: int, where: object) -> None:
    """Refuse images that need much more memory or computation than the size of their file justifies.

    numbers: of an image; steps: of the chain; size: bytes of the file.
    """
    check_expansion(COPIES * count * numbers, size, str(where), "compress fewer images into one file")
    if (work := count * numbers * steps) > (max_work := max(WORK_ALWAYS, WORK_PER_BYTE * size)):
        raise UserError(
            f"{where} has {size:,} bytes for {count:,} images of {numbers:,} numbers in {steps:,} steps: {work:,} numbers to"
            f" compute, where at most {max_work:,} are computed for a file of this size; compress the images in fewer --steps"
        )


def safe_name(name: str) -> bool:
    """Return whether a name is a portable, visible path below the output folder."""
    parts = name.split("/")
    return (
        len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
        and visible(name) == name
        and not any(char in name for char in '\\:*?"<>|')
        and all(part and part[0] != "." and part[-1] not in ". " and len(part.encode()) <= 255 for part in parts)
    )


def pack(header: Header, names: bytes, bits: bytes) -> bytes:
    """Return the file content."""
    numbers = b"".join(_number(getattr(header, name)) for name in NUMBERS)
    fixed = FIXED.pack(header.weights, header.pixels, *(getattr(header, name) for name in BYTES))
    rest = fixed + numbers + names + bits
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def pack_names(names: list[str] | None) -> bytes:
    """Return names as stored in a file."""
    joined = "\0".join(names or ()).encode()
    packed = zlib.compress(joined, 9) if names else b""
    return packed if len(joined) <= MAX_NAMES_RATIO * len(packed) else zlib.compress(joined, 0)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def read(path: str | Path) -> tuple[Header, list[str] | None, bytes]:
    """Return the header, the names of the images (or None) and the bits of a file; raise an error for an invalid file."""
    path = expanded(path)
    try:
        if not path.is_file():
            raise UserError(f"there is no file {path}; give one that reverie compress wrote")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {reason(error) if isinstance(error, OSError) else error}") from None
    if not data.startswith(MAGIC):
        raise UserError(f"{path} is not a file of compressed images; give one that reverie compress wrote")
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path} is larger than the limit of {MAX_FILE_BYTES >> 30} GiB")
    broken = UserError(f"{path} is damaged: it is truncated or bytes of it were changed; compress the images again")
    rest = data[8:]
    if len(data) < 8 + FIXED.size + len(NUMBERS) or struct.unpack("<I", data[4:8])[0] != zlib.crc32(rest):
        raise broken
    weights, pixels, *values = FIXED.unpack_from(rest)
    offset, fields = FIXED.size, dict(zip(BYTES, values, strict=True))
    for name in NUMBERS:
        value, shift = 0, 0
        while True:
            if offset >= len(rest) or shift > 35:
                raise broken
            value, shift, more = value | (rest[offset] & 127) << shift, shift + 7, rest[offset] & 128
            offset += 1
            if not more:
                break
        fields[name] = value
    try:
        header = Header(weights=weights, pixels=pixels, **fields)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_problem(error)}") from None
    bits = rest[offset + header.names_bytes :]
    if len(rest) < offset + header.names_bytes or len(bits) % 4 or not bits or header.plain > header.count:
        raise broken
    if header.count > MAX_IMAGES_PER_BYTE * len(bits) or header.plain_bytes > len(bits):
        raise UserError(f"{path} is damaged: {header.count:,} images do not fit into its size")
    return header, _names(rest[offset : offset + header.names_bytes], header.count, path), bits


def _names(packed: bytes, count: int, path: Path) -> list[str] | None:
    if not packed:
        return None
    max_length = min(count * (MAX_NAME_BYTES + 1), MAX_NAMES_RATIO * len(packed)) + 1
    try:
        names = zlib.decompressobj().decompress(packed, max_length).decode().split("\0")
    except (zlib.error, UnicodeDecodeError):
        raise UserError(f"{path} is damaged: its names are unreadable") from None
    if len(names) != count or len(set(names)) != count:
        raise UserError(f"{path} is damaged: it has {count:,} images and {len(set(names)):,} names")
    if (wrong := next((name for name in names if not safe_name(name)), None)) is not None:
        raise UserError(f"{path} is not trusted: {visible(wrong)[:80]!r} is not a safe file name")
    return names
