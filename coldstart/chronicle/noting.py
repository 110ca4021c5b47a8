"""Turns the steps of a joiner into lines: what happened, told once.

Decides what counts as a transfer, a refusal, a stall. Pure: it is told of each step and returns the lines that
come of it. The journal writes them (``coldstart.journal``), the trace makes spans and events of them
(``coldstart.telemetry``), so that both tell the same. The source's side is ``lent.py``.
"""

from __future__ import annotations

import msgspec

from coldstart.chronicle import lines
from coldstart.chronicle.lines import AnyLine, words
from coldstart.effects import Pull, ReadStorage
from coldstart.events import (
    AttemptEvent,
    BytesLanded,
    ChunkCorrupted,
    ChunkVerified,
    ClaimDeferred,
    Expired,
    GroupHeard,
    LoaderElected,
    OfferRefused,
    PullEnded,
    SourceClaimed,
    SourceProgressed,
    Started,
    Timer,
)
from coldstart.layout import Layout
from coldstart.links.rates import Passage, joined
from coldstart.machine import phase_of
from coldstart.phases.states import (
    STORAGE,
    Abandoning,
    Failed,
    LoadFailing,
    Loading,
    Phase,
    State,
    Transferring,
    Waiting,
    further_at,
    further_of,
)
from coldstart.plan import payload_of
from coldstart.ports import EXCLUDED, Advert, Skip
from coldstart.runner import Entry

ENDS = (Phase.SERVE, Phase.FAILED, Phase.GONE)
"""Phases with which a cold start is over."""

MAX_SKIPS = 32
"""Workers that one cold start says it was not sent to, at most."""

_OVER = (*ENDS, Phase.VERIFY)


class _Flow(msgspec.Struct):
    """What has come over one attempt's pulls, so far."""

    source: str
    transport: str
    began: float
    leading: bool = False
    landed: int = 0
    route: str = ""
    passages: list[Passage] = []


class JoinerNotes:
    """Folds the steps of one joiner into lines.

    Args:
        layout: of the carried tensors, to count bytes.
        began: monotonic seconds at which the cold start began.
    """

    def __init__(self, layout: Layout, began: float) -> None:
        self._layout, self._began = layout, began
        self._flows: dict[int, _Flow] = {}
        self._skipped: set[tuple[str, str]] = set()
        self._decision = ""
        self._loaded = False

    def __call__(self, entry: Entry[State]) -> tuple[AnyLine, ...]:
        """The lines of one step, in order."""
        self._count(entry)
        if _went_on(entry):
            return ()
        at = max(0.0, round(entry.at - self._began, 6))
        return (
            *self._refusals(entry, at),
            *_troubles(entry, at),
            *self._ended_flows(entry, at),
            *_detours(entry, at),
            *_verdicts(entry, at),
            *self._choice(entry, at),
            *_entered(entry, at),
            *self._begun_flows(entry, at),
            *self._end(entry, at),
        )

    def _count(self, entry: Entry[State]) -> None:
        match entry.event:
            case Started(loaded=loaded):
                self._loaded = loaded
            case BytesLanded(attempt=attempt, nbytes=nbytes) if attempt in self._flows:
                self._flows[attempt].landed += nbytes
            case PullEnded(attempt=attempt, route=route, passage=passage) if attempt in self._flows:
                flow = self._flows[attempt]
                flow.route = route or flow.route
                if passage is not None:
                    flow.passages.append(passage)
            case _:
                pass

    def _refusals(self, entry: Entry[State], at: float) -> list[AnyLine]:
        attempt = entry.before.journey.attempt
        match entry.event:
            case SourceClaimed(skipped=skipped) | LoaderElected(skipped=skipped) | ClaimDeferred(skipped=skipped):
                return [self._skip(skip, attempt, at) for skip in skipped if self._is_new(skip)]
            case OfferRefused(attempt=number, reason=reason) if source := _asked(entry.before, number):
                early = number == attempt and phase_of(entry.before) is Phase.HANDSHAKE
                other = further_at(entry.before, number)
                early = early or (other is not None and not other.offered)
                how: lines.RefusalKind = "refused" if early else "revoked"
                return [lines.Refused(at=at, attempt=number, source=source, how=how, reason=words(reason))]
            case _:
                return []

    def _is_new(self, skip: Skip) -> bool:
        """Not told yet; and not one that we had excluded ourselves."""
        if skip.reason == EXCLUDED or len(self._skipped) >= MAX_SKIPS:
            return False
        return (skip.worker, skip.reason) not in self._skipped

    def _skip(self, skip: Skip, attempt: int, at: float) -> AnyLine:
        self._skipped.add((skip.worker, skip.reason))
        return lines.Refused(
            at=at, attempt=attempt, source=skip.worker[:96], how="passed over", reason=words(skip.reason)
        )

    def _begun_flows(self, entry: Entry[State], at: float) -> list[AnyLine]:
        found: list[AnyLine] = []
        for effect in entry.effects:
            match effect:
                case Pull(attempt=attempt, source=source, transport=transport) if attempt not in self._flows:
                    flow = _Flow(source.worker, transport, at)
                case ReadStorage(attempt=attempt, leading=leading) if attempt not in self._flows:
                    flow = _Flow(STORAGE, STORAGE, at, leading)
                case _:
                    continue
            self._flows[attempt] = flow
            found.append(
                lines.Pulling(
                    at=at, attempt=attempt, source=flow.source, transport=flow.transport, leading=flow.leading
                )
            )
        return found

    def _ended_flows(self, entry: Entry[State], at: float) -> list[AnyLine]:
        """Those of attempts that are over."""
        state = entry.after
        going = {each.attempt for each in further_of(state)}
        if phase_of(state) not in _OVER:
            going.add(state.journey.attempt)
        over = [attempt for attempt in self._flows if attempt not in going]
        return [self._pulled(attempt, self._flows.pop(attempt), entry, at) for attempt in over]

    def _pulled(self, attempt: int, flow: _Flow, entry: Entry[State], at: float) -> AnyLine:
        whole = joined(flow.passages)
        moving = sum(each.moved.seconds for each in whole)
        most = max(whole, key=lambda each: each.moved.nbytes, default=None)
        return lines.Pulled(
            at=at,
            attempt=attempt,
            source=flow.source,
            transport=flow.transport,
            nbytes=flow.landed,
            seconds=at - flow.began,
            outcome=words(_outcome(attempt, flow.source, entry)),
            route=words(flow.route),
            moving=round(moving, 6),
            link=most.link if most is not None else 0.0,
            origin=most.origin if most is not None and most.link else "",
            share=most.share if most is not None else 0.0,
            leading=flow.leading,
        )

    def _choice(self, entry: Entry[State], at: float) -> list[AnyLine]:
        """Each change of mind about storage; as long as the store is asked there is none."""
        choice = entry.after.journey.choice
        if choice is None or choice.pending or choice.decision == self._decision:
            return []
        self._decision = choice.decision
        if not 0 <= choice.waiting <= 1e18 or not 0 <= choice.storage <= 1e18:
            return []
        return [lines.Weighed(at=at, waiting=choice.waiting, storage=choice.storage, decision=choice.decision)]

    def _end(self, entry: Entry[State], at: float) -> list[AnyLine]:
        phase = phase_of(entry.after)
        if phase is phase_of(entry.before) or phase not in ENDS:
            return []
        origins = {
            origin[:96]: payload_of(self._layout, chunks) for origin, chunks in entry.after.journey.origins[:32]
        }
        failed = entry.after if isinstance(entry.after, Failed) else None
        return [
            lines.Ended(
                at=at,
                phase=phase.value,
                total=self._layout.payload,
                origins=origins,
                loaded=self._loaded,
                failure=failed.failure.value if failed is not None else "",
                reason=words(failed.reason) if failed is not None else "",
            )
        ]


def _went_on(entry: Entry[State]) -> bool:
    """Whether bytes came, or proved right, and nothing else happened: nearly all steps are such."""
    if not isinstance(entry.event, BytesLanded | ChunkVerified):
        return False
    before, after = entry.before, entry.after
    was, now = before.journey, after.journey
    return (
        type(before) is type(after)
        and was.attempt == now.attempt
        and was.asides == now.asides
        and was.choice is now.choice
        and was.detours is now.detours
        and len(further_of(before)) == len(further_of(after))
        and not any(isinstance(effect, Pull) for effect in entry.effects)
    )


def _entered(entry: Entry[State], at: float) -> list[AnyLine]:
    before, after = entry.before, entry.after
    if type(before) is type(after) and before.journey.attempt == after.journey.attempt:
        return []
    journey = after.journey
    return [
        lines.Entered(
            at=at,
            phase=phase_of(after).value,
            state=type(after).__name__,
            attempt=journey.attempt,
            source=_dealt_with(after),
            verified=len(journey.verified),
            chunks=journey.total,
        )
    ]


def _detours(entry: Entry[State], at: float) -> list[AnyLine]:
    return [lines.Detoured(at=at, reason=words(reason)) for reason in _new_detours(entry)]


def _verdicts(entry: Entry[State], at: float) -> list[AnyLine]:
    before, after = entry.before.journey.accord, entry.after.journey.accord
    if not isinstance(entry.event, GroupHeard) or after is None:
        return []
    known = before.verdicts if before is not None else ()
    return [
        lines.Decided(at=at, question=each.question, yes=each.yes, by=each.by, reason=words(each.reason))
        for each in after.verdicts
        if each not in known
    ]


def _troubles(entry: Entry[State], at: float) -> list[AnyLine]:
    """Wrong bytes, and too few of them."""
    match entry.event:
        case ChunkCorrupted(attempt=attempt, chunk=chunk) if source := _asked(entry.before, attempt):
            return [lines.Corrupted(at=at, attempt=attempt, source=source, chunk=chunk)]
        case Expired(timer=Timer.STALL | Timer.ANSWER | Timer.PATIENCE, subject=subject):
            return _silence(entry, subject, at)
        case BytesLanded() | SourceProgressed() if isinstance(entry.before, Transferring):
            return [] if isinstance(entry.after, Transferring) else _silence(entry, "", at)
        case _:
            return []


def _silence(entry: Entry[State], subject: str, at: float) -> list[AnyLine]:
    """A clock has run out, or bytes came too slowly; a line if somebody was left for that."""
    before, after = entry.before, entry.after
    if subject:
        ours = next((each for each in further_of(before) if subject == str(each.attempt)), None)
        theirs = None if ours is None else further_at(after, ours.attempt)
        if ours is None or ours.source is None or theirs is ours:
            return []
        reason = theirs.ending if theirs is not None and theirs.ending else _last_reason(entry)
        return [lines.Stalled(at=at, attempt=ours.attempt, source=ours.source.worker, reason=words(reason))]
    if type(before) is type(after) and before.journey.attempt == after.journey.attempt:
        return []
    source = _asked(before, before.journey.attempt)
    reason = after.reason if isinstance(after, Abandoning | LoadFailing) else _last_reason(entry)
    if not source:
        return []
    reason = reason.removeprefix(f"{source}: ")
    return [lines.Stalled(at=at, attempt=before.journey.attempt, source=source, reason=words(reason))]


def _new_detours(entry: Entry[State]) -> tuple[str, ...]:
    return entry.after.journey.detours[len(entry.before.journey.detours) :]


def _last_reason(entry: Entry[State]) -> str:
    new = _new_detours(entry)
    return new[-1] if new else ""


def _outcome(attempt: int, source: str, entry: Entry[State]) -> str:
    """How ``attempt``, at ``source``, ended, by the step in which it did."""
    journey, phase = entry.after.journey, phase_of(entry.after)
    if phase is Phase.GONE:
        return "cancelled"
    named = [reason for reason in _new_detours(entry) if reason.startswith(f"{source}: ")]
    if named:
        return named[-1].removeprefix(f"{source}: ")
    if isinstance(entry.event, AttemptEvent) and phase in _OVER and journey.complete:
        return "ok"
    other = further_at(entry.before, attempt)
    return (other.ending if other is not None else "") or _last_reason(entry) or "ended"


def _asked(state: State, attempt: int) -> str:
    """Whom ``attempt`` is at, as far as that is still a matter in this state."""
    other = further_at(state, attempt)
    if other is not None:
        return other.source.worker if other.source is not None else ""
    if attempt != state.journey.attempt:
        return ""
    if isinstance(state, Loading):
        return STORAGE
    return _dealt_with(state)


def _dealt_with(state: State) -> str:
    if isinstance(state, Waiting):
        return state.leader
    if isinstance(state, Loading | LoadFailing):
        return STORAGE
    source = getattr(state, "source", None)
    return source.worker if isinstance(source, Advert) else ""
