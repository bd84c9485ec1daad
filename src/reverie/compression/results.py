"""Results of compression and decompression, with text summaries and files."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.base.progress import OnProgress, silent
from reverie.compression.container import Header
from reverie.compression.images import check_targets, to_unit_range, write_folder
from reverie.data.kind import format_count
from reverie.draw.picture import channels_last
from reverie.runs.destinations import check_capacity, check_output, is_folder
from reverie.runs.outputs import for_images
from reverie.runs.samples import Samples


@dataclass(frozen=True)
class Compressed:
    """The result of compression.

    size: bytes of the file, including `header` and `names`; plain: images at the bottom of the stack, stored in plain_bytes;
    fine: images coded with the finest bins.  In bits/dim: bits, of the whole file; coded, of the fine images; promised, the
    variational bound along the chain for these (None without fine images); continuous, the continuous-time bound with its
    error.  others: bytes of PNG, zlib and lzma.
    """

    path: Path
    count: int
    shape: tuple[int, ...]
    size: int
    header: int
    names: int
    plain: int
    plain_bytes: int
    fine: int
    bits: float
    coded: float | None
    promised: float | None
    continuous: float
    continuous_error: float | None
    steps: int
    end: float
    others: dict[str, int]
    images_per_second: float

    def figures(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible values."""
        return {**asdict(self), "path": str(self.path), "shape": list(self.shape)}

    def __str__(self) -> str:
        summary = f"{format_count(self.count, self.shape)} in {self.size:,} bytes, {self.bits:.4g} bits/dim"
        lines = [f"wrote {self.path}: {summary} ({self.images_per_second:.3g} images/s)"]
        error = f" ± {self.continuous_error:.2g}" if self.continuous_error is not None else ""
        continuous = f"{self.continuous:.4g}{error} in continuous time"
        if self.coded is not None and self.promised is not None:
            bits = 8 * (self.size - self.names) / (self.count * math.prod(self.shape))
            part = "the whole file" if not self.names else "the file without its names"
            lines.append(
                f"the bound of its {self.steps} steps promised {self.promised:.4g} bits/dim ({continuous}); against that"
                f" {part} takes {bits / self.promised - 1:+.1%}, the {self.fine:,} images after the first"
                f" {self.coded / self.promised - 1:+.1%}"
            )
        else:
            lines.append(f"too few images to be coded by the chain; its bound is {continuous}")
        plain_images = "1 image" if self.plain == 1 else f"{self.plain:,} images"
        name_bytes = f", {self.names:,} of names" if self.names else ""
        lines.append(
            f"fixed: {self.header:,} bytes of header{name_bytes},"
            f" and {plain_images} stored without the chain in {self.plain_bytes:,}"
        )
        other_sizes = ", ".join(f"{name if name != 'png' else 'PNG'} {size:,}" for name, size in self.others.items())
        return "\n".join([*lines, f"others need: {other_sizes} bytes"])


@dataclass(frozen=True, repr=False)
class Decompressed:
    """The original images, (N, C, H, W) uint8, and their file names, if any."""

    x: Tensor
    names: list[str] | None

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Decompressed({format_count(len(self), tuple(self.x.shape[1:]))})"

    @property
    def samples(self) -> Samples:
        """The images as samples, in [0, 1]."""
        return Samples(channels_last(to_unit_range(self.x).numpy()))

    def save(self, out: str | Path, overwrite: bool = False, on_progress: OnProgress = silent) -> list[Path]:
        """Write PNG files into a folder, a contact sheet X.png or an array X.npy; return the files."""
        if is_folder(out):
            return write_folder(expanded(out), _file_names(self.names, len(self)), channels_last(self.x.numpy()), on_progress)
        return self.samples.save(out, overwrite)


def _file_names(names: list[str] | None, count: int) -> list[str]:
    numbered = for_images(count)
    return [numbered.name(k) for k in range(count)] if names is None else names


def check_out(out: str | Path, overwrite: bool, header: Header, names: list[str] | None, shape: tuple[int, ...]) -> None:
    """Raise an error before decoding if the output cannot be written."""
    if is_folder(out):
        check_targets(expanded(out), _file_names(names, header.count))
    elif Path(out).suffix.lower() not in (".npy", ".png"):
        raise UserError(f"cannot write {out}: choose a folder, or a name that ends in .npy or .png")
    else:
        check_output(out, overwrite)
        check_capacity(out, header.count, shape)
