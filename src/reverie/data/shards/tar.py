"""Tar files as WebDataset has them: files of one name but for their endings, one after another, are one sample.

Nothing is ever unpacked to the disk; links, devices, sparse files and names that lead out are passed over.
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

Skip = Callable[[str, str], None]  # a file and why it is not used


@dataclass
class Sample:
    """One image as it lies in a shard, and what is told of it.  block: of a table, which row group has it."""

    name: str
    offset: int
    data: bytes
    label: str | None = None
    caption: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    block: int | None = None


class _Member(tarfile.TarInfo):
    """A member whose headers cannot ask for more memory than names need, nor lead back."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in HEADERS and self.size > HEADER_LIMIT):
            raise tarfile.ReadError("a header of an impossible size")
        made: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # meant to be overridden, and not in the stubs
        return made


def tar_samples(file: IO[bytes], size: int, where: str, skip: Skip) -> Iterator[Sample]:
    """Yield the samples of a tar file in order.  size: its bytes; where: its name, for messages."""
    key, image, told = "", None, dict[str, bytes]()
    for member, content in _members(file, size, where, skip):
        name = member.name.removeprefix("./")
        folder, _, last = name.rpartition("/")
        stem, dot, _ = last.partition(".")
        this, ending = f"{folder}/{stem}", (dot + last.partition(".")[2]).lower()
        if this != key:
            if image is not None:
                yield _sample(image, told, skip)
            key, image, told = this, None, {}
        if ending in ANNOTATIONS:
            told[ending] = content
        elif image is None or (ending in IMAGE_SUFFIXES and not _plain(image.name)):
            image = Sample(name, member.offset_data, content)
    if image is not None:
        yield _sample(image, told, skip)


def _plain(name: str) -> bool:
    """Tell an image of one ending from a further one, such as 0001.seg.png."""
    return name.rpartition("/")[2].count(".") == 1


def _members(file: IO[bytes], size: int, where: str, skip: Skip) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the members that matter, with their content; a file that does not end as a tar does was cut off."""
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as archive:
            before = -1
            while (member := archive.next()) is not None:
                vars(archive)["members"].clear()  # which it keeps, all of them
                if archive.offset <= before:
                    raise tarfile.ReadError("it leads back to where it was")
                before = archive.offset
                name = member.name.removeprefix("./")
                if not (is_image(name) or name.lower().endswith(ANNOTATIONS)) or _hidden(name):
                    continue
                if (why := _trick(member)) is not None:
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
            raise tarfile.ReadError("it has no end")
    except UserError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, OSError, MemoryError) as error:
        said = " ".join(str(error).split())[:100]
        raise UserError(f"{where} is no whole tar file ({said}); copy or pack it again") from None


def _hidden(name: str) -> bool:
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in name.split("/"))


def _trick(member: tarfile.TarInfo) -> str | None:
    """Return why a member is not used, or None."""
    if member.issym() or member.islnk():
        return "a link, which is not followed inside a tar file"
    if member.issparse():
        return "a file with holes, which is not read from a tar file"
    if not member.isreg():
        return "not a regular file"
    if ".." in member.name.split("/") or member.name.startswith("/"):
        return "unsafe name: it points out of the tar file"
    if not member.size:
        return "empty (0 bytes)"
    most = FILE_LIMIT if is_image(member.name) else ANNOTATION_LIMIT
    return f"too large ({member.size / 2**20:.0f} MiB; the limit is {most >> 20} MiB)" if member.size > most else None


def _sample(image: Sample, told: Mapping[str, bytes], skip: Skip) -> Sample:
    """Return an image with what the files beside it tell."""
    words = {ending: content.decode("utf-8-sig", "replace").strip() for ending, content in told.items()}
    if ".cls" in words:
        image.label = words[".cls"][:200] or None
    if ".txt" in words:
        image.caption = clean_caption(words[".txt"])
    if ".json" in words:
        try:
            facts = read_json(words[".json"])
            if not isinstance(facts, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            skip(f"{image.name} (.json)", f"not used: {str(error)[:80]}")
            return image
        add_annotations(image, facts)
    return image


def add_annotations(image: Sample, facts: Mapping[str, Any]) -> None:
    """Take a name, a label, a caption and numbers from fields of these names."""
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
    """Return a caption as it is kept."""
    return visible(" ".join(text.split()))[:10_000]
