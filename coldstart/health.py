"""How a worker stands, as a health check is told it. Pure.

Decides when a worker is ready, and what is left to do. It must not know who asks, nor how: that is
``healthchecks.py``, with ``asgi.py`` and ``health_port.py`` on the wire. The store and the peers have no
say in it: a worker that serves goes on serving without either.
"""

from __future__ import annotations

import msgspec

from coldstart.phases.states import Phase
from coldstart.report import Progress


class Health(msgspec.Struct, frozen=True):
    """How one worker stands.

    Args:
        ready: whether requests may be sent here: the weights are right, and the host is not about to end.
        draining: the host takes it out of service.
        phase: where the cold start is; IDLE while the skeleton is built. GONE and ready is a worker that serves, and
            that an operator has stopped from lending.
        source: the peer that is read now, or ``storage``; empty while none is.
        bytes_done: bytes of weights that are verified.
        bytes_total: bytes of weights in all; 0 until the skeleton is built.
        rate: bytes per second over the present phase.
        eta: seconds until all bytes are here at that rate; None while nobody can say.
        seconds: since the cold start began, or what it took.
        attempts: sources tried so far, storage among them.
        path: where the bytes came from: ``peer``, ``storage``, ``mixed``, ``loaded``, or ``none`` so far.
        reason: why it failed, or why the last source was left.
        withheld: why a worker that serves does not lend its weights, if something is wrong with that.
    """

    ready: bool = False
    draining: bool = False
    phase: Phase = Phase.IDLE
    source: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    eta: float | None = None
    seconds: float = 0.0
    attempts: int = 0
    path: str = "none"
    reason: str = ""
    withheld: str = ""


def health_of(
    progress: Progress,
    *,
    verified: bool = False,
    draining: bool = False,
    path: str = "none",
    error: str = "",
    withheld: str = "",
) -> Health:
    """The health that ``progress`` comes to; ``error`` is what the cold start failed with, if it has."""
    return Health(
        ready=verified and not draining,
        draining=draining,
        phase=progress.phase,
        source=progress.source,
        bytes_done=progress.bytes_verified,
        bytes_total=progress.bytes_total,
        rate=progress.rate,
        eta=_eta(progress),
        seconds=progress.seconds,
        attempts=progress.attempts,
        path=path,
        reason=error or progress.reason,
        withheld=withheld,
    )


def _eta(progress: Progress) -> float | None:
    missing = progress.bytes_total - progress.bytes_verified
    if progress.bytes_total and missing <= 0:
        return 0.0
    if progress.phase in (Phase.TRANSFER, Phase.FALLBACK) and progress.rate > 0:
        return missing / progress.rate
    return None
