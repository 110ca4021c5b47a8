"""What came of a storm. It is data."""

from __future__ import annotations

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken: which, when (virtual seconds), by whom, and how."""

    promise: str
    at: float
    worker: str
    what: str


class Outcome(msgspec.Struct, frozen=True):
    """One storm.

    ``trace_hash`` is over moment, worker, event and state of every step of a machine. ``paths``
    counts cold starts by where their bytes came from or how they ended, ``faults`` what struck.
    """

    seed: int
    trace_hash: str
    steps: int
    virtual_seconds: float
    paths: dict[str, int]
    faults: dict[str, int]
    violations: tuple[Violation, ...] = ()
    journal: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        """The command that plays it again and tells it step by step."""
        return f"python -m coldstart.testing.chaos {self.seed}"

    def __str__(self) -> str:
        broken = [f"  {v.at:.4f} {v.worker} {v.promise}: {v.what}" for v in self.violations]
        return "\n".join((*self.journal, f"seed {self.seed}, replay with: {self.replay}", *broken))
