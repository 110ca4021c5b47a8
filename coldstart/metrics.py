"""Metrics of one worker, derived from the machines' steps; what each is called and labelled is in ``instruments.py``.

Decides when something is counted. Like ``telemetry`` it is told of every step and asks nothing; it must not know
who collects. Everything that adds up to the present state of a process (slots, holders) is taken back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from coldstart import events
from coldstart.effects import SendRefusal
from coldstart.instruments import Direction, Instruments, Outcome, Whose
from coldstart.links.rates import Floors, Passage, joined, missed
from coldstart.machine import phase_of
from coldstart.modes import moves
from coldstart.phases.states import STORAGE, Failed, Failure, Loading, Phase, State
from coldstart.ports import Counting, Transport
from coldstart.reasons import Causes, denial, fell_back, withholding
from coldstart.report import Report
from coldstart.runner import Entry
from coldstart.source import Mode, Source

_ENDS: Mapping[Phase, Outcome] = {
    Phase.SERVE: Outcome.SERVED,
    Phase.FAILED: Outcome.FAILED,
    Phase.GONE: Outcome.CANCELLED,
}


class JoinerMetrics:
    """Observes a joiner.

    Args:
        shard: what is started, as people call it.
        report: what has happened so far, the step that is being observed included.
        transports: over which bytes may come.
        floors: of which a miss is counted.
    """

    def __init__(
        self,
        instruments: Instruments,
        shard: str,
        report: Callable[[], Report],
        transports: Iterable[str] = (),
        floors: Floors | None = None,
    ) -> None:
        self._to, self._shard, self._report, self._floors = instruments, shard, report, floors or Floors()
        self._causes = Causes()
        self._passages: list[Passage] = []
        self._ended = self._serving = False
        self._over: dict[int, str] = {}
        """Of each attempt, what its bytes come over."""
        instruments.begin(transports)

    def __call__(self, entry: Entry[State]) -> None:
        cause = self._causes.of(entry)
        self._count_moved(entry)
        for _ in entry.after.journey.detours[len(entry.before.journey.detours) :]:
            self._to.detoured(cause)
        if fell_back(entry):
            self._to.fell_back(cause)
        if isinstance(entry.after, Failed) and not isinstance(entry.before, Failed):
            self._to.failed(entry.after.failure)
            if entry.after.failure is Failure.CONFLICT:
                self._to.conflicted()
        phase = phase_of(entry.after)
        if phase in _ENDS and not self._ended:
            self._end(_ENDS[phase])
        self._serve(phase is Phase.SERVE)

    def end(self) -> None:
        """The process or its host goes on without this worker."""
        self._serve(False)

    def _count_moved(self, entry: Entry[State]) -> None:
        match entry.event:
            case events.OfferReceived(attempt=attempt, transport=transport):
                self._over[attempt] = transport
            case events.BytesLanded(attempt=attempt, nbytes=nbytes):
                self._to.moved(nbytes, self._carrier(entry.before, attempt), Direction.RECEIVED)
            case events.ChunkCorrupted():
                self._to.digest_failed(Whose.STORAGE if isinstance(entry.before, Loading) else Whose.PEER)
            case events.PullEnded(passage=passage) if passage is not None:
                self._passages.append(passage)
            case _:
                pass

    def _carrier(self, state: State, attempt: int) -> str:
        return STORAGE if isinstance(state, Loading) else self._over.get(attempt, "unknown")

    def _serve(self, now: bool) -> None:
        if now is not self._serving:
            self._serving = now
            self._to.serving(self._shard, 1 if now else -1)

    def _end(self, outcome: Outcome) -> None:
        self._ended = True
        report = self._report()
        self._to.started(report, outcome)
        for passage in joined(self._passages):
            self._to.transferred(passage.transport, passage.moved.rate, passage.share)
            for floor in missed(passage, self._floors):
                self._to.below_floor(passage.transport, floor)
        read = [each for each in report.attempts if each.source == STORAGE and each.bytes]
        took = sum(each.seconds for each in read)
        if took > 0:
            self._to.transferred(STORAGE, sum(each.bytes for each in read) / took, 0.0)


class SourceMetrics:
    """Observes a source.

    Args:
        shard: what is lent, as people call it.
        transports: asked what they have sent, where they can tell; of others joiners say what they have read.
    """

    def __init__(self, instruments: Instruments, shard: str, transports: Mapping[str, Transport]) -> None:
        self._to, self._shard = instruments, shard
        self._counting = {name: each for name, each in transports.items() if isinstance(each, Counting)}
        self._sent = dict.fromkeys(self._counting, 0)
        self._shown = _Shown()
        self._conflict = False

    def __call__(self, entry: Entry[Source]) -> None:
        before, after = entry.before, entry.after
        for effect in entry.effects:
            if isinstance(effect, SendRefusal):
                self._to.refused(denial(entry.event, effect))
        if after.mode is Mode.WITHHELD and (before.mode is not Mode.WITHHELD or before.why != after.why):
            self._to.withheld(withholding(entry.event))
        match entry.event:
            case events.WeightsDamaged():
                self._to.digest_failed(Whose.OWN)
            case events.AdvertFailed(conflict=conflict):
                if conflict and not self._conflict:
                    self._to.conflicted()
                self._conflict = conflict
            case events.Advertised():
                self._conflict = False
                self._count_sent()
            case events.GrantClosed():
                self._count_sent()
            case events.DoneReceived(transfer=transfer, taken=taken):
                self._count_taken(before, transfer, taken)
            case _:
                pass
        self._show(_shown(after))

    def end(self) -> None:
        """Take back what says how things are now."""
        self._count_sent()
        self._show(_Shown())

    def _count_sent(self) -> None:
        for name, transport in self._counting.items():
            sent = transport.sent
            self._to.moved(sent - self._sent[name], name, Direction.SENT)
            self._sent[name] = sent

    def _count_taken(self, before: Source, transfer: str, taken: int) -> None:
        """What a joiner says that it has read, where the transport does not know: once for each grant."""
        grant = before.grantee(transfer)
        if grant is not None and not grant.closing and grant.transport not in self._counting:
            self._to.moved(taken, grant.transport, Direction.SENT)

    def _show(self, now: _Shown) -> None:
        was, self._shown = self._shown, now
        if now != was:
            self._to.slots(now.slots - was.slots, now.used - was.used)
            self._to.holding(self._shard, now.whole - was.whole, now.withheld - was.withheld)


class _Shown(msgspec.Struct, frozen=True):
    """What of a source is a matter of the present: slots and their use, and whether all of its weights can be had."""

    slots: int = 0
    used: int = 0
    whole: bool = False
    withheld: bool = False


def _shown(source: Source) -> _Shown:
    lends = source.mode is Mode.OPEN
    return _Shown(
        source.terms.slots if lends else 0,
        len(moves.held(source)),
        lends and source.have is None,
        source.mode is Mode.WITHHELD,
    )
