"""The spans of one cold start, and its log lines.

Decides what a trace shows of a joiner: the root ``coldstart``, below it a span per attempt, in it one per phase, in
that one per pull or storage read; refusals, stalls and wrong bytes are events where they happened, detours, verdicts
and estimates on the root. What happened is what the journal says (``chronicle.noting``). The source's side is
``source.py``; its spans come under the attempt, by the trace context that travels with the handshake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, SpanKind

from coldstart.chronicle import lines
from coldstart.chronicle.lines import AnyLine
from coldstart.chronicle.noting import JoinerNotes
from coldstart.chronicle.starts import path_of
from coldstart.events import PullEnded
from coldstart.group import Group
from coldstart.identity import Shard
from coldstart.layout import Layout
from coldstart.links.rates import Floors, Passage, joined, shortfalls
from coldstart.phases.states import STORAGE, Phase, State
from coldstart.runner import Entry
from coldstart.telemetry import names
from coldstart.telemetry.logs import logger
from coldstart.telemetry.spans import extracted, fail, ids, injected, note, parent, tracer

_OUTSIDE = (Phase.VERIFY.value, Phase.SERVE.value, Phase.FAILED.value, Phase.GONE.value)
"""Phases that belong to the cold start as a whole, not to an attempt."""


class JoinerTrace:
    """Observes a joiner: its spans, and a log line for each change, each detour and each slow link."""

    def __init__(self, worker: str, floors: Floors | None = None) -> None:
        self._names = {"worker": worker}
        self._floors = floors or Floors()
        self._notes: JoinerNotes | None = None
        self._passages: list[Passage] = []
        self._root = tracer().start_span(names.ROOT, attributes={names.WORKER: worker})
        self._phase: Span | None = None
        self._attempt: Span | None = None
        self._pulls: dict[int, Span] = {}
        self._number, self._in = 0, Phase.IDLE.value
        self._left = ""
        """Why the attempt that runs is being left."""
        self._log = logger()

    def carrier(self) -> str:
        """The W3C traceparent under which a source's spans belong to this cold start."""
        return injected(self._attempt or self._root)

    @property
    def context(self) -> SpanContext:
        """What other traces link to."""
        return self._root.get_span_context()

    @property
    def own(self) -> str:
        """The root as a W3C traceparent, for others to link to; empty where nobody traces."""
        return injected(self._root)

    def link(self, traceparent: str) -> None:
        """Another rank of our group has this root."""
        other = trace.get_current_span(extracted(traceparent)).get_span_context()
        if other.is_valid and other.span_id != self.context.span_id and self._root.is_recording():
            self._root.add_link(other, {names.RELATION: "group"})

    @contextmanager
    def building(self) -> Iterator[None]:
        """The span of the work before the machine starts; an error in it is the cold start's."""
        with tracer().start_as_current_span(names.BUILD, context=parent(self._root)):
            yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """Tasks started in the block log with the cold start's ids."""
        with trace.use_span(self._root, end_on_exit=False):
            yield

    def identify(self, shard: Shard, start: str, layout: Layout, began: float, group: Group | None) -> None:
        """What is being started is known once the checkpoint has been read; then steps may come.

        Args:
            start: id of the cold start.
            began: monotonic seconds at which it began.
        """
        self._notes = JoinerNotes(layout, began)
        self._names["shard"] = shard.key
        self._root.set_attributes(
            {
                names.SHARD: shard.key,
                names.MODEL: lines.words(str(shard)),
                names.RANK: str(shard.rank),
                names.START: start,
            }
        )
        if group is not None and group.size > 1:
            self._root.set_attributes(
                {names.GROUP_NAME: group.name, names.GROUP_INDEX: group.index, names.GROUP_SIZE: group.size}
            )

    def __call__(self, entry: Entry[State]) -> None:
        assert self._notes is not None, "identified before it is told of steps"
        match entry.event:
            case PullEnded(passage=passage) if passage is not None:
                self._passages.append(passage)
            case _:
                pass
        for line in self._notes(entry):
            self._tell(line)

    def end(self, error: BaseException | None = None) -> None:
        """Close whatever is open: the cold start was cancelled or broke."""
        self._close_pulls("cancelled")
        self._close_phase()
        self._close_attempt("cancelled" if error else "ended")
        if self._root.is_recording():
            if error is not None:
                fail(self._root, str(error) or type(error).__name__)
            self._root.end()

    def _tell(self, line: AnyLine) -> None:
        match line:
            case lines.Entered():
                self._enter(line)
            case lines.Pulling():
                self._begin_pull(line)
            case lines.Pulled():
                self._end_pull(line)
            case lines.Refused(source=source, how=how, reason=reason):
                said = {names.SOURCE: source, names.HOW: how, names.REASON: reason}
                note(self._innermost(line.attempt), "refused", said)
            case lines.Stalled(source=source, reason=reason):
                note(self._innermost(line.attempt), "stalled", {names.SOURCE: source, names.REASON: reason})
            case lines.Corrupted(source=source, chunk=chunk):
                note(self._innermost(line.attempt), "corrupted", {names.SOURCE: source, names.CHUNK: chunk})
            case lines.Detoured(reason=reason):
                self._left = reason
                note(self._root, "detour", {names.REASON: reason})
                self._log.warning("detour taken", reason=reason, **self._names, **ids(self._root))
            case lines.Decided():
                note(self._root, "verdict", {names.VERDICT: line.words})
            case lines.Weighed(waiting=waiting, storage=storage, decision=decision):
                expected = {names.EXPECTED_WAITING: waiting, names.EXPECTED_STORAGE: storage}
                note(self._root, "weighed", {**expected, names.DECISION: decision})
            case lines.Ended():
                self._end(line)
            case lines.Lent() | lines.Withheld():
                pass  # the source's
            case _:
                assert_never(line)

    # ------------------------------------------------------------------------------ attempts and phases

    def _enter(self, line: lines.Entered) -> None:
        left, moved = self._in, line.attempt != self._number
        if moved:
            self._close_phase()
            self._close_attempt(self._left or "ok")
            self._number, self._left = line.attempt, ""
            if line.phase not in _OUTSIDE:
                self._attempt = tracer().start_span(
                    names.ATTEMPT, context=parent(self._root), attributes={names.NUMBER: line.attempt}
                )
        if not moved and line.phase == left:
            said = {names.STATE: line.state, **({names.SOURCE: line.source} if line.source else {})}
            note(self._phase or self._root, "entered", said)
            return
        self._in = line.phase
        self._begin_phase(line)
        if line.phase != left:
            self._log.info(
                "phase entered",
                phase=line.phase,
                left=left,
                attempt=line.attempt,
                verified=line.verified,
                chunks=line.chunks,
                **self._names,
                **ids(self._phase or self._root),
            )

    def _begin_phase(self, line: lines.Entered) -> None:
        self._close_phase()
        if line.phase in _OUTSIDE:
            self._close_attempt("failed" if line.phase == Phase.FAILED else "ok")
        if line.phase == Phase.GONE or not self._root.is_recording():
            return
        attributes: dict[str, str | int] = {
            names.PHASE: line.phase,
            names.STATE: line.state,
            names.NUMBER: line.attempt,
        }
        if line.source:
            attributes[names.SOURCE] = line.source
        self._phase = tracer().start_span(
            names.phase(line.phase), context=parent(self._attempt or self._root), attributes=attributes
        )

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None

    def _close_attempt(self, outcome: str) -> None:
        if self._attempt is not None:
            self._attempt.set_attribute(names.OUTCOME, outcome)
            if outcome not in ("ok", "ended"):
                fail(self._attempt, outcome)
            self._attempt.end()
            self._attempt = None

    # ------------------------------------------------------------------------------------------- pulls

    def _innermost(self, attempt: int) -> Span:
        """The span in which something happened to an attempt."""
        return self._pulls.get(attempt) or self._phase or self._attempt or self._root

    def _begin_pull(self, line: lines.Pulling) -> None:
        storage = line.source == STORAGE
        attributes: dict[str, str | int] = {names.NUMBER: line.attempt}
        if storage:
            attributes[names.LEADING] = line.leading
        else:
            attributes |= {names.SOURCE: line.source, names.TRANSPORT: line.transport}
        self._pulls[line.attempt] = tracer().start_span(
            names.READ if storage else names.PULL,
            context=parent(self._phase or self._attempt or self._root),
            kind=SpanKind.INTERNAL if storage else SpanKind.CLIENT,
            attributes=attributes,
        )

    def _end_pull(self, line: lines.Pulled) -> None:
        span = self._pulls.pop(line.attempt, None)
        if span is None:
            return
        seconds = line.moving or line.seconds
        attributes: dict[str, str | int | float] = {names.TRANSFER_SIZE: line.nbytes, names.OUTCOME: line.outcome}
        if line.nbytes and seconds > 0:
            attributes[names.TRANSFER_RATE] = line.nbytes / seconds
        if line.route:
            attributes[names.ROUTE] = line.route
        if line.link > 0:
            attributes |= {names.LINK_RATE: line.link, names.LINK_SHARE: line.share, names.LINK_ORIGIN: line.origin}
        span.set_attributes(attributes)
        if line.outcome not in ("ok", "ended"):
            fail(span, line.outcome)
        span.end()

    def _close_pulls(self, outcome: str) -> None:
        for span in self._pulls.values():
            span.set_attribute(names.OUTCOME, outcome)
            span.end()
        self._pulls.clear()

    # --------------------------------------------------------------------------------------------- end

    def _end(self, line: lines.Ended) -> None:
        self._close_phase()
        self._close_attempt("ok")
        self._warn()
        if not self._root.is_recording():
            return
        peer = any(nbytes for source, nbytes in line.origins.items() if source != STORAGE)
        storage = line.origins.get(STORAGE, 0) > 0
        self._root.set_attributes(
            {
                names.SOURCES: sorted(line.origins),
                names.OUTCOME: line.phase,
                names.PATH: path_of(peer, storage, line.loaded),
                names.TRANSFER_SIZE: sum(line.origins.values()),
            }
        )
        if line.phase == Phase.FAILED:
            self._root.set_attribute(names.ERROR_TYPE, line.failure)
            fail(self._root, line.reason)
            self._log.error("cold start failed", reason=line.reason, **self._names, **ids(self._root))
        self._root.end()

    def _warn(self) -> None:
        """Of every floor that was missed, once."""
        passages, self._passages = self._passages, []
        for reason in _shortfalls(passages, self._floors):
            note(self._root, "slow link", {names.REASON: reason})
            self._log.warning("slow link", reason=reason, **self._names, **ids(self._root))


def _shortfalls(passages: Sequence[Passage], floors: Floors) -> list[str]:
    return [reason for each in joined(passages) for reason in shortfalls(each, floors)]
