"""Metrics of the command line, which is an application and may set the global provider.

They go where OpenTelemetry's own variables say, and, if a port is asked for, to a Prometheus that asks there. The
SDK and the exporters are extras. Spans and logs are set up in ``tracing.py``; what is counted is ``metrics.py``'s.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from coldstart import config
from coldstart.cli import tracing
from coldstart.config import Settings
from coldstart.errors import ConfigError, PluginUnavailable

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
    from prometheus_client import CollectorRegistry

END_SECONDS = 3.0
"""What the last export may take: a command should end soon."""


def set_up(worker: str, settings: Settings) -> Callable[[], None]:
    """Export this process's metrics where they are wanted; returns what to call at the end.

    Raises:
        PluginUnavailable: what is needed for it is not installed.
        ConfigError: the port cannot be opened.
    """
    pushes, port = bool(config.otlp_endpoint("metrics")), settings.metrics_port
    if not pushes and not port:
        return lambda: None
    asked = f"metrics are asked for at port {port}" if port else "OTEL_EXPORTER_OTLP_ENDPOINT is set"
    try:
        return _export(worker, settings, pushes=pushes)
    except ImportError as error:
        raise PluginUnavailable(
            f"{asked} and {error.name or 'an exporter'} is not installed",
            advice="pip install 'coldstart-weights[otel]', or ask for none",
        ) from error


def _export(worker: str, settings: Settings, *, pushes: bool) -> Callable[[], None]:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    with ExitStack() as stack:
        readers: list[MetricReader] = []
        if settings.metrics_port:
            readers.append(_served(settings.metrics_host, settings.metrics_port, stack))
        if pushes:
            readers.append(PeriodicExportingMetricReader(_exporter()))
            tracing.say_in_a_line("metrics")
        instance = worker or f"{socket.gethostname()}-{os.getpid()}"
        resource = Resource.create({"service.name": "coldstart", "service.instance.id": instance})
        provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        stack.callback(provider.shutdown, END_SECONDS * 1000)
        metrics.set_meter_provider(provider)
        return stack.pop_all().close


def _exporter() -> MetricExporter:
    timeout = config.otlp_seconds()
    if config.otlp_protocol("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(timeout=timeout)


def _served(host: str, port: int, stack: ExitStack) -> MetricReader:
    """A reader that answers whoever asks at ``port``, until ``stack`` ends."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    advice = "give another --metrics-port, or COLDSTART_METRICS_HOST one address of this machine"
    show(registry, host, port, stack, advice=advice)
    return reader


def show(registry: CollectorRegistry, host: str, port: int, stack: ExitStack, *, advice: str) -> int:
    """Answer whoever asks at ``port`` (0: one that is free) with what is in ``registry``; returns the port.

    ``advice`` says how the caller is given another port, or address.

    Raises:
        ConfigError: the port cannot be opened.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be shown at {host}:{port}: {error.strerror or error}",
            advice=advice,
        ) from error
    ends: Sequence[Callable[[], None]] = (thread.join, server.server_close, server.shutdown)
    for end in ends:
        stack.callback(end)
    return server.server_port
