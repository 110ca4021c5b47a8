"""A cold start as a reader of the journal sees it.

Plain values; ``reading.py`` makes them of lines. Whoever shows them (a timeline, a live view, a page) needs
nothing else. Moments (``began``, ``begin``, ``end``, ``at``) are in seconds of the epoch on the store's clock, which
is the same for all workers; durations in seconds, sizes in bytes, rates in bytes per second.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coldstart.chronicle.lines import RefusalKind
from coldstart.phases.states import STORAGE

Outcome = Literal["running", "serving", "failed", "cancelled", "gone"]
"""``gone``: it has served, and does no more. ``running``: as far as has been heard."""
Path = Literal["storage", "peer", "mixed", "loaded", "none"]
MarkKind = Literal["stalled", "corrupted", "detour", "verdict", "weighed", "withheld", "lent again"]


def path_of(peer: bool, storage: bool, loaded: bool) -> Path:
    """What a cold start's path is called, by who gave bytes; ``loaded``: the host had filled the memory itself."""
    if loaded and storage:
        return "loaded"
    if peer and storage:
        return "mixed"
    if peer:
        return "peer"
    return "storage" if storage else "none"


class Stretch(msgspec.Struct, frozen=True):
    """A phase, from one change of state or attempt to the next; ``end`` is None while it lasts."""

    phase: str
    state: str
    attempt: int
    source: str
    begin: float
    end: float | None


class Transfer(msgspec.Struct, frozen=True):
    """What came from one source in one attempt, or from ``storage``.

    ``moving`` is the time in which bytes came; 0: not known. ``outcome`` is ``ok``, why it was left, or empty while it
    goes on, or where nobody has said how it ended.
    """

    attempt: int
    source: str
    transport: str
    begin: float
    end: float | None
    nbytes: int = 0
    moving: float = 0.0
    route: str = ""
    link: float = 0.0
    leading: bool = False
    outcome: str = ""

    @property
    def rate(self) -> float:
        """While bytes came; 0 where that is not known."""
        seconds = self.moving or ((self.end or self.begin) - self.begin)
        return self.nbytes / seconds if seconds > 0 else 0.0


class Refusal(msgspec.Struct, frozen=True):
    """A source that did not give, and why."""

    at: float
    attempt: int
    source: str
    how: RefusalKind
    reason: str


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at one moment, in words; ``source`` where it concerns one."""

    at: float
    kind: MarkKind
    reason: str
    source: str = ""
    attempt: int = 0


class Loan(msgspec.Struct, frozen=True):
    """What this worker lent: to which worker, and which cold start of it (empty: not known)."""

    joiner: str
    start: str
    transport: str
    begin: float
    end: float
    outcome: str


class ColdStart(msgspec.Struct, frozen=True):
    """One cold start, as far as the journal tells it.

    Args:
        start: its id, which no other has; ``trace``: of the trace that it is in, or empty.
        began: when the worker began; ``heard``: when the store last heard of it.
        built: seconds that the skeleton took; 0: not known.
        seconds: from its beginning to SERVE or its end; None while it runs.
        sources: bytes of weights in place, by worker or ``storage``.
        total: bytes of weights; 0: not known.
        reason: why it failed, in words; ``failure``: in one word (:class:`coldstart.phases.states.Failure`).
        lost: lines that are missing; ``unknown``: lines that cannot be read here.
    """

    start: str
    worker: str
    shard: str
    model: str
    host: str
    rank: str
    trace: str
    group: str
    index: int
    size: int
    began: float
    heard: float
    built: float
    outcome: Outcome
    seconds: float | None
    total: int
    verified: int
    chunks: int
    sources: dict[str, int]
    phases: tuple[Stretch, ...]
    transfers: tuple[Transfer, ...]
    refusals: tuple[Refusal, ...]
    marks: tuple[Mark, ...]
    loans: tuple[Loan, ...]
    loaded: bool = False
    reason: str = ""
    lost: int = 0
    unknown: int = 0
    failure: str = ""

    @property
    def phase(self) -> str:
        """Where it stands, or stood last; empty where that is not known."""
        return self.phases[-1].phase if self.phases else ""

    @property
    def path(self) -> Path:
        """Where its weights came from, as in the report."""
        peer = any(nbytes for source, nbytes in self.sources.items() if source != STORAGE)
        return path_of(peer, self.sources.get(STORAGE, 0) > 0, self.loaded)

    @property
    def detours(self) -> tuple[str, ...]:
        """Why each path was left, in order."""
        return tuple(mark.reason for mark in self.marks if mark.kind == "detour")
