"""Reads back what is written down of each setting: the one list that help, checks, template and page are made of.

Decides how a field's annotation becomes words. It must not know any setting by its name. ``loading.py`` converts values
by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import get_args, get_type_hints

import msgspec

from coldstart.config.kinds import Setting
from coldstart.config.settings import Settings

_UNITS = {"s": "seconds"}


class Declared(msgspec.Struct, frozen=True):
    """One field of :class:`Settings` with all that is written down about it; ``type`` is as in the annotation."""

    name: str
    type: object
    default: str | int | float
    setting: Setting

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be, where its type is a ``Literal``; empty: any, or a number."""
        return get_args(self.type)

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.type is str:
            return "text"
        number = "a whole number" if self.type is int else "a number"
        of = f" of {_UNITS.get(self.setting.unit, self.setting.unit)}" if self.setting.unit else ""
        return f"{number}{of} from {self.setting.range}"


@cache
def declared() -> Mapping[str, Declared]:
    """Every setting by its name, in the order of the page."""
    hints = get_type_hints(Settings, include_extras=True)
    found: dict[str, Declared] = {}
    for field in msgspec.structs.fields(Settings):
        kind, setting = get_args(hints[field.name])
        found[field.name] = Declared(field.name, kind, field.default, setting)
    return found
