"""Logs and traces of the command line, which is an application and may set global providers.

Traces go where ``OTEL_EXPORTER_OTLP_ENDPOINT`` says; the SDK is an extra. Logs go to stderr.
The library itself does neither.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping

import structlog

from coldstart import config
from coldstart.cli.output import note
from coldstart.errors import PluginUnavailable

SAID_NOWHERE_ELSE = frozenset(
    {"bus lost", "bus is back", "keys kept as they were", "weights lent again", "weights withheld"}
)
"""What befalls a worker that serves: shown even where few lines are wanted. The report tells what befell its start."""


def set_up(service: str, *, verbose: int, json: bool) -> Callable[[], None]:
    """Configure logs and, if an endpoint is set, traces; returns what to call at the end."""
    levels = (logging.INFO, logging.WARNING, logging.INFO, logging.DEBUG)
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    renderer = structlog.processors.JSONRenderer() if json else console
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *([] if verbose else [_few]),
            structlog.processors.TimeStamper(fmt="iso"),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels[min(verbose, 3)]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return _export_traces(service) if config.otlp_endpoint() else lambda: None


def _few(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Errors, and what is said nowhere else."""
    if method not in ("error", "critical", "exception") and event["event"] not in SAID_NOWHERE_ELSE:
        raise structlog.DropEvent
    return event


def _export_traces(service: str) -> Callable[[], None]:
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    except ImportError as error:
        raise PluginUnavailable(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set and OpenTelemetry's SDK is not installed",
            advice="pip install 'coldstart-weights[otel]', or unset the variable",
        ) from error
    from opentelemetry import trace

    protocol, timeout = config.otlp_protocol(), config.otlp_seconds()
    exporter: SpanExporter
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(timeout=timeout)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter(timeout=timeout)
    provider = TracerProvider(resource=Resource.create({"service.name": "coldstart", "service.instance.id": service}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    say_in_a_line("traces")
    return provider.shutdown


def say_in_a_line(what: str) -> None:
    """Exporters of traces, or of metrics, that cannot reach their collector are said once, in one line."""
    logging.getLogger("opentelemetry").addHandler(_OneLine(what))


class _OneLine(logging.Handler):
    def __init__(self, what: str) -> None:
        super().__init__(logging.WARNING)
        self._what, self._said = what, False

    def emit(self, record: logging.LogRecord) -> None:
        about = "metrics" if "metric" in record.name else "traces"
        if about == self._what and not self._said:
            self._said = True
            note(f"{self._what} are not exported: {record.getMessage().splitlines()[0]}")
