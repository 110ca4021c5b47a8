"""The listener's connection: waits for letters and for changes of the fleet.

Decides when silence could mean that the store has lost its memory. A store that restarted empty, or
fell back to a replica that had less, hands out lower ids: a reader with an old cursor hears nothing and
gets no error. So epoch and ids are compared (by ``scripts.TOUCH``, in one go with the read) on every new
connection, for every cursor that is not the last one given out, and whenever the last time is a while ago.
"""

from __future__ import annotations

import math
import secrets

import anyio
import msgspec

from coldstart.bus import replies, scripts
from coldstart.bus.calls import Calls
from coldstart.bus.connections import REDIRECTS, SOCKET_SECONDS, Link, Node, Routes, Server, UnknownScript, Word
from coldstart.ports import Cursor, Heard

BLOCK_SECONDS = 2.0
"""Longest single blocking read: a drained worker stops listening this soon even if nothing comes."""

TOUCH_SECONDS = 1.5
"""The store's life, and our inbox's, need no confirming within this."""


class Streams(msgspec.Struct, frozen=True):
    """Where to listen: what scripts about the shard begin with, and the keys of the two streams."""

    life: str
    prefix: str
    inbox: str
    fleet: bool

    @property
    def keys(self) -> tuple[str, str]:
        return f"{self.prefix}inbox:{self.inbox}", f"{self.prefix}fleet"


class Ear:
    """Reads from explicit cursors. ``dropped`` counts letters that were oversized or malformed.

    Args:
        seconds: deadline of what is answered at once.
    """

    def __init__(self, server: Server, routes: Routes, calls: Calls, seconds: float) -> None:
        self._server, self._routes, self._calls, self._seconds = server, routes, calls, seconds
        self._node: Node = None
        self._link = self._new_link()
        self._taught = 0
        """The life of the connection on which the server was last given the text of the script."""
        self._proven: tuple[int, str, Cursor] | None = None
        """Connection, inbox and cursor that were last found to be of the store's present life."""
        self._proven_at = -math.inf
        self.dropped = 0

    async def warm(self) -> None:
        """Connect now; raises BusError."""
        with self._calls.deadline("connecting", self._seconds):
            await self._link.ready()

    async def aclose(self) -> None:
        await self._link.close()

    async def hear(self, streams: Streams, cursor: Cursor, seconds: float) -> Heard:
        """Wait up to ``seconds``; raises BusError."""
        until = anyio.current_time() + seconds
        while True:
            left = min(max(until - anyio.current_time(), 0.0), BLOCK_SECONDS)
            standing, mail = await self._ask(streams, cursor, left)
            if cursor.epoch not in ("", standing.epoch):
                return Heard(Cursor(epoch=standing.epoch), renewed=True)
            if mail is None:
                return Heard(standing, renewed=True)
            self.dropped += mail.dropped
            cursor = Cursor(inbox=mail.inbox or cursor.inbox, fleet=mail.fleet or cursor.fleet, epoch=standing.epoch)
            if self._proven is not None:
                self._proven = (*self._proven[:2], cursor)
            if mail.letters or mail.fleet:
                return Heard(cursor, letters=mail.letters, fleet_changed=bool(mail.fleet))
            if anyio.current_time() >= until:
                return Heard(cursor)

    async def _ask(self, streams: Streams, cursor: Cursor, left: float) -> tuple[Cursor, replies.Mail | None]:
        """Where we stand, and what came since; nothing if we do not stand at ``cursor``."""
        for attempt in range(REDIRECTS + 1):
            last = attempt == REDIRECTS
            with self._calls.deadline("listen", self._seconds):
                try:
                    with self._routes.following(streams.life, last=last):
                        standing = await self._send(streams, cursor, left)
                        break
                except UnknownScript:  # it has forgotten its scripts: the next connection teaches it again
                    if last:
                        raise
        else:
            raise AssertionError("the last attempt breaks or raises")
        if (standing.inbox, standing.fleet) != (cursor.inbox, cursor.fleet) or cursor.epoch not in ("", standing.epoch):
            self._proven = None
            await self._link.close()  # the read is still on its way
            return standing, None
        with self._calls.deadline("listen", left + SOCKET_SECONDS):
            inbox, fleet = streams.keys
            return standing, replies.mail(await self._link.receive(), inbox.encode(), fleet.encode())

    async def _send(self, streams: Streams, cursor: Cursor, left: float) -> Cursor:
        """Send the read, and before it the question where to go on if that is not known; returns its answer."""
        node = self._routes.node(streams.life)
        if node != self._node:
            await self._link.close()
            self._node, self._proven = node, None
            self._link = self._new_link()
        life = await self._link.ready()
        now = anyio.current_time()
        read = self._read(streams, cursor, left)
        if self._proven == (life, streams.inbox, cursor) and now - self._proven_at < TOUCH_SECONDS:
            await self._link.send(read)
            return cursor
        self._proven = None
        await self._link.send(self._touch(streams, cursor, life), read)
        try:
            fields = replies.ShardFields(await self._link.receive(), "listen")
            standing = Cursor(inbox=fields.text(), fleet=fields.text(), epoch=fields.epoch)
        except BaseException:
            await self._link.close()
            raise
        self._taught, self._proven, self._proven_at = life, (life, streams.inbox, standing), now
        return standing

    def _touch(self, streams: Streams, cursor: Cursor, life: int) -> tuple[Word, ...]:
        # With the text, the first time: a script that the server does not know would leave the read on its way.
        script = ("EVALSHA", scripts.TOUCH.sha) if self._taught == life else ("EVAL", scripts.TOUCH.text)
        words = (streams.life, streams.prefix, secrets.token_hex(8), streams.inbox, cursor.inbox, cursor.fleet)
        return (*script, 1, *words)

    def _read(self, streams: Streams, cursor: Cursor, left: float) -> tuple[Word, ...]:
        # BLOCK 0 would mean for ever.
        patience = ("BLOCK", max(1, math.ceil(left * 1000))) if left > 0 else ()
        inbox, fleet = streams.keys
        if not streams.fleet:
            return "XREAD", *patience, "STREAMS", inbox, cursor.inbox
        return "XREAD", *patience, "STREAMS", inbox, fleet, cursor.inbox, cursor.fleet

    def _new_link(self) -> Link:
        return self._server.link(self._node)
