"""The library's own sockets, found among this process's descriptors.

It has no calls for two things that a host needs: to give up a read from a peer that has stopped, and to
end an engine at once. Both come down to a socket, and the sockets are ours. Linux only, as the library is. It
must not know engines or reads; ``library.py`` and ``joiner.py`` say which ports are meant.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_CLOSING_SECONDS: Final = 0.001
_POKE_SECONDS: Final = 6.0
"""A listener of the library reads from a silent stranger for at most 5 s."""


def listening() -> Iterator[int]:
    """Ports at which this process listens on all addresses, as the library does."""
    for sock in _internet():
        address, port = sock.getsockname()[:2]
        if address in ("::", "0.0.0.0") and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield port


def cut(host: str, port: int) -> None:
    """Shut this process's connections to a peer: whatever is read over them fails."""
    for sock in _internet():
        with suppress(OSError):
            peer = sock.getpeername()
            if (peer[0].removeprefix("::ffff:"), peer[1]) == (host, port):
                sock.shutdown(socket.SHUT_RDWR)


def hurry(port: int) -> None:
    """Make the engine that listens at ``port`` look often whether it should end. Raises OSError.

    It waits for callers a second at a time, and its destructor waits for that without letting other threads of
    the interpreter run. So its wait is made short, and one caller that says nothing ends the wait that it is in.
    """
    for sock in _internet():
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.getsockname()[1] == port:
            wait = struct.pack("ll", 0, int(_CLOSING_SECONDS * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    deadline = time.monotonic() + _POKE_SECONDS
    with socket.create_connection(("127.0.0.1", port), _POKE_SECONDS) as caller:
        caller.shutdown(socket.SHUT_WR)
        caller.settimeout(max(deadline - time.monotonic(), 0.1))
        caller.recv(1)


def _internet() -> Iterator[socket.socket]:
    """Copies of this process's internet sockets, each closed when the next one is asked for."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6):
                    yield sock
