"""Base class of the sections of a configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

OptionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]  # as written after -- in suggested commands


class ConfigSection(BaseModel):
    """A section of the configuration: immutable; rejects unknown keys and infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
