"""Counts what a fleet's journals tell, for a Prometheus that asks one process about all workers.

Decides what is counted, under which labels, and what of the past counts: a worker whose start fails is gone before
anybody asks it, but has written down why. Counters never fall, although the store forgets: what each cold start has
added is remembered while the journal tells of it. Of what had ended before the first look, only the last
:data:`PAST_SECONDS` count, so that an exporter that is started anew raises no alarm about last week.

Pure. Who asks the store is ``looking.py``; how the counts are shown is ``exporter.py``'s matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from coldstart.chronicle.lines import BUILD
from coldstart.chronicle.starts import ColdStart
from coldstart.cli.looking import Look
from coldstart.cli.peers import state_of
from coldstart.cli.watching import fell_back
from coldstart.phases.states import STORAGE, Failure
from coldstart.ports import Advert

PAST_SECONDS = 900.0
"""As long as the alerts look back (``deploy/prometheus/alerts.yaml``)."""
VANISHED_SECONDS = 900.0
"""A cold start that has no advert, and that nobody has heard of for so long, has been killed: no phase but the building
of the skeleton, of which the journal tells nothing, is silent for longer than COLDSTART_FOLLOW."""
MOST_SHARDS = 200
"""Names come from whoever can write to the store; those above so many are counted together."""
OTHERS = "others"

Labels = tuple[str, ...]
Key = tuple[str, Labels]
"""A metric's name, and the values of its labels."""

COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "starts": ("Cold starts that ended; those that served, by their path.", ("shard", "outcome", "path")),
    "failures": ("Cold starts that failed, by what failed.", ("shard", "reason")),
    "fallbacks": ("Cold starts that read storage after they had tried peers.", ("shard",)),
    "digest_failures": ("Chunks that came with wrong bytes, by their origin.", ("shard", "origin")),
    "truth_conflicts": ("Cold starts that found others to have read different bytes.", ("shard",)),
}
"""All have the prefix ``coldstart_fleet_``, and end in ``_total``."""
GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "holders": ("Workers that lend all of these weights.", ("shard",)),
    "partial": ("Workers that receive still, and lend what they have.", ("shard",)),
    "withheld": ("Workers that serve these weights and do not lend them, or are doubted.", ("shard",)),
    "slots": ("Joiners that may pull at one time.", ("shard",)),
    "slots_used": ("Joiners that pull.", ("shard",)),
    "starting": ("Cold starts under way.", ("shard",)),
}


class Tally(msgspec.Struct, frozen=True):
    """What has been counted so far; ``gauges`` are of the last look, and empty while the store is away."""

    up: bool = False
    counters: Mapping[Key, int] = {}
    gauges: Mapping[Key, int] = {}


class Counting:
    """Counts from the first look on; :attr:`tally` may be read by any thread."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._from: float | None = None
        self._sum: Counter[Key] = Counter()
        self._told: dict[str, Counter[Key]] = {}
        self._names: set[str] = set()

    def see(self, look: Look) -> None:
        """Take what a look has found."""
        if self._from is None:
            self._from = look.now - PAST_SECONDS
        live = {(shard, each.incarnation) for shard, held in look.adverts.items() for each in held}
        told: dict[str, Counter[Key]] = {}
        names: dict[str, str] = {}
        starting: Counter[Key] = Counter()
        for start in look.starts:
            name = names[start.shard] = self._named(start.model or start.shard[:8])
            self._sum.update(dict.fromkeys(_zeros(name), 0))
            gone = look.now - start.heard > VANISHED_SECONDS and (start.shard, start.start) not in live
            if start.outcome == "running" and not gone:
                starting["starting", (name,)] += 1
            if start.heard >= self._from:
                before = self._told.get(start.start, Counter())
                found = Counter(dict(_counted(start, name, vanished=gone)))
                self._sum.update(found - before)
                told[start.start] = found | before
        self._told = told
        for shard in look.adverts:
            names.setdefault(shard, self._named(shard[:8]))
        gauges: Counter[Key] = Counter({(gauge, (name,)): 0 for name in names.values() for gauge in GAUGES})
        gauges.update(starting)
        for shard, held in look.adverts.items():
            for advert in held:
                gauges.update(dict(_held(advert, names[shard])))
        self.tally = Tally(True, dict(self._sum), dict(gauges))

    def lost(self) -> None:
        """The store does not answer: nobody knows how things are now."""
        self.tally = Tally(False, self.tally.counters)

    def _named(self, name: str) -> str:
        if name in self._names or len(self._names) < MOST_SHARDS:
            self._names.add(name)
            return name
        return OTHERS


def _zeros(name: str) -> Iterator[Key]:
    """What is shown from the beginning: the first increase of a series that was never there is none to Prometheus."""
    for failure in Failure:
        yield "failures", (name, failure.value)
    for origin in ("peer", STORAGE):
        yield "digest_failures", (name, origin)
    yield "fallbacks", (name,)
    yield "truth_conflicts", (name,)
    yield "starts", (name, "served", "peer")


def _counted(start: ColdStart, name: str, *, vanished: bool) -> Iterator[tuple[Key, int]]:
    """What one cold start amounts to, as far as it is known."""
    match start.outcome:
        case "serving" | "gone":
            yield ("starts", (name, "served", start.path)), 1
        case "failed":
            yield ("starts", (name, "failed", "none")), 1
            known = start.failure in (BUILD, *(failure.value for failure in Failure))
            yield ("failures", (name, start.failure if known else "other")), 1
            if start.failure == Failure.CONFLICT.value:
                yield ("truth_conflicts", (name,)), 1
        case "cancelled":
            yield ("starts", (name, "cancelled", "none")), 1
        case _:
            if vanished:
                yield ("starts", (name, "vanished", "none")), 1
    if fell_back(start):
        yield ("fallbacks", (name,)), 1
    wrong = Counter(STORAGE if mark.source == STORAGE else "peer" for mark in start.marks if mark.kind == "corrupted")
    for origin, times in wrong.items():
        yield ("digest_failures", (name, origin)), times


def _held(advert: Advert, name: str) -> Iterator[tuple[Key, int]]:
    match state_of(advert):
        case "complete":
            yield ("holders", (name,)), 1
        case "partial":
            yield ("partial", (name,)), 1
        case _:
            yield ("withheld", (name,)), 1
    yield ("slots", (name,)), advert.slots
    yield ("slots_used", (name,)), advert.used
