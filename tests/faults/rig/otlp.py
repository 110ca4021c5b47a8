"""An OTLP receiver over gRPC: the collector's own service, as the protocol's package declares it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from benchmarks.traces.collector import Collected


class _Service(TraceServiceServicer):
    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self._collected.take(request.SerializeToString())
        return ExportTraceServiceResponse()


@contextmanager
def grpc_collector() -> Iterator[Collected]:
    """A receiver at ``Collected.url``, as :func:`benchmarks.traces.collector.collector` over HTTP."""
    collected = Collected()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        add_TraceServiceServicer_to_server(_Service(collected), server)
        collected.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield collected
        finally:
            server.stop(grace=None).wait()
