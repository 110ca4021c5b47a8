"""A source and what happens to it, for the tests of its machine."""

from __future__ import annotations

from coldstart import events
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.source import Grantee, Mode, Source, Terms, step

TERMS = Terms("aa", 2, ("fast", "tcp"))
OPEN = Source(TERMS, Mode.OPEN, have=None)
TRANSFERS = ("t1", "t2", "t3")


def hello(transfer: str = "t1", layout: str = "aa", transports: tuple[str, ...] = ("tcp",)) -> events.HelloReceived:
    return events.HelloReceived(transfer, f"{transfer}.joiner", 1, 7, layout, transports)


def after(source: Source, *happened: Event) -> tuple[Source, tuple[Effect, ...]]:
    """The state after all of ``happened`` and the effects of the last."""
    asked: tuple[Effect, ...] = ()
    for event in happened:
        source, asked = step(source, event, 0.0)
    return source, asked


def opened(source: Source) -> list[Grantee]:
    return [grant for grant in source.grants if not grant.closing]
