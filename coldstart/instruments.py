"""The instruments that metrics are recorded with: their names, units, buckets and labels.

Decides how an operator's system sees what ``metrics.py`` counts. Uses OpenTelemetry's API only and never sets a
provider; without one, recording costs next to nothing. Units are base units, so that a Prometheus exporter makes
``coldstart_start_duration_seconds`` and the like of the names; every label has a small closed set of values, but for
``shard`` and ``transport``, of which a fleet has a few. ``docs/operate.md`` lists what there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import get_args

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from coldstart.chronicle.lines import BUILD
from coldstart.links.rates import Floor
from coldstart.phases.states import STORAGE, Failure
from coldstart.reasons import Cause, Denial, Withholding
from coldstart.report import Report

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
"""From a small model on a fast link to hundreds of GB from a slow disk."""
RATES = tuple(base * 10**power for power in range(7, 12) for base in (1.0, 2.0, 5.0))
"""From the floor of a peer, 10 MB/s, to NVLink."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""A link can do better than it has been seen to."""


class Outcome(StrEnum):
    """How a cold start ended."""

    SERVED = "served"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Direction(StrEnum):
    """Which way bytes went, as this worker sees it."""

    RECEIVED = "received"
    SENT = "sent"


class Whose(StrEnum):
    """Where bytes came from whose digest was wrong."""

    PEER = "peer"
    STORAGE = "storage"
    OWN = "own"
    """This worker's own memory, which it lent."""


class Instruments:
    """All of them; one object for a process and provider (:func:`instruments`)."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("coldstart")
        counter, level, spread = meter.create_counter, meter.create_up_down_counter, meter.create_histogram
        self._starts = counter("coldstart.starts", "{start}", "Cold starts that ended, by outcome and path.")
        self._failures = counter("coldstart.failures", "{start}", "Cold starts that failed, by what failed.")
        self._start = spread(
            "coldstart.start.duration", "s", "From the start of the skeleton's building to SERVE.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip
        self._phase = spread(
            "coldstart.phase.duration", "s", "Time that a cold start spent in a phase.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )  # fmt: skip
        self._bytes = counter("coldstart.transferred", "By", "Bytes of weights moved, by transport and direction.")
        self._rate = spread(
            "coldstart.transfer.rate", "By/s", "Rate of a transfer while its bytes came, or of a storage read.",
            explicit_bucket_boundaries_advisory=RATES,
        )  # fmt: skip
        self._share = spread(
            "coldstart.link.share", "{share}", "What a transfer reached of the best that its link has given.",
            explicit_bucket_boundaries_advisory=SHARES,
        )  # fmt: skip
        self._fallbacks = counter("coldstart.fallbacks", "{start}", "Ways to storage that peers were to spare.")
        self._detours = counter("coldstart.detours", "{detour}", "Sources and paths that were left, by cause.")
        self._refusals = counter("coldstart.refusals", "{refusal}", "What this worker refused to joiners, by reason.")
        self._digests = counter("coldstart.digest.failures", "{chunk}", "Chunks of wrong bytes, by their origin.")
        self._conflicts = counter("coldstart.truth.conflicts", "{conflict}", "Disagreements about the right bytes.")
        self._floors = counter("coldstart.floor.misses", "{transfer}", "Transfers below a floor of the operator's.")
        self._withholdings = counter("coldstart.withholdings", "{time}", "Times that weights were lent no more.")
        self._slots = level("coldstart.slots", "{slot}", "Joiners that may pull here at one time.")
        self._used = level("coldstart.slots.used", "{slot}", "Joiners that pull here.")
        self._serving = level("coldstart.serving", "{worker}", "Workers that serve.")
        self._holders = level("coldstart.holders", "{worker}", "Workers that lend all of their weights.")
        self._withheld = level("coldstart.withheld", "{worker}", "Workers that serve and do not lend.")

    def begin(self, transports: Iterable[str]) -> None:
        """Show every counter at 0: the first increase of a series that was never there is none to Prometheus."""
        for counter, label, values in (
            (self._fallbacks, "reason", Cause),
            (self._detours, "reason", Cause),
            (self._refusals, "reason", Denial),
            (self._digests, "origin", Whose),
            (self._failures, "reason", (*Failure, BUILD)),
            (self._withholdings, "reason", Withholding),
        ):
            names: Iterable[str] = values
            for value in names:
                counter.add(0, {label: str(value)})
        for transport in transports:
            for floor in get_args(Floor):
                self._floors.add(0, {"floor": floor, "transport": transport})
            for direction in Direction:
                self._bytes.add(0, {"transport": transport, "direction": str(direction)})
        self._bytes.add(0, {"transport": STORAGE, "direction": str(Direction.RECEIVED)})
        for outcome in Outcome:
            self._starts.add(0, {"outcome": str(outcome), "path": "none"})
        self._conflicts.add(0)

    # ------------------------------------------------------------------------------------ joiner

    def started(self, report: Report, outcome: Outcome) -> None:
        """A cold start has come to its end."""
        self._starts.add(1, {"outcome": str(outcome), "path": report.path})
        if outcome is Outcome.SERVED:
            self._start.record(report.seconds, {"path": report.path})
        for phase, seconds in report.phases.items():
            self._phase.record(seconds, {"phase": phase})

    def unbuilt(self, outcome: Outcome) -> None:
        """A cold start has ended before its machine had begun."""
        self._starts.add(1, {"outcome": str(outcome), "path": "none"})
        if outcome is Outcome.FAILED:
            self._failures.add(1, {"reason": BUILD})

    def failed(self, failure: Failure) -> None:
        self._failures.add(1, {"reason": str(failure)})

    def moved(self, nbytes: int, transport: str, direction: Direction) -> None:
        if nbytes > 0:
            self._bytes.add(nbytes, {"transport": transport, "direction": str(direction)})

    def transferred(self, transport: str, rate: float, share: float) -> None:
        """All that came one way: bytes per second and share of its link; 0 where that is not known."""
        if rate > 0:
            self._rate.record(rate, {"transport": transport})
        if share > 0:
            self._share.record(share, {"transport": transport})

    def below_floor(self, transport: str, floor: Floor) -> None:
        self._floors.add(1, {"floor": floor, "transport": transport})

    def fell_back(self, cause: Cause) -> None:
        self._fallbacks.add(1, {"reason": str(cause)})

    def detoured(self, cause: Cause) -> None:
        self._detours.add(1, {"reason": str(cause)})

    def digest_failed(self, whose: Whose) -> None:
        self._digests.add(1, {"origin": str(whose)})

    def conflicted(self) -> None:
        self._conflicts.add(1)

    def serving(self, shard: str, more: int) -> None:
        self._serving.add(more, {"shard": shard})

    # ------------------------------------------------------------------------------------ source

    def refused(self, denial: Denial) -> None:
        self._refusals.add(1, {"reason": str(denial)})

    def withheld(self, why: Withholding) -> None:
        self._withholdings.add(1, {"reason": str(why)})

    def slots(self, total: int, used: int) -> None:
        """So many more, or fewer."""
        self._slots.add(total)
        self._used.add(used)

    def holding(self, shard: str, whole: int, withheld: int) -> None:
        """So many more, or fewer, lend everything, or withhold it."""
        self._holders.add(whole, {"shard": shard})
        self._withheld.add(withheld, {"shard": shard})


@lru_cache(maxsize=2)
def _of(provider: MeterProvider) -> Instruments:
    return Instruments(provider)


def instruments() -> Instruments:
    """Those of the provider that the host has set; before it has set one, they record nothing until it does."""
    return _of(metrics.get_meter_provider())
