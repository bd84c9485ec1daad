"""Parquet and arrow files of others: what their headers say is checked before anything is unpacked or followed."""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from reverie.base.errors import UserError
from reverie.data.memory_limits import MAX_EXPANSION, check_expansion

BYTES_PER_VALUE = 64  # bytes for each value of a column, with its place and what is made of it
PAGE_SLACK = 2**24  # bytes that the pages of a column chunk may have beyond what the footer states
DEEPEST = 16  # structs within structs of a page header


def arrow_module(name: str, what: object) -> Any:
    """Return a module of pyarrow, or say what installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{what} needs pyarrow to be read; install it with: pip install 'reverie[parquet]'") from None


@contextmanager
def readable_errors(where: object, kind: str) -> Iterator[None]:
    """Say what pyarrow has against a file in one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # pyarrow answers a hostile file with nearly any exception
        said = " ".join(str(error).split())[:100]
        raise UserError(f"{where} cannot be read as {kind}: {said}; save or copy it again") from None


class ParquetTable:
    """A parquet file.  Words and bytes are read as dictionaries, so that a repeated value takes memory once.

    schema: as the file has it; rows, groups: how many.
    """

    def __init__(self, file: IO[bytes] | io.RawIOBase, size: int, where: object) -> None:
        parquet, arrow = arrow_module("pyarrow.parquet", where), arrow_module("pyarrow", where)
        self.where, self._packed = str(where), size
        self._bytes = _Chunks(file, self.where)
        first = parquet.ParquetFile(arrow.PythonFile(self._bytes, mode="r"), pre_buffer=False)
        self.schema, self._metadata = first.schema_arrow, first.metadata
        leaves = (self._metadata.schema.column(k) for k in range(len(self._metadata.schema)))
        words = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        source = arrow.PythonFile(self._bytes, mode="r")
        self._file = parquet.ParquetFile(source, metadata=self._metadata, read_dictionary=words, pre_buffer=False)
        self.rows, self.groups = self._metadata.num_rows, self._metadata.num_row_groups
        self._bytes.chunks = {}

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._bytes.file.close()

    def _chunks(self, group: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        found = self._metadata.row_group(group)
        for k in range(found.num_columns):
            chunk = found.column(k)
            path = chunk.path_in_schema
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                yield chunk

    def _expect(self, group: int, columns: Sequence[str]) -> None:
        """Note where some columns of a row group lie and what the footer states of them, before they are read."""
        assert self._bytes.chunks is not None
        for chunk in self._chunks(group, columns):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            self._bytes.chunks[start] = (chunk.total_uncompressed_size, chunk.num_values)

    def cost(self, group: int, columns: Sequence[str], each: int = BYTES_PER_VALUE) -> int:
        """Return how many bytes some columns of a row group take at most, by the footer.  each: bytes of a value beside it."""
        found = 0
        for chunk in self._chunks(group, columns):
            if chunk.total_uncompressed_size < 0 or chunk.num_values < 0:
                raise UserError(f"{self.where} states a size below zero in row group {group}; save or copy it again")
            found += chunk.total_uncompressed_size + each * chunk.num_values
        return found

    def check(self, columns: Sequence[str], advice: str, each: int = BYTES_PER_VALUE, copies: int = 1) -> None:
        """Refuse columns of which so many copies would take much more memory than the file is large; see `cost`."""
        total = copies * sum(self.cost(k, columns, each) for k in range(self.groups))
        check_expansion(total, self._packed, f"{self.where} (columns {', '.join(columns)[:100]})", advice)

    def read_group(self, group: int, columns: Sequence[str]) -> Any:
        """Return some columns of a row group."""
        self._expect(group, columns)
        return self._file.read_row_group(group, columns=list(columns), use_threads=False)

    def batches(self, size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield some columns, so many rows at a time."""
        for k in range(self.groups):
            self._expect(k, columns)
        found: Iterator[Any] = self._file.iter_batches(size, columns=list(columns), use_threads=False)
        return found


class _Chunks(io.RawIOBase):
    """A parquet file as pyarrow reads it.  chunks: by the place each begins at, its bytes and values by the footer.

    Once these are known, what is read is a column chunk, and its page headers must agree with the footer before pyarrow
    makes room for what they state.
    """

    def __init__(self, file: IO[bytes] | io.RawIOBase, where: str) -> None:
        self.file, self.where = file, where
        self.chunks: dict[int, tuple[int, int]] | None = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return the place."""
        return self.file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        return self.file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        """Return so many bytes."""
        begin = self.file.tell()
        data = self.file.read(size) or b""
        if self.chunks is not None and data:
            try:
                stated, values = self.chunks[begin]
                unpacked, found = _pages(data)
            except (KeyError, IndexError, ValueError):
                raise UserError(f"{self.where} has a damaged page at byte {begin:,}; save or copy it again") from None
            if found > values or unpacked > max(stated, PAGE_SLACK, MAX_EXPANSION * len(data)):
                raise UserError(
                    f"{self.where} states {stated:,} bytes and {values:,} values for the column at byte {begin:,}, and its"
                    f" pages would become {unpacked:,} and {found:,}, as in files made to fill the memory; save it again"
                )
        return data


def _pages(chunk: bytes) -> tuple[int, int]:
    """Return how many bytes the pages of a column chunk state unpacked, and how many values."""
    place, unpacked, values = 0, 0, 0
    while place < len(chunk):
        header, place = _struct(chunk, place, 0)
        size, packed = header[2], header[3]
        count = next((header[k][1] for k in (5, 8) if k in header), 0)  # of a data page, of either version
        if min(size, packed, count) < 0 or place + packed > len(chunk):
            raise ValueError("a page of an impossible size")
        place, unpacked, values = place + packed, unpacked + size, values + count
    return unpacked, values


def _struct(data: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the whole numbers and structs of a struct in Thrift's compact protocol by field, and where it ends."""
    if depth > DEEPEST:
        raise ValueError("too deep")
    found: dict[int, Any] = {}
    field = 0
    while kind := data[place] & 15:
        step = data[place] >> 4
        place += 1
        if step:
            field += step
        else:
            field, place = _number(data, place)
        found[field], place = _value(data, place, kind, depth)
    return found, place + 1


def _value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return a value of one of Thrift's types, None for those that no page header needs, and where it ends."""
    match kind:
        case 1 | 2:  # true and false, which stand in the type
            return None, place
        case 3:
            return None, place + 1
        case 4 | 5 | 6:
            return _number(data, place)
        case 7:
            return None, place + 8
        case 8:
            length, place = _varint(data, place)
            return None, place + length
        case 12:
            return _struct(data, place, depth + 1)
    raise ValueError("a type that page headers do not have")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("too long a number")


def _number(data: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(data, place)
    return value >> 1 ^ -(value & 1), place


@contextmanager
def arrow_batches(path: str, where: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open an arrow stream: the buffer of the whole file, and its batches, each checked from end to end."""
    arrow = arrow_module("pyarrow", where)
    with arrow.memory_map(path) as mapped:
        whole = mapped.read_buffer()
        for message in arrow.ipc.MessageReader.open_stream(whole):
            if message.type in ("record batch", "dictionary") and _compressed(message):
                raise UserError(
                    f"{where} is compressed, and a compressed arrow file does not say how large it becomes; save it without"
                )

        def batches() -> Iterator[Any]:
            for batch in arrow.ipc.open_stream(whole):
                batch.validate(full=True)  # a wrong offset would have pyarrow read whatever is there
                yield batch

        yield whole, batches()


def _compressed(message: Any) -> bool:
    """Tell whether the header of a batch or dictionary says that its buffers are compressed; see Message.fbs of arrow."""
    data = bytes(message.metadata)
    batch = _child(data, struct.unpack_from("<I", data)[0], 2)
    if message.type == "dictionary":
        batch = _child(data, batch, 1)
    return bool(_slot(data, batch, 3))


def _slot(data: bytes, table: int, field: int) -> int:
    """Return where a field of a table of FlatBuffers lies, 0 where the table does not have it."""
    entries = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, entries)
    offset = struct.unpack_from("<H", data, entries + 4 + 2 * field)[0] if size > 4 + 2 * field else 0
    return table + offset if offset else 0


def _child(data: bytes, table: int, field: int) -> int:
    """Return where the table lies that a field leads to."""
    place = _slot(data, table, field)
    if not place:
        raise ValueError("a message without its table")
    found: int = place + struct.unpack_from("<I", data, place)[0]
    return found
