"""A span as it came over the wire, and how spans hang together.

Decides how OTLP is read (https://opentelemetry.io/docs/specs/otlp/). It knows neither how spans got here
(``collector.py``) nor what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Wire
from opentelemetry.proto.trace.v1.trace_pb2 import Status

Value = str | int | float | bool | tuple[str, ...]


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a span; ``at`` in seconds of the epoch."""

    name: str
    at: float
    attributes: dict[str, Value]


class Link(msgspec.Struct, frozen=True):
    """To a span of this or of another trace."""

    trace: str
    span: str
    attributes: dict[str, Value]


class Span(msgspec.Struct, frozen=True):
    """Ids in hex, an empty ``parent`` for a root; times in seconds of the epoch. ``error`` is None unless it failed."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    begin: float
    end: float
    attributes: dict[str, Value]
    events: tuple[Event, ...]
    links: tuple[Link, ...]
    error: str | None
    instance: str
    """Of the service: the worker."""


def spans_of(body: bytes) -> list[Span]:
    """The spans of one export."""
    return [
        _span(span, _instance(group.resource.attributes))
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def children(spans: Iterable[Span], of: Span | None) -> Sequence[Span]:
    """The spans below ``of``, or the roots, by time; one whose parent nobody has sent is a root."""
    spans = list(spans)
    known = {span.id for span in spans}
    found = [span for span in spans if (span.parent == of.id if of is not None else span.parent not in known)]
    return sorted(found, key=lambda span: (span.begin, -span.end))


def _span(span: Wire, instance: str) -> Span:
    failed = span.status.code == Status.STATUS_CODE_ERROR
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=Wire.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        begin=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        events=tuple(Event(each.name, each.time_unix_nano / 1e9, _values(each.attributes)) for each in span.events),
        links=tuple(Link(each.trace_id.hex(), each.span_id.hex(), _values(each.attributes)) for each in span.links),
        error=span.status.message if failed else None,
        instance=instance,
    )


def _instance(attributes: Iterable[KeyValue]) -> str:
    return str(_values(attributes).get("service.instance.id", ""))


def _values(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case "array_value":
            return tuple(str(_value(each)) for each in value.array_value.values)
        case _:
            return value.string_value
