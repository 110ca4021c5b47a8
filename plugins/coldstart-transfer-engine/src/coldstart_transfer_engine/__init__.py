"""A coldstart transport over Mooncake's TransferEngine: the entry point ``transfer-engine``.

Decides whether it can run here, and for which memory. The transport is in ``transport.py``; then read
``joiner.py`` and ``reads.py`` for a pull, ``lender.py`` for a grant, ``line.py`` for what the two
sides say to each other, ``library.py`` and ``surroundings.py`` for what the library needs.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from coldstart.errors import PluginUnavailable
from coldstart.ports import API, Availability, TransportSettings
from coldstart_transfer_engine import library
from coldstart_transfer_engine.line import NAME
from coldstart_transfer_engine.transport import TransferEngineTransport

__all__ = ["FACTORY", "Factory"]


class Factory:
    """Opens :class:`coldstart_transfer_engine.transport.TransferEngineTransport`."""

    api: int = API

    def probe(self) -> Availability:
        """Whether the library and the system libraries under it are here; it is loaded to find out."""
        obstacle = library.obstacle()
        return Availability(usable=not obstacle, reason=obstacle or library.version())

    def open(self, settings: TransportSettings) -> TransferEngineTransport:
        """A transport for memory of ``settings.device``. No engine is started yet.

        Blocks while the host's name is looked up: call it in a thread.

        Raises:
            PluginUnavailable: the library has no way to such memory, or the host has no IPv4 address for peers.
        """
        routes = library.routes(settings.device)
        if not routes:
            raise PluginUnavailable(
                f"{NAME} ({library.version()}) cannot reach {settings.device} memory",
                advice="install mooncake-transfer-engine-cuda13 in place of the variant that is here",
            )
        return TransferEngineTransport(settings, _address(settings.host), routes)


def _address(host: str) -> str:
    """The IPv4 address of ``host`` that peers can call."""
    try:
        found = socket.getaddrinfo(host, 0, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        address = ipaddress.IPv4Address(found)
    except (OSError, ValueError) as error:
        raise PluginUnavailable(
            f"{NAME} finds no IPv4 address for the host {host!r}: {error}", advice="it does not do IPv6"
        ) from error
    if address.is_unspecified or address.is_multicast:
        raise PluginUnavailable(
            f"{NAME} cannot offer {host!r} to peers",
            advice="set the host to one address of this machine that peers can reach",
        )
    return str(address)


FACTORY: Final = Factory()
