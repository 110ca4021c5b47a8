"""Values that are held until a moment of their own.

Decides when a value has lapsed and when lapsed ones are cleared away; it knows no clock and nothing
of what the values mean. ``ledger.py`` keeps in it what lives for a while: leaders, answers, inboxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")

_FEW = 64
"""So many may lapse unnoticed."""


class Leases(Generic[ValueT]):
    """Values by name. Moments and lives are in seconds; a value lives while its end is after now."""

    __slots__ = ("_full", "_held")

    def __init__(self) -> None:
        self._held: dict[str, tuple[ValueT, float]] = {}
        self._full = _FEW

    def put(self, name: str, value: ValueT, now: float, seconds: float) -> None:
        self._held[name] = (value, now + seconds)
        if len(self._held) >= self._full:
            self._held = {key: held for key, held in self._held.items() if held[1] > now}
            # To clear at twice the size costs each put no more than a constant.
            self._full = max(2 * len(self._held), _FEW)

    def get(self, name: str, now: float) -> ValueT | None:
        held = self._held.get(name)
        return held[0] if held is not None and held[1] > now else None

    def renew(self, name: str, now: float, seconds: float) -> ValueT | None:
        """The value, held for so long from now on; None when there is none any more."""
        held = self._held.get(name)
        if held is None or held[1] <= now:
            return None
        self._held[name] = (held[0], now + seconds)
        return held[0]

    def drop(self, name: str) -> None:
        self._held.pop(name, None)

    def live(self, now: float) -> Iterator[str]:
        """Names in their order."""
        return (name for name, (_, until) in sorted(self._held.items()) if until > now)
