"""Specs: names with options, as on the command line."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from reverie.base.errors import UserError
from reverie.base.spec import as_list, complete, parse
from reverie.families import FAMILIES
from reverie.nets import NETWORKS


class TestOneValueWhereSeveralAreTaken:
    def test_a_single_word_is_a_list_of_one(self) -> None:
        full = complete(NETWORKS, "unet:widths=8,channels=1,height=8,width=8", "network")
        assert full["widths"] == (8,)
        with pytest.raises(UserError, match="option 'fourier'"):  # files contain explicit lists
            complete(NETWORKS, {**full, "fourier": 3}, "network")

    @pytest.mark.parametrize("family", ["autoencoder", "denoising-autoencoder"])
    def test_also_in_family_settings(self, family: str) -> None:
        given = {"name": family, "widths": "8", "codec": {"name": "pixels"}}
        assert FAMILIES[family].settings.model_validate(given).widths == (8,)

    @pytest.mark.parametrize("family", ["vae", "hvae", "mhvae", "flow"])
    def test_also_in_settings_with_required_options(self, family: str) -> None:
        with pytest.raises(ValidationError) as refused:
            FAMILIES[family].settings.model_validate({"name": family, "widths": "8"})
        assert not [fault for fault in refused.value.errors() if "widths" in fault["loc"]]

    def test_fixed_lengths_are_checked(self) -> None:
        assert as_list(tuple[int, int], "3") == "3"
        assert as_list(Annotated[tuple[int, ...], Field(max_length=2)], "3") == ["3"]
        assert as_list(list[float], "0.5") == ["0.5"] and as_list(list[float], 0.5) == 0.5

    def test_an_empty_list(self) -> None:
        assert parse("unet:widths=[]") == {"name": "unet", "widths": []}
        with pytest.raises(UserError, match="at least 1 item"):
            complete(NETWORKS, "unet:widths=[],channels=1,height=8,width=8", "network")

    def test_lists_need_brackets(self) -> None:
        with pytest.raises(UserError, match=r"key=\[value,value\]"):
            parse("unet:widths=8,16")
