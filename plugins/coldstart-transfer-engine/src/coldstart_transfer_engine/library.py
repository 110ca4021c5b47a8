"""Mooncake's TransferEngine as this package uses it: one engine, its registrations, single reads.

Decides what the library's numbers mean, which route an engine really took, and how an engine ends
without stopping the interpreter. It must not know grants, tickets or layouts. Settings reach the
library through ``surroundings.py``, its sockets are handled in ``sockets.py``; what is read is
decided in ``reads.py``.

The ``protocol`` that ``initialize`` takes does not choose the transport: the environment and what is found on
the machine do. So the route is told from what the engine has become.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from coldstart.errors import TransportError
from coldstart.ports import Region
from coldstart_transfer_engine import sockets
from coldstart_transfer_engine.surroundings import current, hushed, variables

Route = Literal["tcp", "nvlink", "rdma", "unknown"]

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

_ALWAYS: Final = {"MC_LOG_LEVEL": "ERROR"}
_ROUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "tcp": {"MC_FORCE_TCP": "1"},
    "nvlink": {"MC_INTRANODE_NVLINK": "true"},
    "rdma": {},
}
_ADAPTERS: Final = Path("/sys/class/infiniband")

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

    def TransferEngine(self) -> Native: ...


@cache
def module() -> Module:
    """The library; raises ImportError where it, or a system library under it, is missing.

    It reads some of its settings, that of its log among them, while it is loaded, and never again.
    """
    with variables(_ALWAYS), hushed():
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
            before = set(sockets.listening())
            self._native = module().TransferEngine()
            code = self._native.initialize(host, "P2PHANDSHAKE", "tcp" if wanted == "tcp" else "rdma", "")
            if code != 0:
                raise TransportError(f"the transfer engine does not start on {host}: {code}", reason="failed")
            self._port = self._native.get_rpc_port()
            data_ports = set(sockets.listening()) - before - {self._port}
            self.route = self._found(bool(data_ports))
        self.session = f"{host}:{self._port}"
        self.data_port = max(data_ports, default=0)
        """Where TCP serves bytes; 0 for other routes."""
        self._open, self._device = True, device
        self._registered: set[tuple[int, int]] = set()
        if self.route != wanted:
            self.close()
            raise TransportError(
                f"the transfer engine took {self.route} where {wanted} was wanted",
                reason="unsupported",
                advice="look at the MC_ variables in the environment",
            )

    def _found(self, listens: bool) -> Route:
        """The route, from evidence: only NVLink refuses memory of the host, and only TCP listens for data."""
        scratch = ctypes.create_string_buffer(64)
        if self._native.register_memory(ctypes.addressof(scratch), len(scratch)) != 0:
            return "nvlink" if getattr(module(), "SUPPORT_INTRA_NVLINK", False) else "unknown"
        self._native.unregister_memory(ctypes.addressof(scratch))
        return "tcp" if listens else "rdma" if adapters() else "unknown"

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

    def unregister(self, region: Region) -> None:
        """Take back what :meth:`register` has made known; nothing of it may be in flight."""
        with hushed(), current(region.device):
            self._native.unregister_memory(region.address)
        self._registered.discard((region.address, region.length))

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
            sockets.hurry(self._port)
        with hushed(), current(self._device):
            del self._native
