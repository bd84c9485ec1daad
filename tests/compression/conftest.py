"""A run that knows the levels of its images, and a hundred of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from reverie.data import load_data
from reverie.runs.run import Run
from tests.conftest import TINY


@pytest.fixture(scope="module")
def run(trained: Callable[..., Run]) -> Run:
    return trained("digits8-likelihood", "digits8", steps=40, network=TINY, purpose="likelihood")


@pytest.fixture(scope="module")
def images() -> Tensor:
    x = load_data("digits8").x
    assert isinstance(x, Tensor)
    return x[:100]
