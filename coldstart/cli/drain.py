"""``coldstart drain WORKER``: ask a worker over the bus to leave, and wait until it lends nothing any more.

Decides whom a name means, how long is waited, and what an answer, or none, amounts to. How the worker leaves is
``departing.py``'s matter. Exit code 0 once it has left; 1 if that could not be seen in time; 2 if nobody is called so.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable

import anyio
import msgspec

from coldstart import wiring
from coldstart.cli.output import emit, seconds, visible
from coldstart.cli.output import say as say_line
from coldstart.cli.store import looked_at
from coldstart.errors import BadMessage, ColdstartError, ConfigError
from coldstart.messages import Departure, Drain, decode, encode
from coldstart.ports import Advert, Bus, Cursor

SILENT_SECONDS = 10.0
"""A worker that lives answers within a moment: it listens all the time, and goes on after any outage of the store."""
WAIT_SECONDS = 2.0

Say = Callable[[str], None]


class Drained(msgspec.Struct, frozen=True):
    """What ``--json`` tells: ``transfers`` were in flight when it was asked, and it took so many ``seconds``."""

    worker: str
    shard: str
    host: str
    transfers: int
    seconds: float


def run(worker: str, redis: str | None, limit: float, *, json: bool) -> None:
    """The command; raises ColdstartError for ``main`` to print."""
    left = anyio.run(_drain, worker, redis, limit, _quiet if json else say_line)
    if json:
        emit({"drained": left})
    else:
        for each in left:
            say_line(f"{each.worker} lends nothing any more, after {seconds(each.seconds)}")


async def _drain(worker: str, redis: str | None, limit: float, say: Say) -> list[Drained]:
    settings = await looked_at(redis)
    if settings is None:
        raise _unknown(worker, [])
    async with wiring.open_bus(settings, probe=True) as bus:
        known = [(shard, advert) for shard in await bus.shards() for advert in await bus.adverts(shard)]
        meant = [(shard, advert) for shard, advert in known if advert.worker == worker]
        if not meant:
            raise _unknown(worker, [advert.worker for _, advert in known])
        return [await _leave(bus, shard, advert, limit, say) for shard, advert in meant]


async def _leave(bus: Bus, shard: str, advert: Advert, limit: float, say: Say) -> Drained:
    """Ask one worker and wait for its last word."""
    asker = f"drain-{secrets.token_hex(8)}"
    request = Drain(transfer=f"drain-{secrets.token_hex(8)}", asker=asker, number=secrets.randbits(62))
    began, cursor, transfers = anyio.current_time(), Cursor(), -1
    await bus.send(shard, advert.inbox, encode(request), secrets.token_hex(8))
    while True:
        waited = anyio.current_time() - began
        left = (min(limit, SILENT_SECONDS) if transfers < 0 else limit) - waited
        if left <= 0:
            raise _late(advert, waited, transfers)
        heard = await bus.listen(shard, asker, cursor, min(left, WAIT_SECONDS), fleet=False)
        cursor = heard.cursor
        for letter in heard.letters:
            told = _answer(letter.body, request)
            if told is None:
                continue
            if transfers < 0:
                transfers = told.transfers
                say(f"{advert.worker} leaves; {_counted(transfers)} in flight")
            if told.over:
                return Drained(advert.worker, shard, advert.host, transfers, anyio.current_time() - began)


def _answer(body: bytes, request: Drain) -> Departure | None:
    """The letter, if it answers ``request``."""
    try:
        message = decode(body)
    except BadMessage:
        return None
    match message:
        case Departure(transfer=request.transfer) if message.answer == request.number + 1:
            return message
        case _:
            return None


def _late(advert: Advert, waited: float, transfers: int) -> ColdstartError:
    if transfers < 0:
        return ColdstartError(
            f"{advert.worker} on {visible(advert.host)} has not answered within {waited:.0f} s",
            advice="it may be stopped or gone ('coldstart peers' forgets it then), too old to be drained from afar, or "
            "of a fleet whose keys (COLDSTART_KEYS) are not given here: send SIGTERM to its process",
        )
    return ColdstartError(
        f"{advert.worker} takes no more joiners, but {_counted(transfers)} had not ended within {waited:.0f} s",
        advice="ask again to wait on, or end its process: joiners go on elsewhere with what they have",
    )


def _unknown(worker: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(worker, known, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "see 'coldstart peers'"
    return ConfigError(f"no worker called {worker!r} has an advert in the store", advice=hint)


def _counted(transfers: int) -> str:
    return f"{transfers or 'no'} transfer{'' if transfers == 1 else 's'}"


def _quiet(text: str) -> None:
    return
