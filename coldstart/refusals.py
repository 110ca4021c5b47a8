"""What was refused because nobody with the fleet's keys can have written it, counted by reason.

Decides how much is said of it: a stranger may send as much as it likes, so that only the 1st, 2nd, 4th, 8th, ...
of a reason is told, and all are counted. It must not know what was refused, nor who hears of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock

Heard = Callable[[str, str, int], object]
"""Told of a reason, what was refused and why in words, and how often there was this reason."""


class Refusals:
    """Counts by reason. Any thread; ``heard`` is set by assignment and may be called from any, too."""

    def __init__(self) -> None:
        self.heard: Heard = lambda reason, words, count: None
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def note(self, reason: str, words: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[reason] += 1
            count = self._counts[reason]
        if count & (count - 1) == 0:
            self.heard(reason, words, count)

    def counts(self) -> Mapping[str, int]:
        """How often, by reason."""
        with self._lock:
            return dict(sorted(self._counts.items()))
