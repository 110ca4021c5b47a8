"""The source's port: a listening socket, and callers who have not yet shown a secret.

Decides how much a stranger can cost: a thread for two seconds, and the oldest of too many strangers
is dropped. It must not know grants; ``lender.py`` hears of every caller in a thread of the caller's own.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final

from coldstart.errors import TransportError
from coldstart_nccl.wire import shut

MAX_STRANGERS: Final = 64
"""Connections that have not yet shown a secret; well above what all slots together open at once."""
HOST_ADVICE: Final = "set the host to one address of this machine that peers can reach"
_BACKLOG: Final = 64
_ACCEPT_PAUSE: Final = 0.1

_log = logging.getLogger(__name__)


class Listener:
    """Listens at any free port of ``host`` from its creation on.

    Args:
        serve: called with each connection in a thread of its own, which owns it; it closes it.

    Raises:
        TransportError: the host is no address of this machine.
    """

    def __init__(self, host: str, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._socket = _bound(host)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="coldstart-nccl-accept", daemon=True)
        self._thread.start()

    def known(self, sock: socket.socket) -> None:
        """The caller has shown a secret, or is about to be closed."""
        with self._lock:
            self._strangers.pop(sock, None)

    def close(self) -> None:
        """Accept nobody any more, and turn away all strangers."""
        self._waker.close()  # seen as end of file on the other side
        self._thread.join()
        self._woken.close()
        self._socket.close()
        with self._lock:
            for sock in self._strangers:
                shut(sock)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                try:
                    sock, _ = self._socket.accept()
                except BlockingIOError:
                    continue
                except OSError as error:  # out of descriptors: those who wait may still be served later
                    _log.warning("cannot accept: %s", error)
                    selector.unregister(self._socket)
                    selector.select(_ACCEPT_PAUSE)
                    selector.register(self._socket, selectors.EVENT_READ)
                    continue
                self._accepted(sock)

    def _accepted(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                shut(oldest)
            self._strangers[sock] = None
        thread = threading.Thread(target=self._serve, args=(sock,), name="coldstart-nccl-source", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads on this machine: the caller is turned away
            _log.warning("cannot start a thread for a connection")
            self.known(sock)
            sock.close()


def _bound(host: str) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.bind(address)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:
        raise TransportError(f"cannot listen on {host!r}: {error}", reason="unreachable", advice=HOST_ADVICE) from error
    return sock
