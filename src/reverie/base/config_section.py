"""Parts of a configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

OptionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]  # as it is put behind -- in a command that is advised


class ConfigSection(BaseModel):
    """A part of the configuration: unknown keys, infinities and later changes are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
