"""``coldstart journal``: what workers have written down of their cold starts, one thing a line.

Decides what is shown: everything, or one worker's, or the last so many; with ``--follow`` what comes, too, over a store
that may vanish. Workers write some seconds later than things happen, so a line that comes late may belong further up.
"""

from __future__ import annotations

import time

import anyio

from coldstart.cli.journal_words import Item, items
from coldstart.cli.looking import Look, looker
from coldstart.cli.output import emit, note, say, visible
from coldstart.errors import BusError, ConfigError

EVERY_SECONDS = 1.0


def run(redis: str | None, worker: str, last: int, *, follow: bool, json: bool) -> None:
    """The command; raises ConfigError or BusError for ``main`` to print."""
    anyio.run(_read, redis, worker, last, follow, json)


async def _read(redis: str | None, worker: str, last: int, follow: bool, json: bool) -> None:
    told: set[tuple[str, str, int]] = set()
    lost = False
    async with looker(redis) as looks:
        while True:
            try:
                look = await looks.look()
            except BusError as error:
                if not follow:
                    raise
                if not lost:
                    note(f"the store is lost, and waited for: {error.what}")
                lost = True
            else:
                if lost:
                    note("the store is back")
                lost = False
                found = _wanted(look, worker)
                for item in found[-last:] if last and not told else found:
                    if item.key not in told:
                        emit(item) if json else say(_line(item))
                told.update(item.key for item in found)
                if not follow:
                    _nothing(look, worker, any_told=bool(found), json=json)
                    return
            await anyio.sleep(EVERY_SECONDS)


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
    return f"{moment}  {item.worker}  {item.kind}  {item.words}".rstrip()
