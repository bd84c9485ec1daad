"""Units of the held-out loss and of speed."""

from __future__ import annotations

from typing import Literal

Unit = Literal["bits/dim", "bits/character", "nats/token", "nats"]
EXACT = ("bits/character", "nats/token")  # units of exact values rather than bounds


def format_speed(per_second: float) -> str:
    """Format a speed: 120 steps/s, 2.5 steps/s, 0.04 steps/s."""
    return f"{per_second:,.0f} steps/s" if per_second >= 9.95 else f"{max(per_second, 1e-4):.2g} steps/s"
