"""Untrusted parquet and arrow files: headers are validated before anything is decompressed or dereferenced."""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from reverie.base.errors import UserError
from reverie.data.memory_limits import MAX_EXPANSION, check_expansion

BYTES_PER_VALUE = 64  # bytes for each value of a column, including its index and derived values
PAGE_SLACK = 2**24  # bytes by which the pages of a column chunk may exceed the footer's size
MAX_DEPTH = 16  # nested structs of a page header


def arrow_module(name: str, what: object) -> Any:
    """Return a module of pyarrow; if it is not installed, raise UserError with the command."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{what} needs pyarrow; install it with: pip install 'reverie[parquet]'") from None


@contextmanager
def readable_errors(where: object, kind: str) -> Iterator[None]:
    """Raise errors of pyarrow as UserErrors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # pyarrow raises nearly any exception for a hostile file
        message = " ".join(str(error).split())[:100]
        raise UserError(f"{where} cannot be read as {kind}: {message}; save or copy it again") from None


class ParquetTable:
    """A parquet file.  Strings and bytes are read as dictionaries, so that repeated values are stored once.

    schema: of the file; rows, groups: their counts.
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
        row_group = self._metadata.row_group(group)
        for k in range(row_group.num_columns):
            chunk = row_group.column(k)
            path = chunk.path_in_schema
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                yield chunk

    def _expect(self, group: int, columns: Sequence[str]) -> None:
        """Record the offsets of some columns of a row group and their sizes in the footer, before they are read."""
        assert self._bytes.chunks is not None
        for chunk in self._chunks(group, columns):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            self._bytes.chunks[start] = (chunk.total_uncompressed_size, chunk.num_values)

    def cost(self, group: int, columns: Sequence[str], each: int = BYTES_PER_VALUE) -> int:
        """Return an upper bound on the bytes of some columns of a row group, by the footer.

        each: additional bytes per value.
        """
        total = 0
        for chunk in self._chunks(group, columns):
            if chunk.total_uncompressed_size < 0 or chunk.num_values < 0:
                raise UserError(f"{self.where} states a negative size in row group {group}; save or copy it again")
            total += chunk.total_uncompressed_size + each * chunk.num_values
        return total

    def check(self, columns: Sequence[str], advice: str, each: int = BYTES_PER_VALUE, copies: int = 1) -> None:
        """Refuse columns whose copies need far more memory than the file size; see `cost`."""
        total = copies * sum(self.cost(k, columns, each) for k in range(self.groups))
        check_expansion(total, self._packed, f"{self.where} (columns {', '.join(columns)[:100]})", advice)

    def read_group(self, group: int, columns: Sequence[str]) -> Any:
        """Return some columns of a row group."""
        self._expect(group, columns)
        return self._file.read_row_group(group, columns=list(columns), use_threads=False)

    def batches(self, size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield some columns, `size` rows at a time."""
        for k in range(self.groups):
            self._expect(k, columns)
        found: Iterator[Any] = self._file.iter_batches(size, columns=list(columns), use_threads=False)
        return found


class _Chunks(io.RawIOBase):
    """A parquet file as pyarrow reads it.  chunks: offset -> (bytes, values) of each column chunk, by the footer.

    Once these are known, every read is a column chunk, whose page headers must agree with the footer before pyarrow allocates
    memory.
    """

    def __init__(self, file: IO[bytes] | io.RawIOBase, where: str) -> None:
        self.file, self.where = file, where
        self.chunks: dict[int, tuple[int, int]] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self.file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position."""
        return self.file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        """Read `size` bytes."""
        begin = self.file.tell()
        data = self.file.read(size) or b""
        if self.chunks is not None and data:
            try:
                stated, values = self.chunks[begin]
                unpacked, actual = _pages(data)
            except (KeyError, IndexError, ValueError):
                raise UserError(f"{self.where} has a damaged page at byte {begin:,}; save or copy it again") from None
            if actual > values or unpacked > max(stated, PAGE_SLACK, MAX_EXPANSION * len(data)):
                raise UserError(
                    f"{self.where} states {stated:,} bytes and {values:,} values for the column at byte {begin:,}, but"
                    f" its pages expand to {unpacked:,} and {actual:,}, like a decompression bomb; save it again"
                )
        return data


def _pages(chunk: bytes) -> tuple[int, int]:
    """Return the total uncompressed size and the number of values of the pages of a column chunk."""
    offset, unpacked, values = 0, 0, 0
    while offset < len(chunk):
        header, offset = _struct(chunk, offset, 0)
        size, packed = header[2], header[3]
        count = next((header[k][1] for k in (5, 8) if k in header), 0)  # of a data page, version 1 or 2
        if min(size, packed, count) < 0 or offset + packed > len(chunk):
            raise ValueError("a page of an impossible size")
        offset, unpacked, values = offset + packed, unpacked + size, values + count
    return unpacked, values


def _struct(data: bytes, offset: int, depth: int) -> tuple[dict[int, Any], int]:
    """Parse a struct in Thrift's compact protocol: return its integers and structs by field, and its end."""
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    fields: dict[int, Any] = {}
    field = 0
    while kind := data[offset] & 15:
        step = data[offset] >> 4
        offset += 1
        if step:
            field += step
        else:
            field, offset = _number(data, offset)
        fields[field], offset = _value(data, offset, kind, depth)
    return fields, offset + 1


def _value(data: bytes, offset: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return a value of a Thrift type, None for types that page headers do not use, and its end."""
    match kind:
        case 1 | 2:  # booleans are stored in the type
            return None, offset
        case 3:
            return None, offset + 1
        case 4 | 5 | 6:
            return _number(data, offset)
        case 7:
            return None, offset + 8
        case 8:
            length, offset = _varint(data, offset)
            return None, offset + length
        case 12:
            return _struct(data, offset, depth + 1)
    raise ValueError("a type that page headers do not have")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[offset]
        value, shift, offset = value | (byte & 127) << shift, shift + 7, offset + 1
        if byte < 128:
            return value, offset
        if shift > 63:
            raise ValueError("too long a number")


def _number(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _varint(data, offset)
    return value >> 1 ^ -(value & 1), offset


@contextmanager
def arrow_batches(path: str, where: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open an arrow stream; yield the buffer of the file and its batches, each fully validated."""
    arrow = arrow_module("pyarrow", where)
    with arrow.memory_map(path) as mapped:
        buffer = mapped.read_buffer()
        for message in arrow.ipc.MessageReader.open_stream(buffer):
            if message.type in ("record batch", "dictionary") and _compressed(message):
                raise UserError(f"{where} is a compressed arrow file, whose uncompressed size is unknown; save it uncompressed")

        def batches() -> Iterator[Any]:
            for batch in arrow.ipc.open_stream(buffer):
                batch.validate(full=True)  # with an invalid offset pyarrow would read arbitrary memory
                yield batch

        yield buffer, batches()


def _compressed(message: Any) -> bool:
    """Return whether the header of a batch or dictionary states compression; see Message.fbs of arrow."""
    data = bytes(message.metadata)
    batch = _child(data, struct.unpack_from("<I", data)[0], 2)
    if message.type == "dictionary":
        batch = _child(data, batch, 1)
    return bool(_slot(data, batch, 3))


def _slot(data: bytes, table: int, field: int) -> int:
    """Return the offset of a field of a FlatBuffers table, 0 if the table lacks it."""
    entries = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, entries)
    offset = struct.unpack_from("<H", data, entries + 4 + 2 * field)[0] if size > 4 + 2 * field else 0
    return table + offset if offset else 0


def _child(data: bytes, table: int, field: int) -> int:
    """Return the offset of the table that a field refers to."""
    offset = _slot(data, table, field)
    if not offset:
        raise ValueError("a message without its table")
    target: int = offset + struct.unpack_from("<I", data, offset)[0]
    return target
