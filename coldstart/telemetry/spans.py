"""What both sides' traces do with spans: start, fail, and carry them from one worker to another."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_propagator = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """The host's tracer, as it is now."""
    return trace.get_tracer("coldstart")


def ids(span: Span) -> Mapping[str, object]:
    """What a log line says of the span that it belongs to."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def fail(span: Span, reason: str) -> None:
    """Mark a span as failed."""
    span.set_status(Status(StatusCode.ERROR, reason))


def note(span: Span, event: str, said: Mapping[str, str | bool | int | float]) -> None:
    """Note that something happened; a span that has ended takes nothing any more."""
    if span.is_recording():
        span.add_event(event, said)


def parent(span: Span) -> Context:
    """The context in which a span is a child of ``span``."""
    return set_span_in_context(span)


def injected(span: Span) -> str:
    """The W3C traceparent under which spans of other processes belong to ``span``; empty where nobody traces."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=set_span_in_context(span))
    return carrier.get("traceparent", "")


def extracted(traceparent: str) -> Context:
    """The context of a span of another process; what is malformed is no parent."""
    return _propagator.extract({"traceparent": traceparent}, context=Context())
