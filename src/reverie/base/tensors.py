"""Tensor files: safetensors with metadata and a checksum in the header, never pickles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.files import atomic, own_file, reason
from reverie.base.parse import read_json
from reverie.base.spec import first_problem

F = TypeVar("F")

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
FACTS, CHECKSUM = "facts", "checksum"  # keys of the header's metadata
METADATA = "__metadata__"


class TensorSpec(NamedTuple):
    """The dtype and shape of a tensor.  dtype: the name in safetensors for dtypes that Reverie does not write."""

    dtype: torch.dtype | str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


def empty_tensor(spec: TensorSpec) -> Tensor:
    """Return an uninitialized tensor of this dtype and shape."""
    assert isinstance(spec.dtype, torch.dtype)
    return torch.empty(spec.shape, dtype=spec.dtype)


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return the spec of every tensor, by name."""
    return {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module."""
    return next(chain(module.parameters(), module.buffers())).device


def checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return a hash of metadata, names and values.  tensors: on the CPU."""
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: str = "", advice: str = "") -> None:
    """Write tensors with metadata (JSON) atomically.  advice: appended to the message if the disk is full."""
    copies = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    try:
        with atomic(own_file(path.parent, path.name)) as temporary:
            save_file(copies, temporary, {**({FACTS: facts} if facts else {}), CHECKSUM: checksum(copies, facts)})
            _sort_header(temporary)
    except SafetensorError as error:
        raise UserError(f"cannot write {path}: {error}; the disk may be full{advice}") from None


def _sort_header(path: Path) -> None:
    """Sort the header, whose order is random, so that the same tensors give the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        ordered = {METADATA: dict(sorted(header.pop(METADATA, {}).items())), **header}
        text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode().ljust(size)
        if len(text) == size:
            file.seek(8)
            file.write(text)


@contextmanager
def _opened(path: Path, advice: str) -> Iterator[Any]:
    """Open a tensor file, reading only its header; raise UserError if it is damaged."""
    try:
        with safe_open(own_file(path.parent, path.name), framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise UserError(f"{path} is truncated or damaged: {error}{advice}") from None
    except OSError as error:
        raise UserError(f"{path} is truncated or damaged: {reason(error)}{advice}") from None


def _specs(file: Any) -> dict[str, TensorSpec]:
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, not a dict
    return {name: TensorSpec(DTYPES.get(s.get_dtype(), s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}


def read_tensor_specs(path: Path, advice: str = "") -> dict[str, TensorSpec]:
    """Return the tensor specs in the header of a file, without reading tensors."""
    with _opened(path, advice) as file:
        return _specs(file)


def read_facts(path: Path, facts: TypeAdapter[F], advice: str = "") -> F:
    """Return the metadata in the header of a file, without reading tensors."""
    with _opened(path, advice) as file:
        return _validated(path, (file.metadata() or {}).get(FACTS, ""), facts, advice)


def read_tensors(
    path: Path,
    wanted: Callable[[F], Mapping[str, TensorSpec]],
    facts: TypeAdapter[F],
    *,
    fits: str,
    optional: Callable[[str], bool] = lambda name: False,
    advice: str = "",
    foreign: bool = False,
    require_checksum: bool = False,
) -> tuple[dict[str, Tensor], F]:
    """Read and validate tensors and metadata; raise UserError if anything is wrong.

    Metadata is validated by its schema, and names, dtypes and shapes against the wanted specs, before any tensor is read; then
    the checksum (older files have none), and that all values are finite.  fits: what the file must match, for messages;
    optional: names that may be missing; advice: appended to every message; foreign: another program wrote the file, whose
    header may have other metadata; require_checksum: refuse a file without a checksum.
    """
    with _opened(path, advice) as file:
        metadata: dict[str, str] = file.metadata() or {}
        if not foreign and (other := sorted(metadata.keys() - {FACTS, CHECKSUM})):  # a damaged key would hide the checksum
            raise UserError(f"{path} is damaged: unknown header key {other[0]!r}{advice}")
        text = metadata.get(FACTS, "")
        validated = _validated(path, text, facts, advice)
        check_tensor_specs(path, wanted(validated), specs := _specs(file), fits, optional, advice)
        tensors = {name: file.get_tensor(name) for name in specs}
    if (require_checksum or CHECKSUM in metadata) and metadata.get(CHECKSUM) != checksum(tensors, text):
        raise UserError(f"{path} is damaged: its checksum is wrong{advice}")
    if bad := [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}{advice}")
    return tensors, validated


def _validated(path: Path, text: str, facts: TypeAdapter[F], advice: str) -> F:
    try:
        return facts.validate_python(read_json(text or "null"))
    except ValidationError as error:
        raise UserError(f"{path} has invalid metadata: {first_problem(error)}{advice}") from None
    except ValueError as error:
        raise UserError(f"{path} has invalid metadata: {error}{advice}") from None


def check_tensor_specs(
    path: Path,
    wanted: Mapping[str, TensorSpec],
    found: Mapping[str, TensorSpec],
    fits: str,
    optional: Callable[[str], bool] = lambda name: False,
    advice: str = "",
) -> None:
    """Refuse a file whose tensor specs differ from the wanted ones; see `read_tensors`."""
    needed = {name for name in wanted if not optional(name)}
    if wrong := sorted(name for name in needed | found.keys() if wanted.get(name) != found.get(name)):
        first = wrong[0]
        raise UserError(
            f"{path} does not fit {fits}: {len(wrong)} tensors differ, first {first}"
            f" (wanted {wanted.get(first, 'none')}, found {found.get(first, 'none')}){advice}"
        )
