"""Units of what held-out data cost."""

from __future__ import annotations

from typing import Literal

Unit = Literal["bits/dim", "bits/character", "nats/token", "nats"]
EXACT = ("bits/character", "nats/token")  # of figures that are exact, and no bound
