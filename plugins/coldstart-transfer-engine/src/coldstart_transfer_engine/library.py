"""Mooncake's TransferEngine as this package uses it: one engine, its registrations, single reads.

Decides what the library's numbers mean, which route an engine really took, and how an engine ends
without stopping the interpreter. It must not know grants, tickets or layouts. Settings reach the
library through ``surroundings.py``; what is read is decided in ``reads.py``.

The ``protocol`` that ``initialize`` takes does not choose the transport: the environment and what is found on
the machine do. So the route is told from what the engine has become.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from coldstart.errors import TransportError
from coldstart.ports import Region
from coldstart_transfer_engine.surroundings import current, hushed, variables

Route = Literal["tcp", "nvlink", "rdma", "unknown"]

STALL_SECONDS: Final = 3
"""After so long without a byte, TCP reads fail; less than the 5 s after which coldstart gives an abandoned target up."""

INSTALL: Final = (
    "pip install mooncake-transfer-engine-non-cuda (or mooncake-transfer-engine-cuda13 for GPUs) and, "
    "on Debian, apt-get install libibverbs1 libnuma1 libcurl4 (with CUDA also ibverbs-providers)"
)

_VARIANTS: Final = (
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-non-cuda",
)
"""Distributions with the same import name."""

_ALWAYS: Final = {"MC_LOG_LEVEL": "ERROR", "MC_TCP_PROGRESS_TIMEOUT_SEC": str(STALL_SECONDS)}
_ROUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "tcp": {"MC_FORCE_TCP": "1"},
    "nvlink": {"MC_INTRANODE_NVLINK": "true"},
    "rdma": {},
}
_ADAPTERS: Final = Path("/sys/class/infiniband")
_CLOSING_SECONDS: Final = 0.01
_POKE_SECONDS: Final = 6.0
"""Its listener reads from a stranger for at most 5 s."""

DONE: Final = 1
FAILED: Final = -1


class Native(Protocol):
    """The calls of ``mooncake.engine.TransferEngine`` that are used here."""

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int: ...
    def get_rpc_port(self) -> int: ...
    def register_memory(self, address: int, length: int, /) -> int: ...
    def batch_register_memory(self, addresses: list[int], lengths: list[int], /) -> int: ...
    def unregister_memory(self, address: int, /) -> int: ...
    def batch_transfer_async_read(
        self, session: str, local: list[int], remote: list[int], lengths: list[int], /
    ) -> int: ...
    def transfer_check_status(self, batch: int, /) -> int: ...


class Module(Protocol):
    """``mooncake.engine``."""

    SUPPORT_INTRA_NVLINK: bool
    SUPPORT_CUDA: bool

    def TransferEngine(self) -> Native: ...  # noqa: N802 - the library's name


@cache
def module() -> Module:
    """The library; raises ImportError where it, or a system library under it, is missing."""
    return cast(Module, import_module("mooncake.engine"))


def obstacle() -> str:
    """Why the library cannot be used here; empty if it can."""
    try:
        found = module()
    except ImportError as error:
        return f"{error}; {INSTALL}"
    return "" if hasattr(found, "TransferEngine") else f"mooncake.engine has no TransferEngine; {INSTALL}"


def version() -> str:
    """Name and version of the variant that is installed."""
    for name in _VARIANTS:
        with suppress(PackageNotFoundError):
            return f"{name} {distribution_version(name)}"
    return "mooncake of unknown version"


def routes(device: str) -> tuple[Route, ...]:
    """What can reach memory of ``device`` from here, best first."""
    if not device.startswith("cuda"):
        return ("tcp",)
    found: list[Route] = []
    if getattr(module(), "SUPPORT_INTRA_NVLINK", False):
        found.append("nvlink")
    if getattr(module(), "SUPPORT_CUDA", False) and adapters():
        found.append("rdma")
    return tuple(found)


def adapters() -> Sequence[str]:
    """Names of the RDMA adapters of this machine."""
    try:
        return sorted(os.listdir(_ADAPTERS))
    except OSError:
        return ()


class Engine:
    """One engine: it listens on two ports, on all addresses, until :meth:`close`.

    Starting one takes 1 to 25 ms, and the interpreter stands still meanwhile.

    Args:
        host: the IPv4 address that peers reach it at.
        wanted: the route to set it up for.
        device: where the memory is that it will move.

    Raises:
        TransportError: it does not start, or has become something else than ``wanted``.
    """

    def __init__(self, host: str, wanted: Route, device: str) -> None:
        with variables({**_ALWAYS, **_ROUTES[wanted]}), hushed(), current(device):
            before = set(_listening())
            self._native = module().TransferEngine()
            code = self._native.initialize(host, "P2PHANDSHAKE", "tcp" if wanted == "tcp" else "rdma", "")
            if code != 0:
                raise TransportError(f"the transfer engine does not start on {host}: {code}", reason="failed")
            self._port = self._native.get_rpc_port()
            self.route = self._found(set(_listening()) - before)
        self.session = f"{host}:{self._port}"
        self._open = True
        self._registered: set[tuple[int, int]] = set()
        if self.route != wanted:
            self.close()
            raise TransportError(
                f"the transfer engine took {self.route} where {wanted} was wanted",
                reason="unsupported",
                advice="look at the MC_ variables in the environment",
            )

    def _found(self, opened: set[int]) -> Route:
        """The route, from evidence: only TCP listens for data, only NVLink refuses memory of the host."""
        if opened - {self._port}:
            return "tcp"
        scratch = ctypes.create_string_buffer(64)
        if self._native.register_memory(ctypes.addressof(scratch), len(scratch)) != 0:
            return "nvlink" if getattr(module(), "SUPPORT_INTRA_NVLINK", False) else "unknown"
        self._native.unregister_memory(ctypes.addressof(scratch))
        return "rdma" if adapters() else "unknown"

    def register(self, regions: Sequence[Region]) -> None:
        """Make memory known to the library, each piece once. Raises TransportError if it is not taken."""
        regions = [each for each in regions if (each.address, each.length) not in self._registered]
        if not regions:
            return
        with hushed(), current(regions[0].device):
            addresses, lengths = [each.address for each in regions], [each.length for each in regions]
            code = self._native.batch_register_memory(addresses, lengths)
        if code != 0:
            raise TransportError(
                f"the transfer engine does not register {sum(lengths)} bytes of {regions[0].device}: {code}",
                reason="unsupported",
                advice="device memory must come from cudaMalloc, not from expandable segments",
            )
        self._registered.update(zip(addresses, lengths, strict=True))

    def read(self, session: str, local: int, remote: int, length: int) -> int:
        """Begin to read; returns a number to ask :meth:`status` with, or 0 if nothing was begun.

        The first read of a session blocks while it is opened.
        """
        return self._native.batch_transfer_async_read(session, [local], [remote], [length])

    def status(self, read: int) -> int:
        """:data:`DONE` or :data:`FAILED`, then the number is spent; anything else: bytes may still arrive."""
        return self._native.transfer_check_status(read)

    def close(self) -> None:
        """End the engine, its registrations and mappings; idempotent. Nothing may be in flight. Blocks for a moment."""
        if not self._open:
            return
        self._open = False
        with suppress(OSError):
            _hurry(self._port)
        with hushed():
            del self._native


# ---------------------------------------------------------------------------- its listening sockets


def _listening() -> Iterator[int]:
    """Ports at which this process listens."""
    for sock in _listeners():
        yield sock.getsockname()[1]


def _listeners() -> Iterator[socket.socket]:
    """Copies of the listening sockets of this process, each closed when the next one is asked for."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as sock:
                internet = sock.family in (socket.AF_INET, socket.AF_INET6)
                if internet and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    yield sock


def _hurry(port: int) -> None:
    """Make the engine's listener look often whether it should end.

    It waits for callers a second at a time, and the destructor waits for it without letting other threads of the
    interpreter run. So its wait is made short, and one caller that says nothing ends the wait that it is in.
    """
    for sock in _listeners():
        if sock.getsockname()[1] == port:
            wait = struct.pack("ll", 0, int(_CLOSING_SECONDS * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    deadline = time.monotonic() + _POKE_SECONDS
    with socket.create_connection(("127.0.0.1", port), _POKE_SECONDS) as caller:
        caller.shutdown(socket.SHUT_WR)
        caller.settimeout(max(deadline - time.monotonic(), 0.1))
        caller.recv(1)
