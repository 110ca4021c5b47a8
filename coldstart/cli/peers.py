"""``coldstart peers``: who holds which weights, by the adverts in the store.

Decides how adverts are shown. It only looks: it starts no embedded server to find nobody in it, and
writes nothing that outlives it. Adverts are written by others, so their text is shown only where it
is plain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import cast

import anyio
import anyio.to_thread
import msgspec

from coldstart import config, wiring
from coldstart.cli.output import age, emit, say, table
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.ports import Advert

COLUMNS = ("shard", "worker", "state", "chunks>", "slots>", "transports", "host", "device", "gen>", "age>")


class Worker(msgspec.Struct, frozen=True):
    """One advert as ``--json`` tells it; ``age`` is in seconds since SERVE, if the worker says so."""

    worker: str
    state: str
    have: int
    total: int
    slots: int
    used: int
    transports: tuple[str, ...]
    host: str
    device: str
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
    settings = config.load({"redis": redis})
    if settings.redis == "none":
        raise ConfigError("coordination is switched off, so no peer can be seen", advice="give --redis URL")
    nobody, shards = anyio.run(_survey, settings)
    if json:
        emit({"shards": shards})
    elif not shards:
        say(f"nobody holds weights: {nobody}; start one with 'coldstart worker'")
    else:
        table("", COLUMNS, [_cells(shard, worker) for shard in shards for worker in shard.workers])


async def _survey(settings: Settings) -> tuple[str, Sequence[Shard]]:
    """The shards with somebody in them; before that, what it means if there are none."""
    if not settings.redis:
        url = await anyio.to_thread.run_sync(_running, settings, abandon_on_cancel=True)
        if not url:
            return f"no worker of this machine runs a store in {settings.embedded_directory}", ()
        settings = msgspec.structs.replace(settings, redis=url)
    async with wiring.open_bus(settings, probe=True) as bus:
        found = [(shard, await bus.adverts(shard)) for shard in await bus.shards()]
    now = time.time()
    return f"the store has no live advert under the namespace {settings.namespace!r}", [
        Shard(shard, tuple(_worker(advert, now) for advert in adverts)) for shard, adverts in found if adverts
    ]


def _running(settings: Settings) -> str:
    embedded = import_module("coldstart.bus.embedded")
    return cast(str, embedded.running(settings.embedded_directory))


def _worker(advert: Advert, now: float) -> Worker:
    return Worker(
        worker=advert.worker,
        state=_state(advert),
        have=advert.have,
        total=advert.total,
        slots=advert.slots,
        used=advert.used,
        transports=advert.transports,
        host=advert.host,
        device=advert.device,
        generation=advert.generation,
        incarnation=advert.incarnation,
        layout=advert.layout,
        age=max(0.0, now - advert.since) if advert.since > 0 else None,
    )


def _state(advert: Advert) -> str:
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
