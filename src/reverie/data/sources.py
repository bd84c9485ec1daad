"""Sources of image files: folders, zip and tar files, listed by name and size without reading contents."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.memory_limits import Quota

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
METADATA = ("metadata.csv", "metadata.jsonl")
# Image formats that need an additional decoder.
UNSUPPORTED = frozenset({".heic", ".heif", ".avif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raw", ".psd", ".svg"})
TEXT = ".txt"  # the caption of the image beside it
FILE_LIMIT = 256 * 2**20  # bytes of one file
BYTES = Quota(FILE_LIMIT)  # of files held at a time by all threads together
ZIP_LIMIT = 64 * 2**30  # uncompressed bytes of all files of an archive
ZIP_RATIO = 200  # maximum compression ratio; images hardly shrink, zip bombs shrink a thousandfold
ZIP_SMALL = 2**20  # below this many bytes the ratio is not checked
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # lzma can request gigabytes of memory


@dataclass(frozen=True, slots=True)
class FileOffset:
    """An offset within a file."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a folder, a zip or a tar file; its name is relative, with forward slashes."""

    name: str
    size: int
    place: Path | zipfile.ZipInfo | FileOffset
    archive: zipfile.ZipFile | None = None

    def open(self) -> IO[bytes]:
        """Open the content for reading."""
        if isinstance(self.place, Path):
            return self.place.open("rb")
        if isinstance(self.place, FileOffset):
            file = self.place.path.open("rb")
            file.seek(self.place.offset)
            return file
        assert self.archive is not None
        return self.archive.open(self.place)

    def read(self) -> bytes:
        """Return the content, at most the listed size and FILE_LIMIT."""
        with self.open() as file:
            return file.read(min(self.size, FILE_LIMIT))  # Python allocates the requested size


@dataclass
class Listing:
    """The contents of a folder or an archive.

    metadata: metadata and caption files by name; broken: (file, reason); others: suffixes of other files.
    """

    images: list[FileEntry] = field(default_factory=list)
    metadata: dict[str, FileEntry] = field(default_factory=dict)
    broken: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, entry: FileEntry) -> None:
        """Classify one file by name and size."""
        if entry.name.lower().endswith(TEXT):
            self.metadata[entry.name] = entry
        if entry.name in METADATA:
            self.metadata[entry.name] = entry
        elif not is_image(entry.name):
            self.others[PurePosixPath(entry.name).suffix.lower() or "no suffix"] += 1
        elif entry.size == 0:
            self.broken.append((entry.name, "empty (0 bytes)"))
        elif entry.size > FILE_LIMIT:
            self.broken.append((entry.name, f"too large ({entry.size / 2**20:.0f} MiB; the limit is {FILE_LIMIT >> 20} MiB)"))
        else:
            self.images.append(entry)


def is_image(name: str) -> bool:
    """Return whether a name has an image suffix."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def list_folder(root: Path) -> Listing:
    """List a folder recursively; links are followed, but each folder is visited once, so that loops end."""
    listing = Listing()
    for entry in sorted(walk(root, listing), key=lambda e: e.name):
        listing.add(entry)
    return listing


def walk(root: Path, listing: Listing) -> Iterator[FileEntry]:
    """Yield every file of a folder recursively, unsorted; unreadable ones are added to the listing as broken."""
    visited: set[tuple[int, int]] = set()
    pending = [(root, "")]
    linked: list[tuple[Path, str]] = []  # visited last, so that files are listed at their real place
    while pending or linked:
        folder, prefix = pending.pop() if pending else linked.pop(0)
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as scan:
                inside = sorted(scan, key=lambda e: e.name)
        except OSError as error:
            listing.broken.append((prefix or str(root), f"folder cannot be read: {reason(error)}"))
            continue
        for item in inside:
            if _hidden(item.name):
                continue
            name = prefix + item.name
            try:
                status = item.stat()
            except OSError as error:
                if is_image(name):
                    listing.broken.append((name, f"cannot be read: {reason(error)}"))
                continue
            if stat.S_ISDIR(status.st_mode):
                (linked if item.is_symlink() else pending).append((Path(item.path), name + "/"))
            elif stat.S_ISREG(status.st_mode):
                yield FileEntry(name, status.st_size, Path(item.path))
            elif is_image(name):
                listing.broken.append((name, "not a regular file"))


def has_images(root: Path) -> bool:
    """Return whether a folder contains an image, recursively."""
    return any(is_image(entry.name) for entry in walk(root, Listing()))


def count_unsupported(root: Path) -> int:
    """Count the images of unsupported formats in a folder, recursively."""
    return sum(Path(entry.name).suffix.lower() in UNSUPPORTED for entry in walk(root, Listing()))


def list_zip(path: Path) -> Listing:
    """List a zip file without unpacking it to disk; unsafe entries are skipped with a reason."""
    try:
        # a file handle of our own: the reference count of zipfile, which closes its own handles, is not thread-safe
        archive = zipfile.ZipFile(path.open("rb"))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        message = reason(error) if isinstance(error, OSError) else str(error).lower()
        raise UserError(f"{path} cannot be read as a zip file: {message}; pack it again, or give the folder itself") from None
    listing = Listing()
    infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
    total = sum(info.file_size for info in infos)
    if total > ZIP_LIMIT:
        raise UserError(
            f"{path} would unpack to {total / 2**30:.0f} GiB, over the limit of {ZIP_LIMIT >> 30} GiB; if you trust it,"
            " unpack it and give the folder"
        )
    visible = [info for info in infos if not any(_hidden(part) for part in info.filename.split("/") if part not in ("..", "."))]
    top = _common_top([info.filename for info in visible])
    for info in sorted(visible, key=lambda i: i.filename):
        problem = _unsafe_reason(info)
        if problem is None:
            listing.add(FileEntry(info.filename.removeprefix(top), info.file_size, info, archive))
        else:
            listing.broken.append((info.filename, problem))
    return listing


def list_tar(path: Path) -> Listing:
    """List a tar file in WebDataset format, with images and texts of one name side by side, without unpacking it."""
    listing = Listing()
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse() and not any(map(_hidden, member.name.split("/"))):
                    listing.add(FileEntry(member.name, member.size, FileOffset(path, member.offset_data)))
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read as a plain tar file ({' '.join(str(error).split())[:100]}); unpack it, and give the folder"
        ) from None
    return listing


def _common_top(names: Iterable[str]) -> str:
    """Return the single top folder of an archive, with its slash, or ""."""
    tops = {name.split("/", 1)[0] if "/" in name else "" for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    return f"{top}/" if top not in ("", "..", ".") else ""


def _unsafe_reason(info: zipfile.ZipInfo) -> str | None:
    """Return why a zip entry is unsafe, or None."""
    parts = info.filename.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "" or ":" in parts[0]:
        return "unsafe name: it points outside the zip file"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link, which is not followed inside a zip file"
    if info.flag_bits & 1:
        return "encrypted"
    if info.compress_type not in ZIP_METHODS:
        return "unsupported compression (only stored, deflate and bzip2)"
    if info.file_size > ZIP_SMALL and info.file_size > ZIP_RATIO * max(info.compress_size, 1):
        return f"unpacks to more than {ZIP_RATIO} times its size, like a zip bomb"
    return None
