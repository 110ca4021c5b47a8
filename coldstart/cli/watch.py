"""``coldstart watch``: a fleet as it is now, and now.

Decides when is looked and where the picture goes: in place on a terminal; one after the other, whenever something has
changed, in a pipe and on a terminal that cannot redraw; one JSON value a line with ``--json``. A store that vanishes
is said, and waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio
import msgspec
from msgspec.structs import replace
from rich.live import Live
from rich.text import Text

from coldstart.cli.interruption import terminations_unwind
from coldstart.cli.looking import looker
from coldstart.cli.output import STDOUT, emit, note, redraws, say, seconds, visible
from coldstart.cli.watch_words import Said, lines
from coldstart.cli.watching import Picture, picture
from coldstart.errors import BusError


class Lost(msgspec.Struct, frozen=True):
    """What ``--json`` tells instead of a picture: the store has not answered for so many ``seconds``."""

    lost: str
    seconds: float


def run(redis: str | None, every: float, *, once: bool, json: bool) -> None:
    """The command; raises ConfigError, and with ``once`` BusError, for ``main`` to print."""
    with terminations_unwind():
        anyio.run(_watch, redis, every, once, json)


async def _watch(redis: str | None, every: float, once: bool, json: bool) -> None:
    with _show(once, json) as show:
        last: Picture | None = None
        lost_at: float | None = None
        async with looker(redis) as looks:
            while True:
                try:
                    last = picture(await looks.look(), last)
                except BusError as error:
                    if once:
                        raise
                    lost_at = anyio.current_time() if lost_at is None else lost_at
                    show.lost(error, anyio.current_time() - lost_at)
                else:
                    lost_at = None
                    show.picture(last)
                if once:
                    return
                await anyio.sleep(every)


class _Show(Protocol):
    """Where pictures go."""

    def picture(self, now: Picture) -> None: ...

    def lost(self, error: BusError, since: float) -> None:
        """The store has not answered for so many seconds."""
        ...


@contextmanager
def _show(once: bool, json: bool) -> Iterator[_Show]:
    if json:
        yield _Json()
    elif once or not redraws(STDOUT):
        yield _Plain()
    else:
        with Live(console=STDOUT, auto_refresh=False, vertical_overflow="crop") as live:
            yield _Terminal(live)


class _Json:
    def picture(self, now: Picture) -> None:
        emit(now)

    def lost(self, error: BusError, since: float) -> None:
        emit(Lost(error.what, since))


class _Plain:
    """A picture whenever something but the time has changed."""

    def __init__(self) -> None:
        self._before: Picture | None = None
        self._lost = False

    def picture(self, now: Picture) -> None:
        if self._lost:
            note("the store is back")
        same = self._before is not None and _timeless(now) == _timeless(self._before)
        if self._lost or not same:
            for each in lines(now):
                say(each.text)
        self._before, self._lost = now, False

    def lost(self, error: BusError, since: float) -> None:
        if not self._lost:
            note(f"the store is lost, and waited for: {error.what}")
        self._lost = True


class _Terminal:
    """The last picture, in place; with what is wrong above it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last: Sequence[Said] = ()

    def picture(self, now: Picture) -> None:
        self._last = lines(now)
        self._draw(self._last)

    def lost(self, error: BusError, since: float) -> None:
        said = Said(f"the store is lost for {seconds(since)}, and waited for: {visible(error.what)}", "bold red")
        self._draw((said, *self._last))

    def _draw(self, said: Sequence[Said]) -> None:
        self._live.update(Text("\n").join(Text(each.text, each.style) for each in said), refresh=True)


def _timeless(now: Picture) -> Picture:
    return replace(now, at=0.0, moving=tuple(replace(each, rate=0.0, seen=0.0) for each in now.moving))
