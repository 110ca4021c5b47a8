"""Which source a joiner would rather have, and how many at once: plain functions, which an operator may replace.

    async with coldstart.join(checkpoint, prefer=coldstart.policies.quickest) as replica: ...
    async with coldstart.join(checkpoint, at_once=coldstart.policies.one_source) as replica: ...

A policy of the first kind sees the adverts of its shard and where it stands, and names the workers that it prefers, the
best first. The store takes the first of those that will do (a free slot, the right layout, chunks that are missing),
and ranks the others itself where none of them will: nearest, least loaded, most complete. So a policy can make a
start slower, never wrong. It is asked before each claim, which costs one more call to the store; by default there
is none. One of the second kind sees how a transfer goes, and says from how many sources at once it should come; it is
asked whenever bytes have come, and can make a start slower, never wrong, either. The same functions run in the
simulator (``Scenario.prefer``, ``Scenario.at_once``). Nothing here knows a clock or the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from coldstart.ports import Advert


class Here(msgspec.Struct, frozen=True):
    """The joiner that asks.

    Args:
        host, rack: where it is, in the words of :class:`coldstart.ports.Advert`.
        have: chunks that it holds.
        rates: bytes per second that links from other hosts have given, by host, as far as that was measured.
    """

    worker: str
    host: str = ""
    rack: str = ""
    have: int = 0
    rates: Mapping[str, float] = {}


Prefer = Callable[[Here, Sequence[Advert]], Sequence[str]]
"""Names of workers, the best first; only the first :data:`HEARD` are passed on."""

HEARD = 8


def heard(prefer: Prefer, here: Here, adverts: Sequence[Advert]) -> tuple[str, ...]:
    """What the store is told: names that are advertised, and not many of them. Raises whatever ``prefer`` does."""
    advertised = {advert.worker for advert in adverts}
    return tuple([worker for worker in prefer(here, adverts) if worker in advertised][:HEARD])


def quickest(here: Here, adverts: Sequence[Advert]) -> Sequence[str]:
    """Those over whose links bytes came quickest before, shared with who reads there now; who was not measured is left
    to the store."""
    shares = {advert.worker: here.rates.get(advert.host, 0.0) / (advert.used + 1) for advert in adverts}
    known = [worker for worker, share in shares.items() if share > 0]
    return sorted(known, key=lambda worker: (-shares[worker], worker))


def complete(here: Here, adverts: Sequence[Advert]) -> Sequence[str]:
    """Those that have everything: no source then waits for a source of its own."""
    return [advert.worker for advert in adverts if advert.have >= advert.total]


class Flow(msgspec.Struct, frozen=True):
    """How a transfer goes.

    Args:
        sources: from how many it comes now.
        rate: bytes per second from all of them together, since there were so many.
        before: of the first one alone, where others were added; 0: none was.
        link: the best that the link from the first one's host has given, in bytes per second; 0: not known.
        cap: bytes per second that the first one sends at most, to everybody together; 0: not limited.
        left: bytes that are missing.
        watched: seconds for which ``rate`` was measured.
    """

    sources: int
    rate: float
    before: float
    link: float
    cap: float
    left: int
    watched: float


AtOnce = Callable[[Flow], int]
"""From how many sources a transfer should come: more than :data:`MOST` are as good as so many, fewer than one as one.
Where it says fewer than there are, the last ones are ended, and no more are sought in this start."""

MOST = 4
"""Sources of one joiner at most: each holds a slot that others may need, and one more brings less each time."""
WATCHED = 1.0
"""Seconds until a rate is believed: connections start slowly."""
WORTH = 2.0
"""Seconds that the rest must still take before more sources are thought of."""
SAVES = 0.3
"""Seconds that each one more must save, if it is as quick as the others: it costs a claim, a handshake and a slot."""
FULL = 0.8
"""A link that gives this share of its best is full; what is left to gain is not worth a slot."""
PAYS = 0.6
"""Sources must bring this share each of what the first one did alone, on average; equal ones with limits of their own
bring all of it. So two must bring 1.2 times as much as one, and four 2.4 times."""


def source_bound(flow: Flow) -> int:
    """Further sources where the first one is limited by its lender, or gives less than its link can, or nobody knows;
    fewer again where those that there are share what is slow."""
    if flow.watched < WATCHED or flow.rate <= 0:
        return flow.sources
    if flow.sources > 1 and flow.rate < PAYS * flow.sources * flow.before:
        return int(flow.rate / (PAYS * flow.before))
    if flow.left < WORTH * flow.rate:
        return flow.sources
    full = flow.link > 0 and flow.rate >= FULL * flow.link
    return flow.sources if full and flow.cap <= 0 else _that_save(flow)


def _that_save(flow: Flow) -> int:
    """As many as each save something, if all are alike: the rest takes a second from one, half of it from two."""
    alone = flow.left / flow.rate * flow.sources
    saving = [sources for sources in range(flow.sources + 1, MOST + 1) if alone >= SAVES * sources * (sources - 1)]
    return max(saving, default=flow.sources)


def one_source(flow: Flow) -> int:
    """Never a further source, but in crowds."""
    return 1
