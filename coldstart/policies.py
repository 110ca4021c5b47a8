"""Which source a joiner would rather have: plain functions, which an operator may replace.

    async with coldstart.join(checkpoint, prefer=coldstart.policies.quickest) as replica: ...

A policy sees the adverts of its shard and where it stands, and names the workers that it prefers, the best first. The
store takes the first of those that will do (a free slot, the right layout, chunks that are missing), and ranks
the others itself where none of them will: nearest, least loaded, most complete. So a policy can make a start
slower, never wrong. It is asked before each claim, which costs one more call to the store; by default there
is none. The same functions run in the simulator (``Scenario.prefer``). Nothing here knows a clock or the world.
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
