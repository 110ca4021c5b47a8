"""Moves messages over a pair, and never waits for a peer that does not move.

Decides the order of events in one conversation: set the pair up, keep a few messages posted, count
what has been moved, look at the control connection between all of it. Both sides run this, from one
thread each. What goes wrong comes out as TransportError; whoever called it then aborts the pair.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from coldstart.layout import Span
from coldstart_nccl.communicator import Communicator, Message
from coldstart_nccl.control import Control

AHEAD: Final = 8
"""Messages that are posted and not yet moved: enough to keep the link busy between two looks."""
_SHORTEST, _LONGEST = 0.00002, 0.0002
"""Seconds between two looks: soon after something has happened, later and later when nothing does."""


class _Patience:
    """How long to wait before the next look."""

    def __init__(self) -> None:
        self._seconds = _SHORTEST

    def again(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, _LONGEST)
        return seconds

    def renew(self) -> None:
        self._seconds = _SHORTEST


def set_up(pair: Communicator, control: Control) -> None:
    """Wait until the pair can be used."""
    while not pair.ready():
        control.look(_LONGEST)
    control.moved()


def meet(pair: Communicator, control: Control) -> None:
    """Wait until the pair can be used on both sides: one that is half built cannot always be taken down."""
    set_up(pair, control)
    while not control.peer_ready:
        control.look(_LONGEST)
    control.moved()


def move(
    pair: Communicator,
    control: Control,
    messages: Iterable[Message],
    post: Callable[[Message], None],
    *,
    may_go: Callable[[int, float], float] | None = None,
    moved: Callable[[Span], None] = lambda span: None,
) -> None:
    """Post ``messages`` one after the other, and return when all have been moved.

    Args:
        post: the pair's ``send`` or ``receive``.
        may_go: given bytes and the time, the time at which they may be posted.
        moved: told of each message that has been moved.
    """
    rest = iter(messages)
    posted: deque[Span] = deque()
    counted = pair.done()  # of earlier pulls
    upcoming: Message | None = None
    at = 0.0
    patience = _Patience()
    while True:
        now = time.monotonic()
        if upcoming is None and (upcoming := next(rest, None)) is not None:
            at = may_go(upcoming.span.length, now) if may_go else now
        if upcoming is not None and len(posted) < AHEAD and now >= at and pair.ready():
            post(upcoming)
            posted.append(upcoming.span)
            upcoming = None
            patience.renew()
            control.look(0)  # there may be more to post at once
            continue
        elif pair.ready():
            for _ in range(pair.done() - counted):
                counted += 1
                control.moved()
                moved(posted.popleft())
                patience.renew()
        if not posted:
            if upcoming is None:
                return
            control.moved()  # it is we who wait
        control.look(patience.again())


def wait_for_peer(control: Control) -> None:
    """Wait until the peer has said that it has everything."""
    control.moved()
    while not control.peer_done:
        control.look(_LONGEST)
