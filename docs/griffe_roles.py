"""Docstrings name things by roles of reStructuredText (``:class:`Name```); in Markdown the name alone is code."""

from __future__ import annotations

import re

from griffe import Extension, Object

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`[~!]?([^`]+)`")


class Roles(Extension):
    """Takes roles away from every docstring."""

    def on_instance(self, *, obj: Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
