"""What the simulator says about a case: the same fleet, links and settings, in virtual time.

Where it and the real run agree, its word for fleets that no one machine can play is worth more.
"""

from __future__ import annotations

from math import ceil

from coldstart.config import Settings
from coldstart.layout import chunk_bytes_for
from coldstart.testing.simulator import Fabric, Scenario, simulate

PAYLOAD = 1448 / 1514
"""Of what crosses a link, weights: the rest are headers of full TCP packets."""


def predicted(
    workers: int, holders: int, *, nbytes: int, link: float, storage: float, settings: Settings, seed: int = 1
) -> float:
    """Seconds until all ``workers`` serve; ``link`` and ``storage`` in bytes per second."""
    chunk = chunk_bytes_for(nbytes)
    rate = link * PAYLOAD
    scenario = Scenario(
        workers=workers,
        holders=holders,
        chunks=ceil(nbytes / chunk),
        chunk_bytes=chunk,
        spread=0.0,
        storage=storage,
        fabric=Fabric(rate, max(rate, storage)),
        slots=settings.slots,
        limits=settings.limits,
    )
    return max(served.at for served in simulate(scenario, seed).served.values())
