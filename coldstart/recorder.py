"""Folds the steps of a cold start into its report: the truth about the path taken.

Decides how steps become phase times, attempts, origins of bytes and progress. Pure: it is told
of every step (as an observer of the runner) and asks nothing. ``telemetry`` turns the same
steps into logs and spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from coldstart.chronicle.starts import path_of
from coldstart.estimate import Estimate
from coldstart.events import (
    BytesLanded,
    CheckPassed,
    ClaimDeferred,
    LoaderElected,
    OfferReceived,
    PullEnded,
    SourceClaimed,
    Started,
    TruthReceived,
    TruthUnpublished,
)
from coldstart.group import Accord
from coldstart.layout import Layout
from coldstart.links.rates import Floors, Moved, Passage, joined, shortfalls
from coldstart.machine import phase_of
from coldstart.phases.journey import Journey
from coldstart.phases.states import STORAGE, Failed, Handshaking, Loading, Phase, State, further_of
from coldstart.plan import payload_of
from coldstart.ports import Advert
from coldstart.report import Attempt, GroupReport, Mark, Progress, Report, Weighed
from coldstart.runner import Entry

_AFTER = (Phase.VERIFY, Phase.SERVE, Phase.FAILED, Phase.GONE)


class _Going(NamedTuple):
    """An attempt at a further source that is under way; ``ending`` says why it is being given up."""

    source: str
    began: float
    transport: str
    ending: str


class Recorder:
    """Folds the steps of one joiner into a report.

    Args:
        worker, shard, model: names for the report.
        layout: of the carried tensors, to count bytes.
        began: monotonic seconds at which the cold start began (before the skeleton was built).
        floors: what is to be warned of.
        refused: what was not believed so far, by reason.
    """

    def __init__(
        self,
        worker: str,
        shard: str,
        model: str,
        layout: Layout,
        began: float,
        floors: Floors | None = None,
        refused: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._worker, self._shard, self._model = worker, shard, model
        self._layout = layout
        self._began = began
        self._floors = floors or Floors()
        self._refused = refused
        self._passages: list[Passage] = []
        self._entered = began
        self._now = began
        self._ended: float | None = None
        self._phases: dict[str, float] = {}
        self._attempts: list[Attempt] = []
        self._timeline: list[Mark] = []
        self._open: tuple[int, str, float, str] | None = None
        self._further: dict[int, _Going] = {}
        self._skipped: dict[str, str] = {}
        self._estimates: list[Estimate] = []
        self._arrived: float | None = None
        self._landed = 0
        self._landed_in_phase = 0
        self._own_truth = self._loaded = False
        self._served = False
        self._transport = self._route = self._whole_read = self._notice = self._probe = ""
        self._state: State | None = None

    def built(self, seconds: float, whole_read: str = "", notice: str = "") -> None:
        """The skeleton took so long; ``whole_read`` is why storage is not read chunk by chunk, if it is not,
        ``notice`` why the module may not be what was meant.
        """
        self._whole_read, self._notice = whole_read, notice
        self._phases["build"] = seconds
        self._timeline.append(Mark("BUILD", 0.0))

    def __call__(self, entry: Entry[State]) -> None:
        """Take one step in."""
        self._now = entry.at
        self._note(entry)
        if phase_of(entry.before) is not phase_of(entry.after):
            source = getattr(entry.after, "source", None)
            name = source.worker if isinstance(source, Advert) else ""
            self._change_phase(phase_of(entry.before), phase_of(entry.after), entry.at, name)
        self._follow_attempt(entry)
        self._follow_further(entry)
        self._follow_estimates(entry)
        self._state = entry.after

    def _note(self, entry: Entry[State]) -> None:
        match entry.event:
            case BytesLanded(nbytes=nbytes):
                self._landed += nbytes
                self._landed_in_phase += nbytes
            case SourceClaimed(skipped=skipped) | LoaderElected(skipped=skipped) | ClaimDeferred(skipped=skipped):
                self._skipped.update({skip.worker: skip.reason for skip in skipped})
            case OfferReceived(transport=transport):
                self._transport = transport
            case PullEnded(route=route, passage=passage):
                self._route = route or self._route
                if passage is not None:
                    self._passages.append(passage)
            case TruthUnpublished():
                self._own_truth = True
            case CheckPassed(probe=probe):
                self._probe = probe
            case Started(loaded=loaded):
                self._loaded = loaded
            case TruthReceived():
                self._own_truth = False
            case _:
                pass
        if isinstance(entry.after, Loading) and not entry.after.journey.root:
            self._own_truth = True

    def _change_phase(self, before: Phase, after: Phase, at: float, source: str) -> None:
        if before is not Phase.IDLE:
            name = before.value.lower()
            self._phases[name] = self._phases.get(name, 0.0) + at - self._entered
        self._entered = at
        self._landed_in_phase = 0
        if self._ended is None:
            self._timeline.append(Mark(after.value, at - self._began, source))
        self._served = self._served or after is Phase.SERVE
        self._arrived = at if after is Phase.VERIFY else self._arrived
        if after in (Phase.SERVE, Phase.FAILED, Phase.GONE) and self._ended is None:
            self._ended = at

    def _follow_attempt(self, entry: Entry[State]) -> None:
        number, journey = entry.after.journey.attempt, entry.after.journey
        if self._open is not None and (self._open[0] != number or phase_of(entry.after) in _AFTER):
            began_number, source, began, transport = self._open
            # A whole load forgets what it writes over: the try had brought it all the same.
            nbytes = self._brought(source, journey, entry.before.journey)
            outcome = _outcome(phase_of(entry.after), journey)
            self._attempts.append(
                Attempt(began_number, source, transport or self._transport, entry.at - began, nbytes, outcome)
            )
            self._open = None
        if self._open is None and phase_of(entry.after) not in _AFTER:
            match entry.after:
                case Handshaking(source=advert):
                    self._transport = ""
                    self._open = (number, advert.worker, entry.at, "")
                case Loading():
                    self._open = (number, STORAGE, entry.at, STORAGE)
                case _:
                    pass

    def _follow_further(self, entry: Entry[State]) -> None:
        """The sources beside the first one, each as one attempt."""
        further = [each for each in further_of(entry.after) if each.source is not None]
        going = {each.attempt for each in further}
        for number in [each for each in self._further if each not in going]:
            self._end_further(number, self._further.pop(number), entry)
        for each in further:
            assert each.source is not None
            known = self._further.get(each.attempt)
            began = entry.at if known is None else known.began
            self._further[each.attempt] = _Going(each.source.worker, began, each.transport, each.ending)

    def _end_further(self, number: int, going: _Going, entry: Entry[State]) -> None:
        journey = entry.after.journey
        left = [reason for reason in journey.detours if reason.startswith(f"{going.source}: ")]
        outcome = left[-1].partition(": ")[2] if left else going.ending or "ok"
        nbytes = self._brought(going.source, journey)
        self._attempts.append(Attempt(number, going.source, going.transport, entry.at - going.began, nbytes, outcome))

    def _brought(self, source: str, *journeys: Journey) -> int:
        """Bytes that ``source`` has brought since the last attempt at it; by the first journey that knows of any."""
        chunks = next((found for journey in journeys if (found := dict(journey.origins).get(source))), None)
        before = sum(each.bytes for each in self._attempts if each.source == source)
        return payload_of(self._layout, chunks) - before if chunks else 0

    def _follow_estimates(self, entry: Entry[State]) -> None:
        """Each change of mind. Before the store has answered it is none; nor is it that the end is near now."""
        choice, before = entry.after.journey.choice, entry.before.journey.choice
        if choice is None or choice is before:
            return
        told = self._estimates
        if told and told[-1].pending:
            told.pop()
        if not told or choice.decision not in ("wait", told[-1].decision):
            told.append(choice)

    def _weighed(self, found: Estimate) -> Weighed:
        took = None if self._arrived is None else self._arrived - found.at
        return Weighed(
            found.at - self._began, found.waiting, found.storage, found.basis, found.decision, took
        )

    def progress(self) -> Progress:
        """Where the cold start stands at its last step."""
        state = self._state
        journey = state.journey if state else None
        elapsed = self._now - self._entered
        return Progress(
            phase=phase_of(state) if state else Phase.IDLE,
            source=self._open[1] if self._open else "",
            bytes_landed=min(self._landed, self._layout.payload),
            bytes_verified=payload_of(self._layout, journey.verified) if journey else 0,
            bytes_total=self._layout.payload,
            rate=self._landed_in_phase / elapsed if elapsed > 0 else 0.0,
            seconds=(self._ended or self._now) - self._began,
            attempts=journey.attempt if journey else 0,
            reason=journey.detours[-1] if journey and journey.detours else "",
        )

    def report(self) -> Report:
        """The report as of the last step; final once the state is SERVE or FAILED."""
        state = self._state
        journey = state.journey if state else None
        origins = dict(journey.origins) if journey else {}
        storage = payload_of(self._layout, origins[STORAGE]) if STORAGE in origins else 0
        peers = tuple(origin for origin in origins if origin != STORAGE)
        peer = sum(payload_of(self._layout, origins[origin]) for origin in peers)
        phase = phase_of(state) if state else Phase.IDLE
        moving = self._phases.get("transfer" if peer else "fallback", 0.0)
        passages = joined(self._passages)
        passage = max(passages, key=lambda each: each.moved.nbytes, default=Passage("", "", "", Moved()))
        return Report(
            worker=self._worker,
            shard=self._shard,
            model=self._model,
            state=phase,
            path=path_of(peer > 0, storage > 0, self._loaded),
            verified=self._served and journey is not None and journey.complete,
            against=self._against(),
            sources=peers,
            transport=self._carried_over(peers) or (STORAGE if storage else ""),
            route=self._route,
            bytes_total=self._layout.payload,
            bytes_peer=peer,
            bytes_storage=storage,
            gbps=(peer or storage) / moving / 1e9 if moving > 0 else 0.0,
            link_gbps=passage.link / 1e9,
            link_from=passage.origin,
            link_age=passage.age,
            share=passage.share,
            seconds=(self._ended or self._now) - self._began,
            phases=dict(self._phases),
            attempts=tuple(self._attempts),
            timeline=tuple(self._timeline),
            detours=journey.detours if journey else (),
            skipped=tuple(f"{worker}: {reason}" for worker, reason in self._skipped.items()),
            warnings=(
                *([self._notice] if self._notice else ()),
                *(words for each in passages for words in shortfalls(each, self._floors)),
            ),
            root=journey.root if journey else "",
            error=state.reason if isinstance(state, Failed) else None,
            group=_grouped(journey.accord) if journey and journey.accord else None,
            whole_read=self._whole_read,
            probe=self._probe,
            estimates=tuple(self._weighed(each) for each in self._estimates),
            refused=self._refused(),
        )

    def _against(self) -> str:
        if not self._own_truth:
            return "published truth"
        return "own memory, as it was lent" if self._loaded else "own storage read"

    def _carried_over(self, peers: tuple[str, ...]) -> str:
        """What the latest bytes from a peer came over, or are to come over now."""
        if self._open is not None and self._open[1] != STORAGE:
            return self._transport
        return next((a.transport for a in reversed(self._attempts) if a.source in peers and a.bytes), "")


def _grouped(accord: Accord) -> GroupReport:
    group = accord.group
    return GroupReport(
        group.name, group.size, group.index, accord.path, accord.verdicts, accord.waited, accord.alone
    )


def _outcome(phase: Phase, journey: Journey) -> str:
    """How an attempt ended, by the phase that it led to."""
    if phase is Phase.GONE:
        return "cancelled"
    return "ok" if phase in _AFTER and journey.complete else _last_detour(journey)


def _last_detour(journey: Journey) -> str:
    return journey.detours[-1].partition(": ")[2] or journey.detours[-1] if journey.detours else "ended"
