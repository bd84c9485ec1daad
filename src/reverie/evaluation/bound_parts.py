"""The terms of the ELBO: prior, denoising by noise level, reconstruction."""

from __future__ import annotations

from typing import Any

import torch

from reverie.diffusion.likelihood import Bound, mean_and_error
from reverie.draw.curves import bound_bars
from reverie.draw.picture import png_bytes

RANGES = 8  # intervals of the log-SNR


def bound_parts(bound: Bound, scale: float, unit: str) -> list[dict[str, Any]]:
    """Return each term in a unit with its standard error; the terms sum to the whole bound.

    The denoising term is split into RANGES intervals of the log-SNR of equal length, the noisiest first.  scale: nats per unit.
    """
    log_snr, pieces = bound.log_snr.double().contiguous(), bound.denoising.double()
    edges = torch.linspace(float(log_snr.min()), float(log_snr.max()), RANGES + 1, dtype=torch.float64)
    interval = torch.bucketize(log_snr, edges[1:-1], right=True)
    parts = {"prior": bound.prior}
    for k in range(RANGES):
        parts[f"{float(edges[k]):.1f} to {float(edges[k + 1]):.1f}"] = (pieces * (interval == k)).sum(1)
    parts["reconstruction"] = bound.reconstruction
    rows: list[dict[str, Any]] = []
    for name, nats in parts.items():
        value, error = mean_and_error(nats)
        rows.append({"part": name, unit: value / scale} | ({"standard error": error / scale} if error is not None else {}))
    return rows


def bars(rows: list[dict[str, Any]], unit: str) -> bytes:
    """Return a bar chart of the terms as a PNG file."""
    return png_bytes(bound_bars([(row["part"], row[unit], row.get("standard error", 0.0)) for row in rows], unit))
