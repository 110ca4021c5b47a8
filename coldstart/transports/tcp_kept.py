"""Connections of tcp that outlive a pull: the next pull with the same ticket uses them.

Decides which are still sound when they are asked for again. A joiner whose source still receives pulls many times;
where its own link is busy with those it lends to, each round trip of a new connection waits in that queue. It must
not know what is pulled (``tcp_joiner.py``). Any thread may call.
"""

from __future__ import annotations

import select
import socket
import threading

from coldstart.transports.wire import Ticket


class Kept:
    """Idle connections by ticket, for the tickets that are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Ticket, list[socket.socket]] = {}

    def keep(self, ticket: Ticket) -> None:
        """From now on, until :meth:`drop`, its connections are taken in."""
        with self._lock:
            self._idle.setdefault(ticket, [])

    def take(self, ticket: Ticket) -> socket.socket | None:
        """A connection that the source has neither closed nor spoken on, or None."""
        while True:
            with self._lock:
                idle = self._idle.get(ticket)
                if not idle:
                    return None
                sock = idle.pop()
            if not _readable(sock):
                return sock
            sock.close()

    def give(self, ticket: Ticket, sock: socket.socket) -> bool:
        """Take ``sock`` in, on which nothing is asked for any more; false if its ticket is not kept."""
        with self._lock:
            idle = self._idle.get(ticket)
            if idle is None:
                return False
            idle.append(sock)
            return True

    def drop(self, ticket: Ticket) -> None:
        """Close what there is of ``ticket``; idempotent."""
        with self._lock:
            idle = self._idle.pop(ticket, [])
        for sock in idle:
            sock.close()

    def close(self) -> None:
        """Close everything."""
        for ticket in list(self._idle):
            self.drop(ticket)


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
