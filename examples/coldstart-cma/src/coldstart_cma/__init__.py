"""A coldstart transport by Linux cross memory attach: the entry point ``cma``.

Decides where it may be used: on Linux, where one process may read another's memory, and by
workers whose peers are all on the same host. How bytes move is in ``transport.py``, what a
source publishes about a grant in ``board.py``, the system call in ``native.py``, who is who on
this host in ``host.py``.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from coldstart.errors import PluginUnavailable
from coldstart.ports import API, Availability, TransportSettings
from coldstart_cma import host
from coldstart_cma.transport import CmaTransport

__all__ = ["FACTORY", "Factory"]


class Factory:
    """Opens :class:`coldstart_cma.transport.CmaTransport`."""

    api: int = API

    def probe(self) -> Availability:
        """Whether this process may read its neighbours' memory; it reads eight bytes of its own to find out."""
        obstacle = host.obstacle()
        return Availability(usable=not obstacle, reason=obstacle or "process_vm_readv")

    def open(self, settings: TransportSettings) -> CmaTransport:
        """A transport for a worker that peers reach at a loopback address.

        Raises:
            PluginUnavailable: peers reach this worker at another address, so some of them may be
                on other hosts, where a ticket of ours is worth nothing.
        """
        if not _loopback(settings.host):
            raise PluginUnavailable(
                f"cma moves bytes inside one host, and peers reach this worker at {settings.host}",
                advice="set the host to 127.0.0.1 where all workers are on this one, or leave cma out",
            )
        return CmaTransport(settings)


def _loopback(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


FACTORY: Final = Factory()
