"""The spans of what one worker lends, and their log lines.

Decides what a trace shows of a source: ``coldstart.lend`` in the joiner's trace, with a link to the cold start in
which this worker got the bytes itself, so that a chain of relays can be walked; and ``coldstart.withheld`` in a trace
of its own, while nothing is lent although the worker serves.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from coldstart.effects import CloseGrant, OpenOffer
from coldstart.runner import Entry
from coldstart.source import Source
from coldstart.telemetry import names
from coldstart.telemetry.logs import logger
from coldstart.telemetry.spans import extracted, fail, ids, tracer


class SourceTrace:
    """Observes a source: one span per grant, in the joiner's trace, and one per time that weights are withheld.

    Args:
        own: the cold start in which this worker gets its own weights, or has.
    """

    def __init__(self, worker: str, shard: str, own: SpanContext) -> None:
        self._worker, self._shard, self._own = worker, shard, own
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
                    self._open(effect, relay=entry.after.have is not None)
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

    def _link(self, relation: str) -> list[Link]:
        return [Link(self._own, {names.RELATION: relation})] if self._own.is_valid else []

    def _note_withheld(self, source: Source) -> None:
        """Weights are withheld for a reason that is new, or lent again."""
        if self._withheld is None:
            self._withheld = tracer().start_span(
                names.WITHHELD,
                context=Context(),
                attributes={names.WORKER: self._worker, names.SHARD: self._shard},
                links=self._link("origin"),
            )
        span, reason = self._withheld, source.why
        said = {"worker": self._worker, "shard": self._shard, "generation": source.generation, **ids(span)}
        if reason:
            span.add_event("withheld", {names.REASON: reason, names.GENERATION: source.generation})
            self._log.warning("weights withheld", reason=reason, **said)
        else:
            self._log.info("weights lent again", **said)
            span.end()
            self._withheld = None

    def _open(self, effect: OpenOffer, *, relay: bool) -> None:
        span = tracer().start_span(
            names.LEND,
            context=extracted(effect.trace),
            kind=SpanKind.SERVER,
            attributes={
                names.WORKER: self._worker,
                names.SHARD: self._shard,
                names.JOINER: effect.joiner,
                names.TRANSPORT: effect.transport,
                names.TRANSFER_ID: effect.transfer,
                names.FENCE: effect.fence,
            },
            links=self._link("relay" if relay else "origin"),
        )
        self._spans[effect.transfer] = span
        self._log.info("lending", joiner=effect.joiner, transport=effect.transport, worker=self._worker, **ids(span))

    def _close(self, transfer: str) -> None:
        span = self._spans.pop(transfer)
        outcome = self._outcomes.pop(transfer, "offer failed")
        span.set_attribute(names.OUTCOME, outcome)
        if outcome != "ok":
            fail(span, outcome)
        span.end()
        self._log.info("lent", outcome=outcome, transfer=transfer, worker=self._worker, **ids(span))
