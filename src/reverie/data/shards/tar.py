"""Tar files in WebDataset format: consecutive files with the same name except for the suffix form one sample.

Nothing is unpacked to disk; links, devices, sparse files and names outside the archive are skipped.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from reverie.base.errors import UserError
from reverie.base.parse import read_json
from reverie.base.visible import visible
from reverie.data.sources import FILE_LIMIT, IMAGE_SUFFIXES, is_image

ANNOTATION_LIMIT = 2**20  # bytes of a .cls, .txt or .json file
HEADER_LIMIT = 2**20  # bytes of a long name or of an extended header
LABELS, CAPTIONS, ANNOTATIONS = ("label", "class", "cls"), ("caption", "text"), (".cls", ".txt", ".json")
MAX_NUMBERS = 64
HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

Skip = Callable[[str, str], None]  # (file, reason)


@dataclass
class Sample:
    """One image of a shard with its annotations.  block: the row group of a table."""

    name: str
    offset: int
    data: bytes
    label: str | None = None
    caption: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    block: int | None = None


class _Member(tarfile.TarInfo):
    """A member whose headers cannot request excessive memory or point backwards."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in HEADERS and self.size > HEADER_LIMIT):
            raise tarfile.ReadError("a header of an invalid size")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # meant to be overridden, and not in the stubs
        return member


def tar_samples(file: IO[bytes], size: int, where: str, skip: Skip) -> Iterator[Sample]:
    """Yield the samples of a tar file in order.  size: its bytes; where: its name in messages."""
    key, image, annotations = "", None, dict[str, bytes]()
    for member, content in _members(file, size, where, skip):
        name = member.name.removeprefix("./")
        folder, _, last = name.rpartition("/")
        stem, dot, _ = last.partition(".")
        sample_key, ending = f"{folder}/{stem}", (dot + last.partition(".")[2]).lower()
        if sample_key != key:
            if image is not None:
                yield _sample(image, annotations, skip)
            key, image, annotations = sample_key, None, {}
        if ending in ANNOTATIONS:
            annotations[ending] = content
        elif image is None or (ending in IMAGE_SUFFIXES and not _has_one_suffix(image.name)):
            image = Sample(name, member.offset_data, content)
    if image is not None:
        yield _sample(image, annotations, skip)


def _has_one_suffix(name: str) -> bool:
    """Return whether an image name has one suffix only, unlike 0001.seg.png."""
    return name.rpartition("/")[2].count(".") == 1


def _members(file: IO[bytes], size: int, where: str, skip: Skip) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the relevant members with their content; a file without an end mark was truncated."""
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as archive:
            previous = -1
            while (member := archive.next()) is not None:
                vars(archive)["members"].clear()  # which would keep all members
                if archive.offset <= previous:
                    raise tarfile.ReadError("a header points backwards")
                previous = archive.offset
                name = member.name.removeprefix("./")
                if not (is_image(name) or name.lower().endswith(ANNOTATIONS)) or _hidden(name):
                    continue
                if (why := _unsafe_reason(member)) is not None:
                    if is_image(name):
                        skip(name, why)
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError("unexpected end of data")
                file.seek(member.offset_data)
                yield member, file.read(member.size)
            end = archive.offset
        file.seek(end)
        if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("no end mark")
    except UserError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, OSError, MemoryError) as error:
        message = " ".join(str(error).split())[:100]
        raise UserError(f"{where} is not a complete tar file ({message}); copy or pack it again") from None


def _hidden(name: str) -> bool:
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in name.split("/"))


def _unsafe_reason(member: tarfile.TarInfo) -> str | None:
    """Return why a member is not used, or None."""
    if member.issym() or member.islnk():
        return "a link, which is not followed inside a tar file"
    if member.issparse():
        return "a sparse file, which is not supported in a tar file"
    if not member.isreg():
        return "not a regular file"
    if ".." in member.name.split("/") or member.name.startswith("/"):
        return "unsafe name: it points outside the tar file"
    if not member.size:
        return "empty (0 bytes)"
    limit = FILE_LIMIT if is_image(member.name) else ANNOTATION_LIMIT
    return f"too large ({member.size / 2**20:.0f} MiB; the limit is {limit >> 20} MiB)" if member.size > limit else None


def _sample(image: Sample, annotations: Mapping[str, bytes], skip: Skip) -> Sample:
    """Return an image with the annotations of the files beside it."""
    texts = {ending: content.decode("utf-8-sig", "replace").strip() for ending, content in annotations.items()}
    if ".cls" in texts:
        image.label = texts[".cls"][:200] or None
    if ".txt" in texts:
        image.caption = clean_caption(texts[".txt"])
    if ".json" in texts:
        try:
            facts = read_json(texts[".json"])
            if not isinstance(facts, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            skip(f"{image.name} (.json)", f"not used: {str(error)[:80]}")
            return image
        add_annotations(image, facts)
    return image


def add_annotations(image: Sample, facts: Mapping[str, Any]) -> None:
    """Set name, label, caption and numbers from fields of a .json file."""
    if isinstance(facts.get("name"), str) and facts["name"]:
        image.name = facts["name"][:1000]
    label = next((facts[key] for key in LABELS if facts.get(key) is not None), None)
    if isinstance(label, str | int) and str(label).strip():
        image.label = str(label).strip()[:200]
    caption = next((facts[key] for key in CAPTIONS if isinstance(facts.get(key), str)), None)
    if caption is not None:
        image.caption = clean_caption(caption)
    image.numbers = {
        str(key).lower(): float(value)
        for key, value in list(facts.items())[:MAX_NUMBERS]
        if key not in LABELS and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def clean_caption(text: str) -> str:
    """Return a caption as one printable line of limited length."""
    return visible(" ".join(text.split()))[:10_000]
