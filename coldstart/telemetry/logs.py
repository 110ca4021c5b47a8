"""The logger that this package writes to: the host's structlog, or the standard library's.

Decides where logs go and which ids they carry. It configures neither.
"""

from __future__ import annotations

import logging
from typing import Protocol, cast

from opentelemetry import trace

from coldstart.telemetry.spans import ids


class Logger(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **values: object) -> object: ...
    def info(self, event: str, **values: object) -> object: ...
    def warning(self, event: str, **values: object) -> object: ...
    def error(self, event: str, **values: object) -> object: ...


def logger() -> Logger:
    """The logger to use now: the host's structlog, or the standard library's, silent by default."""
    import structlog  # slow to import: ``wiring.py`` does it in a thread before the first call

    known = ids(trace.get_current_span())
    if structlog.is_configured():
        return cast(Logger, structlog.get_logger("coldstart").bind(**known))
    standard = logging.getLogger("coldstart")
    if not standard.handlers:
        standard.addHandler(logging.NullHandler())
    return cast(
        Logger,
        structlog.wrap_logger(
            standard,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        ).bind(**known),
    )
