"""Old name of `reverie.demos`, for one release."""

from __future__ import annotations

from reverie.base.deprecations import deprecated_names

__getattr__ = deprecated_names(__name__)
