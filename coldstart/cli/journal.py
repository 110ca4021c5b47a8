"""``coldstart journal``: what workers have written down of their cold starts, one thing a line.

Decides what is shown: everything, or one worker's, or the last so many; with ``--follow`` what comes, too, over a store
that may vanish. In which order that is printed is ``journal_order.py``'s matter.
"""

from __future__ import annotations

import time

import anyio

from coldstart.cli.journal_order import InOrder
from coldstart.cli.journal_words import Item, items
from coldstart.cli.looking import Look, Looker, looker
from coldstart.cli.output import emit, say, visible
from coldstart.errors import ConfigError

EVERY_SECONDS = 1.0


def run(redis: str | None, worker: str, last: int, *, follow: bool, json: bool) -> None:
    """The command; raises ConfigError or BusError for ``main`` to print."""
    anyio.run(_read, redis, worker, last, follow, json)


async def _read(redis: str | None, worker: str, last: int, follow: bool, json: bool) -> None:
    async with looker(redis) as looks:
        if follow:
            await _follow(looks, worker, last, json)
            return
        look = await looks.look()
        found = _wanted(look, worker)
        for item in found[-last:]:  # all of them, where ``last`` is 0
            _print(item, json)
        _nothing(look, worker, any_told=bool(found), json=json)


async def _follow(looks: Looker, worker: str, last: int, json: bool) -> None:
    """Print what is there, and what comes, until cancelled; what is held back then is printed, too."""
    order, begun = InOrder(), False
    found: list[Item] = []
    try:
        while True:
            look, now = await looks.look_on(), anyio.current_time()
            if look is not None:
                found = _wanted(look, worker)
            told = order.take(found, now) if begun or look is None else order.begin(found, now, last)
            begun = begun or look is not None
            for each in told:
                _print(each, json)
            await anyio.sleep(EVERY_SECONDS)
    finally:
        for each in order.rest():
            _print(each, json)


def _print(item: Item, json: bool) -> None:
    emit(item) if json else say(_line(item))


def _wanted(look: Look, worker: str) -> list[Item]:
    return items(start for start in look.starts if not worker or start.worker == worker)


def _nothing(look: Look, worker: str, *, any_told: bool, json: bool) -> None:
    """Say why nothing is shown."""
    if any_told:
        return
    if worker and look.starts:
        known = ", ".join(sorted({start.worker for start in look.starts})[:8])
        raise ConfigError(f"the journal tells nothing of {worker!r}", advice=f"it knows {visible(known)}")
    if not json:
        say("the journal is empty: no worker has started within a week")


def _line(item: Item) -> str:
    moment = time.strftime("%m-%d %H:%M:%S", time.localtime(item.at)) + f"{item.at % 1:.3f}"[1:]
    said = f"{moment}  {item.worker}  {item.kind}  {item.words}".rstrip()
    return f"{said}  (came late)" if item.late else said
