"""What a bound is made of: prior, denoising by noise level, reconstruction."""

from __future__ import annotations

from typing import Any

import torch

from reverie.diffusion.likelihood import Bound, mean_and_error
from reverie.draw.curves import bound_bars
from reverie.draw.picture import png_bytes

RANGES = 8  # of the log-SNR that are told apart


def bound_parts(bound: Bound, scale: float, unit: str) -> list[dict[str, Any]]:
    """Return what each part costs in its unit, with standard errors: the costs sum to that of the whole bound.

    Each piece of the integral over the log-SNR belongs to the range that it lies in, of RANGES equal ones from the noisiest.
    scale: nats in the unit.
    """
    place, pieces = bound.log_snr.double().contiguous(), bound.denoising.double()
    edges = torch.linspace(float(place.min()), float(place.max()), RANGES + 1, dtype=torch.float64)
    which = torch.bucketize(place, edges[1:-1], right=True)
    parts = {"prior": bound.prior}
    for k in range(RANGES):
        parts[f"{float(edges[k]):.1f} to {float(edges[k + 1]):.1f}"] = (pieces * (which == k)).sum(1)
    parts["reconstruction"] = bound.reconstruction
    rows: list[dict[str, Any]] = []
    for name, nats in parts.items():
        cost, error = mean_and_error(nats)
        rows.append({"part": name, unit: cost / scale} | ({"standard error": error / scale} if error is not None else {}))
    return rows


def bars(rows: list[dict[str, Any]], unit: str) -> bytes:
    """Draw the parts as a PNG file."""
    return png_bytes(bound_bars([(row["part"], row[unit], row.get("standard error", 0.0)) for row in rows], unit))
