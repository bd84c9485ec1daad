"""Renamed Python names work for one release and name their successors."""

from __future__ import annotations

from importlib import import_module

import pytest

from reverie.base.deprecations import RENAMED


@pytest.mark.parametrize(
    ("module", "old", "new"), [(m, old, new) for m, names in RENAMED.items() for old, new in names.items()]
)
def test_an_old_name_gives_the_new_object_and_a_warning(module: str, old: str, new: str) -> None:
    package = import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{new}$"):
        found = getattr(package, old)
    assert found is getattr(package, new)


@pytest.mark.parametrize("module", RENAMED)
def test_an_unknown_name_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(import_module(module), "no_such_name")  # noqa: B009
