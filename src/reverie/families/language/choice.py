"""Old module of `reverie.families.language.token_sampling`, kept for one release."""

from reverie.base.deprecations import deprecated_names

__getattr__ = deprecated_names(__name__)
