"""Model families: each plans, builds, trains and samples in its own way, and all are used through one seam."""

from __future__ import annotations

from reverie.families.diffusion.family import DiffusionFamily
from reverie.families.model import FAMILIES

FAMILIES.update({"diffusion": DiffusionFamily()})

__all__ = ["FAMILIES"]
