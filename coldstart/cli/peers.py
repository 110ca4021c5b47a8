"""``coldstart peers``: who holds which weights, by the adverts in the store.

Decides how adverts are shown. It only looks: it starts no embedded server to find nobody in it, and
writes nothing that outlives it. Adverts are written by others, so their text is shown only where it
is plain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import msgspec

from coldstart import wiring
from coldstart.cli.output import age, emit, say, table
from coldstart.cli.store import looked_at, nobody
from coldstart.ports import Advert

COLUMNS = ("shard", "worker", "state", "chunks>", "slots>", "transports", "host", "device", "gen>", "age>")


class Worker(msgspec.Struct, frozen=True):
    """One advert as ``--json`` tells it.

    ``age`` is in seconds since SERVE, if the worker says so; ``rate`` in bytes per second, at which its weights came
    from a peer (0: they did not).
    """

    worker: str
    state: str
    have: int
    total: int
    slots: int
    used: int
    transports: tuple[str, ...]
    host: str
    device: str
    rack: str
    rate: int
    generation: int
    incarnation: str
    layout: str
    age: float | None


class Shard(msgspec.Struct, frozen=True):
    """A shard's key and its live workers."""

    shard: str
    workers: tuple[Worker, ...]


def run(redis: str | None, *, json: bool) -> None:
    """The command; raises ConfigError or BusError for ``main`` to print."""
    none, shards = anyio.run(_survey, redis)
    if json:
        emit({"shards": shards})
    elif not shards:
        say(f"nobody holds weights: {none}; start one with 'coldstart worker'")
    else:
        table("", COLUMNS, [_cells(shard, worker) for shard in shards for worker in shard.workers])


async def _survey(redis: str | None) -> tuple[str, Sequence[Shard]]:
    """The shards with somebody in them; before that, what it means if there are none."""
    settings = await looked_at(redis)
    if settings is None:
        return nobody(redis), ()
    async with wiring.open_bus(settings, probe=True) as bus:
        found = [(shard, await bus.adverts(shard)) for shard in await bus.shards()]
    now = time.time()
    return f"the store has no live advert under the namespace {settings.namespace!r}", [
        Shard(shard, tuple(_worker(advert, now) for advert in adverts)) for shard, adverts in found if adverts
    ]


def _worker(advert: Advert, now: float) -> Worker:
    return Worker(
        worker=advert.worker,
        state=state_of(advert),
        have=advert.have,
        total=advert.total,
        slots=advert.slots,
        used=advert.used,
        transports=advert.transports,
        host=advert.host,
        device=advert.device,
        rack=advert.rack,
        rate=advert.rate,
        generation=advert.generation,
        incarnation=advert.incarnation,
        layout=advert.layout,
        age=max(0.0, now - advert.since) if advert.since > 0 else None,
    )


def state_of(advert: Advert) -> str:
    """What can be had there: ``unproven`` has not sealed its advert with a key of ours,
    ``struck`` is doubted by a joiner, ``withheld`` has weights that may be others now."""
    if advert.unproven:
        return "unproven"
    if advert.struck:
        return "struck"
    if advert.have <= 0:
        return "withheld"
    return "complete" if advert.have >= advert.total else "partial"


def _cells(shard: Shard, worker: Worker) -> tuple[str, ...]:
    return (
        _plain(shard.shard)[:8],
        _plain(worker.worker),
        worker.state,
        f"{worker.have}/{worker.total}",
        f"{worker.used}/{worker.slots}",
        _plain(",".join(worker.transports)) or "none",
        _plain(worker.host),
        _plain(worker.device),
        str(worker.generation),
        "-" if worker.age is None else age(worker.age),
    )


def _plain(text: str) -> str:
    """``text`` without what could move a terminal's cursor or pass for markup."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_.:,-/%") else "?" for sign in text)[:96]
