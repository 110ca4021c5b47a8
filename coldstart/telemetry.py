"""Logs and spans, derived from the machines' steps.

Decides what an operator reads and what a trace shows: one root span ``coldstart`` per cold
start, below it one span per attempt and per phase, and the source's span ``coldstart.lend`` in
the same trace, joined through the trace context in the handshake. Uses OpenTelemetry's API
only and never sets global providers; without a provider spans cost next to nothing. Logs go to
structlog if the host has configured it, else to the standard logger ``coldstart``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from coldstart.effects import CloseGrant, OpenOffer
from coldstart.events import GroupHeard, PullEnded
from coldstart.links.rates import Floors, Passage, joined, shortfalls
from coldstart.machine import phase_of
from coldstart.phases.states import Failed, Handshaking, Journey, Loading, Phase, State
from coldstart.runner import Entry
from coldstart.source import Source

_propagator = TraceContextTextMapPropagator()


class Logger(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **values: object) -> object: ...
    def info(self, event: str, **values: object) -> object: ...
    def warning(self, event: str, **values: object) -> object: ...
    def error(self, event: str, **values: object) -> object: ...


def logger() -> Logger:
    """The logger to use now: the host's structlog, or the standard library's, silent by default."""
    import structlog  # slow to import: ``wiring.py`` does it in a thread before the first call

    ids = _ids(trace.get_current_span())
    if structlog.is_configured():
        return cast(Logger, structlog.get_logger("coldstart").bind(**ids))
    standard = logging.getLogger("coldstart")
    if not standard.handlers:
        standard.addHandler(logging.NullHandler())
    return cast(
        Logger,
        structlog.wrap_logger(
            standard,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        ).bind(**ids),
    )


def _tracer() -> trace.Tracer:
    return trace.get_tracer("coldstart")


def _ids(span: Span) -> Mapping[str, object]:
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class JoinerTrace:
    """Observes a joiner: root, attempt and phase spans, and a log line for each change and each slow link."""

    def __init__(self, worker: str, floors: Floors | None = None) -> None:
        self._names = {"worker": worker}
        self._floors = floors or Floors()
        self._passages: list[Passage] = []
        self._root = _tracer().start_span("coldstart", attributes={"coldstart.worker": worker})
        self._phase: Span | None = None
        self._attempt: Span | None = None
        self._number = 0
        self._detours = 0
        self._log = logger()

    def carrier(self) -> str:
        """The W3C traceparent under which a source's spans belong to this cold start."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, context=set_span_in_context(self._phase or self._attempt or self._root))
        return carrier.get("traceparent", "")

    @contextmanager
    def building(self) -> Iterator[None]:
        """The span of the work before the machine starts; an error in it is the cold start's."""
        with _tracer().start_as_current_span("coldstart.build", context=set_span_in_context(self._root)):
            yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """Tasks started in the block log with the cold start's ids."""
        with trace.use_span(self._root, end_on_exit=False):
            yield

    def identify(self, shard: str, model: str) -> None:
        """What is being started is known once the checkpoint has been read."""
        self._names["shard"] = shard
        self._root.set_attributes({"coldstart.shard": shard, "coldstart.model": model})

    def __call__(self, entry: Entry[State]) -> None:
        before, after = phase_of(entry.before), phase_of(entry.after)
        journey = entry.after.journey
        match entry.event:
            case PullEnded(attempt=attempt, passage=passage) if passage is not None and attempt == self._number:
                self._note_passage(passage)
            case _:
                pass
        if journey.attempt != self._number:
            self._next_attempt(entry.after)
        if before is not after or journey.attempt != entry.before.journey.attempt:
            self._enter(after, entry.after)
        if before is not after:
            self._log_phase(before, after, journey)
        self._note_detours(journey)
        if isinstance(entry.event, GroupHeard):
            for verdict in entry.event.verdicts:
                self._root.add_event("verdict", {"coldstart.verdict": str(verdict)})
        if after in (Phase.SERVE, Phase.FAILED, Phase.GONE):
            self._end(entry.after)

    def end(self, error: BaseException | None = None) -> None:
        """Close whatever is open: the cold start was cancelled or broke."""
        self._close_phase()
        self._close_attempt("cancelled" if error else "ended")
        if self._root.is_recording():
            if error is not None:
                self._root.set_status(Status(StatusCode.ERROR, str(error) or type(error).__name__))
            self._root.end()

    def _next_attempt(self, state: State) -> None:
        self._close_phase()
        self._close_attempt(state.journey.detours[-1] if len(state.journey.detours) > self._detours else "ok")
        self._number = state.journey.attempt
        self._attempt = _tracer().start_span(
            "coldstart.attempt",
            context=set_span_in_context(self._root),
            attributes={"coldstart.attempt": self._number},
        )

    def _enter(self, phase: Phase, state: State) -> None:
        self._close_phase()
        if phase in (Phase.VERIFY, Phase.SERVE, Phase.FAILED, Phase.GONE):
            self._close_attempt("ok" if phase is not Phase.FAILED else "failed")
        if phase is Phase.GONE:
            return
        attributes: dict[str, str | int] = {"coldstart.phase": phase.value, "coldstart.attempt": state.journey.attempt}
        match state:
            case Handshaking(source=source):
                attributes["coldstart.source"] = source.worker
            case Loading(leading=leading):
                attributes["coldstart.leading"] = str(leading).lower()
            case _:
                pass
        self._phase = _tracer().start_span(
            f"coldstart.{phase.value.lower()}",
            context=set_span_in_context(self._attempt or self._root),
            attributes=attributes,
        )

    def _log_phase(self, before: Phase, after: Phase, journey: Journey) -> None:
        self._log.info(
            "phase entered",
            phase=after.value,
            left=before.value,
            attempt=journey.attempt,
            verified=len(journey.verified),
            chunks=journey.total,
            **self._names,
            **_ids(self._phase or self._root),
        )

    def _note_passage(self, passage: Passage) -> None:
        """On the span of the transfer, which is still open: all that came this way so far."""
        self._passages.append(passage)
        way = (passage.source, passage.transport, passage.route)
        (whole,) = joined(each for each in self._passages if (each.source, each.transport, each.route) == way)
        attributes: dict[str, str | float] = {
            "coldstart.transport": whole.transport,
            "coldstart.transfer.bytes": whole.moved.nbytes,
            "coldstart.transfer.bytes_per_second": whole.moved.rate,
            "coldstart.link.origin": whole.origin,
        }
        if whole.route:
            attributes["coldstart.route"] = whole.route
        if whole.link > 0:
            attributes |= {"coldstart.link.bytes_per_second": whole.link, "coldstart.link.share": whole.share}
        (self._phase or self._attempt or self._root).set_attributes(attributes)

    def _warn(self) -> None:
        """Of every floor that was missed, once."""
        passages, self._passages = self._passages, []
        for words in (words for each in joined(passages) for words in shortfalls(each, self._floors)):
            self._root.add_event("slow link", {"coldstart.reason": words})
            self._log.warning("slow link", reason=words, **self._names, **_ids(self._root))

    def _note_detours(self, journey: Journey) -> None:
        for reason in journey.detours[self._detours :]:
            self._root.add_event("detour", {"coldstart.reason": reason})
            self._log.warning("detour taken", reason=reason, **self._names, **_ids(self._root))
        self._detours = len(journey.detours)

    def _end(self, state: State) -> None:
        self._close_phase()
        self._close_attempt("ok")
        self._warn()
        if not self._root.is_recording():
            return
        origins = {origin: len(chunks) for origin, chunks in state.journey.origins}
        self._root.set_attribute("coldstart.sources", sorted(origins))
        self._root.set_attribute("coldstart.outcome", phase_of(state).value)
        if isinstance(state, Failed):
            self._root.set_status(Status(StatusCode.ERROR, state.reason))
            self._log.error("cold start failed", reason=state.reason, **self._names, **_ids(self._root))
        self._root.end()

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None

    def _close_attempt(self, outcome: str) -> None:
        if self._attempt is not None:
            self._attempt.set_attribute("coldstart.outcome", outcome)
            if outcome not in ("ok", "ended"):
                self._attempt.set_status(Status(StatusCode.ERROR, outcome))
            self._attempt.end()
            self._attempt = None


class SourceTrace:
    """Observes a source: one span per grant, in the joiner's trace, and one per time that weights are withheld."""

    def __init__(self, worker: str, shard: str) -> None:
        self._worker, self._shard = worker, shard
        self._spans: dict[str, Span] = {}
        self._outcomes: dict[str, str] = {}
        self._withheld: Span | None = None
        self._log = logger()

    def __call__(self, entry: Entry[Source]) -> None:
        if entry.before.why != entry.after.why:
            self._note_withheld(entry.after)
        for effect in entry.effects:
            match effect:
                case OpenOffer():
                    self._open(effect)
                case CloseGrant(transfer=transfer, outcome=outcome):
                    self._outcomes[transfer] = outcome
                case _:
                    pass
        kept = {grant.transfer for grant in entry.after.grants}
        for transfer in [transfer for transfer in self._spans if transfer not in kept]:
            self._close(transfer)

    def end(self) -> None:
        """Close all spans."""
        for transfer in list(self._spans):
            self._close(transfer)
        if self._withheld is not None:
            self._withheld.end()
            self._withheld = None

    def _note_withheld(self, source: Source) -> None:
        """Weights are withheld for a reason that is new, or lent again."""
        if self._withheld is None:
            names = {"coldstart.worker": self._worker, "coldstart.shard": self._shard}
            self._withheld = _tracer().start_span("coldstart.withheld", context=Context(), attributes=names)
        span, reason = self._withheld, source.why
        said = {"worker": self._worker, "shard": self._shard, "generation": source.generation, **_ids(span)}
        if reason:
            span.add_event("withheld", {"coldstart.reason": reason, "coldstart.generation": source.generation})
            self._log.warning("weights withheld", reason=reason, **said)
        else:
            self._log.info("weights lent again", **said)
            span.end()
            self._withheld = None

    def _open(self, effect: OpenOffer) -> None:
        parent: Context = _propagator.extract({"traceparent": effect.trace})
        span = _tracer().start_span(
            "coldstart.lend",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "coldstart.worker": self._worker,
                "coldstart.shard": self._shard,
                "coldstart.joiner": effect.joiner,
                "coldstart.transport": effect.transport,
                "coldstart.transfer": effect.transfer,
                "coldstart.fence": effect.fence,
            },
        )
        self._spans[effect.transfer] = span
        self._log.info("lending", joiner=effect.joiner, transport=effect.transport, worker=self._worker, **_ids(span))

    def _close(self, transfer: str) -> None:
        span = self._spans.pop(transfer)
        outcome = self._outcomes.pop(transfer, "offer failed")
        span.set_attribute("coldstart.outcome", outcome)
        if outcome != "ok":
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end()
        self._log.info("lent", outcome=outcome, transfer=transfer, worker=self._worker, **_ids(span))
