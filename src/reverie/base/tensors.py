"""The one way tensors go to a file and come back: safetensors with facts and a checksum in the header.  Never a pickle."""

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
    """What a tensor is before its values are read.  dtype: as safetensors calls it where it is none that we write."""

    dtype: torch.dtype | str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


def empty_tensor(form: TensorSpec) -> Tensor:
    """Return a tensor of a form, whose values are to come."""
    assert isinstance(form.dtype, torch.dtype)
    return torch.empty(form.shape, dtype=form.dtype)


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return the form of every tensor, by name."""
    return {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def device_of(module: nn.Module) -> torch.device:
    """Return where the parameters and buffers of a module are."""
    return next(chain(module.parameters(), module.buffers())).device


def checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return a hash of facts, names and values.  tensors: on the CPU."""
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: str = "", kept: str = "") -> None:
    """Write tensors with facts (JSON) in the header, whole or not at all.  kept: what to say where the disk is full."""
    ours = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    try:
        with atomic(own_file(path.parent, path.name)) as aside:
            save_file(ours, aside, {**({FACTS: facts} if facts else {}), CHECKSUM: checksum(ours, facts)})
            _sort_header(aside)
    except SafetensorError as error:
        raise UserError(f"cannot write {path}: {error}; the disk may be full{kept}") from None


def _sort_header(path: Path) -> None:
    """Put what a header says of the file into one order, so that the same tensors give the same bytes; it is one of chance."""
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
    """Open a file of tensors, of which only the header is read at first; refuse one that is not whole in one sentence."""
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
    """Return what the header of a file of tensors says of them, which is all that is read."""
    with _opened(path, advice) as file:
        return _specs(file)


def read_facts(path: Path, facts: TypeAdapter[F], advice: str = "") -> F:
    """Return the facts in the header of a file of tensors, which is all that is read."""
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
    summed: bool = False,
) -> tuple[dict[str, Tensor], F]:
    """Read tensors and facts that must be right in every respect, and refuse the file in one sentence otherwise.

    Facts are checked by their schema, and names, dtypes and shapes by what is wanted for these facts, before any tensor is
    read; then the checksum, where there is one (older files have none), and that all values are finite.  fits: what the file
    has to fit, for messages; optional: names that may be missing; advice: what to do, put behind every refusal; foreign:
    whether another program wrote the file, whose header may say more; summed: whether a file without a checksum is refused.
    """
    with _opened(path, advice) as file:
        metadata: dict[str, str] = file.metadata() or {}
        if not foreign and (
            other := sorted(metadata.keys() - {FACTS, CHECKSUM})
        ):  # a checksum under a damaged name would not be missed
            raise UserError(f"{path} is damaged: its header has {other[0]!r}, which is no part of it{advice}")
        said = metadata.get(FACTS, "")
        known = _validated(path, said, facts, advice)
        check_tensor_specs(path, wanted(known), found := _specs(file), fits, optional, advice)
        tensors = {name: file.get_tensor(name) for name in found}
    if (summed or CHECKSUM in metadata) and metadata.get(CHECKSUM) != checksum(tensors, said):
        raise UserError(f"{path} is torn: its checksum is wrong{advice}")
    if bad := [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}{advice}")
    return tensors, known


def _validated(path: Path, said: str, facts: TypeAdapter[F], advice: str) -> F:
    try:
        return facts.validate_python(read_json(said or "null"))
    except ValidationError as error:
        raise UserError(f"{path} does not say what it holds: {first_problem(error)}{advice}") from None
    except ValueError as error:
        raise UserError(f"{path} does not say what it holds: {error}{advice}") from None


def check_tensor_specs(
    path: Path,
    wanted: Mapping[str, TensorSpec],
    found: Mapping[str, TensorSpec],
    fits: str,
    optional: Callable[[str], bool] = lambda name: False,
    advice: str = "",
) -> None:
    """Refuse a file whose tensors are not those that are wanted; see `read_tensors`."""
    needed = {name for name in wanted if not optional(name)}
    if wrong := sorted(name for name in needed | found.keys() if wanted.get(name) != found.get(name)):
        first = wrong[0]
        raise UserError(
            f"{path} does not fit {fits}: {len(wrong)} tensors differ, first {first}"
            f" (wanted {wanted.get(first, 'none')}, found {found.get(first, 'none')}){advice}"
        )
