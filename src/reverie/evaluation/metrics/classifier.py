"""A small classifier of the data's own labels: its features carry the distances, its answers the label accuracy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reverie.base.errors import UserError
from reverie.base.tensors import forms_of, read_tensors, write_tensors
from reverie.nets.lenet import LeNet, make


class Facts(BaseModel):
    """What is kept beside the weights: the share of right answers, and of how many held-out images.

    A change of the network or of its training makes another format, and files of the old one are not used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    format: Literal[1] = 1
    accuracy: float = Field(ge=0, le=1)
    held_out: int = Field(ge=1, lt=2**53)


def remember(net: LeNet, facts: Facts, path: Path) -> None:
    """Write the weights and facts to a file; where that is not possible, go on without."""
    try:
        write_tensors(path, net.state_dict(), facts.model_dump_json())
    except UserError as error:
        logging.getLogger(__name__).info("the classifier is not kept: %s", error)


def recall(path: Path, shape: tuple[int, ...], classes: int) -> tuple[LeNet, Facts] | None:
    """Read a classifier back, or nothing if there is none or the file is not whole and right in every tensor."""
    net = make(shape, classes)
    wanted = forms_of(net.state_dict())
    try:
        state, facts = read_tensors(path, lambda _: wanted, TypeAdapter(Facts), fits="these data")
    except UserError:
        return None
    net.load_state_dict(state)
    return net.eval(), facts
