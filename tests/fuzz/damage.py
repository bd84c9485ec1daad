"""Ways to damage a file, from a random generator alone: bytes anywhere, and what a file means where it has checksums."""

from __future__ import annotations

import gzip
import io
import random
import re
import struct
import zipfile
import zlib

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1)
WORDS = (
    "", "0", "-1", "1", "nan", "inf", "-inf", "1e999", "1e-999", "9" * 400, "True", "None", "null", "true", "[]", "{}",
    "[" * 5000, '"', "'", "\x00", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\nb", "\u202etxt", "\ud800",
    "é" * 50, "=1+1", "../../x", "/",
    "(True, 2)", "(2,)", "()", "|O", "<f8", ">i2", "<U4", "<U99999999", "|V8", "file_name", "label", "2**64", "0x1F",
    "\uff11", "$x_$",
)  # fmt: skip
NAMES = (
    "", "/", "../up.png", "/etc/x.png", "a\x1b[2J.png", "b\n.png", "c\udce9.png", "\u202egnp.png", "=cmd.png", "x/\x07/y.png",
    "a" * 200 + ".png", ".hidden.png", "metadata.csv", "metadata.jsonl", "C:\\x.png", "x.npy", "y.npy", "$\\frac$.png", "a.svg",
)  # fmt: skip


def scratched(content: bytes, chance: random.Random) -> bytes:
    """Change, cut out, double or put in a few bytes anywhere."""
    out = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8, 40))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(7):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 2 if at < len(out):
                out[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            case 3:
                number = chance.choice(NUMBERS)
                out[at : at + 4] = struct.pack(chance.choice("<>") + "I", number)
            case 4:
                del out[at : at + chance.choice((1, 4, 16, len(out)))]
            case 5:
                out[at:at] = out[at : at + chance.choice((1, 8, 64))] * chance.choice((1, 3))
            case _:
                out[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 32))))
    return bytes(out)


def reworded(content: bytes, chance: random.Random) -> bytes:
    """Put hostile words in the place of numbers and words."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(chance.choice((1, 1, 2, 5))):
        found = list(re.finditer(r"[\w.+\-]+|\([^)]*\)|\[[^\]]*\]|\"[^\"]*\"", text))
        if not found:
            break
        one = chance.choice(found)
        text = text[: one.start()] + chance.choice(WORDS) + text[one.end() :]
    return text.encode("utf-8", "surrogatepass")


def rezipped(content: bytes, chance: random.Random) -> bytes:
    """Damage or rename one file of an archive, or add one, with checksums that are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as before:
        files = [(info.filename, before.read(info)) for info in before.infolist()]
    at = chance.randrange(len(files))
    name, inner = files[at]
    match chance.randrange(4):
        case 0:
            files[at] = (chance.choice(NAMES), inner)
        case 1:
            files.append((chance.choice(NAMES), inner))
        case _:
            files[at] = (name, damaged(name, inner, chance))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as after:
        for name, inner in files:
            info = zipfile.ZipInfo("x")
            info.filename = name.encode("utf-8", "replace").decode() or "\x01"
            after.writestr(info, inner)
    return _nameless(buffer.getvalue())


def _nameless(content: bytes) -> bytes:
    """Take the names of one letter, \\x01, away from the entries of an archive, as Python would not write them."""
    out = bytearray(content)
    for mark, at, size in ((b"PK\3\4", 26, 30), (b"PK\1\2", 28, 46)):
        begin = -1
        while (begin := out.find(mark, begin + 1)) >= 0:
            if out[begin + at : begin + at + 4] == b"\1\0\0\0" and out[begin + size : begin + size + 1] == b"\1":
                out[begin + at : begin + at + 4] = b"\0\0\1\0"
    return bytes(out)


def rechunked(content: bytes, chance: random.Random) -> bytes:
    """Damage one chunk of a PNG file, with a checksum that is right."""
    out, at, chunks = content[:8], 8, []
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        return scratched(content, chance)
    k = chance.randrange(len(chunks))
    kind, body = chunks[k]
    match chance.randrange(4):
        case 0:
            chunks.insert(k, chunks[chance.randrange(len(chunks))])
        case 1:
            kind = chance.choice((b"IHDR", b"PLTE", b"IDAT", b"tRNS", b"eXIf", b"acTL", b"fcTL", b"iCCP", b"zTXt", b"iTXt"))
            chunks.insert(k, (kind, scratched(body, chance)))
        case 2 if kind == b"IDAT":
            chunks[k] = (kind, zlib.compress(scratched(zlib.decompress(body), chance)))
        case _:
            chunks[k] = (kind, scratched(body, chance))
    for kind, body in chunks:
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return out


def damaged(name: str, content: bytes, chance: random.Random) -> bytes:
    """Damage a file in one of the ways that suit its kind."""
    suffix = name.rsplit(".", 1)[-1].lower()
    try:
        match suffix:
            case "zip" | "npz" if chance.random() < 0.6:
                return rezipped(content, chance)
            case "gz" if chance.random() < 0.6:
                return gzip.compress(scratched(gzip.decompress(content), chance), mtime=0)
            case "png" if chance.random() < 0.6:
                return rechunked(content, chance)
            case "csv" | "jsonl" | "toml" | "json" if chance.random() < 0.7:
                return reworded(content, chance)
            case "npy" if chance.random() < 0.6:
                return reheaded(content, chance, struct.calcsize("<H"), 8)
            case "safetensors" if chance.random() < 0.6:
                return reheaded(content, chance, struct.calcsize("<Q"), 0)
    except (ValueError, KeyError, EOFError, OSError, zlib.error, struct.error, zipfile.BadZipFile):
        pass  # damaged so far that only bytes are left to be damaged
    return scratched(content, chance)


def reheaded(content: bytes, chance: random.Random, width: int, at: int) -> bytes:
    """Reword the header of a file that begins, at a place, with the header's length in so many bytes."""
    form = {2: "<H", 8: "<Q"}[width]
    (size,) = struct.unpack_from(form, content, at)
    head = reworded(content[at + width : at + width + size], chance)
    return content[:at] + struct.pack(form, len(head) % 2 ** (8 * width)) + head + content[at + width + size :]
