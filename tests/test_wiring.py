"""Which transports a worker uses, and in which order."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import get_args

import pytest

from coldstart import registry, wiring
from coldstart.config import Settings
from coldstart.membership import Membership
from coldstart.ports import API, Availability, Link, Traits, TransportSettings
from coldstart.testing.transports import Loopback, LoopbackTransport


class Factory:
    """A transport of one kind of link."""

    api = API

    def __init__(self, name: str, link: Link) -> None:
        self.name, self.link = name, link

    def probe(self) -> Availability:
        return Availability(True)

    def open(self, settings: TransportSettings) -> LoopbackTransport:
        opened = LoopbackTransport(Loopback(), name=self.name)
        opened.traits = Traits(one_sided=True, needs_peer=True, abortable=True, device_kinds=("cpu",), link=self.link)  # type: ignore[misc]
        return opened


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    links: dict[str, Link] = {"aardvark": "tcp", "shelf": "memory", "tcp": "tcp", "warp": "nvlink", "wire": "rdma"}
    monkeypatch.setattr(registry, "names", lambda kind: tuple(sorted(links)))
    monkeypatch.setattr(registry, "transport", lambda name: Factory(name, links[name]))


async def opened(settings: Settings) -> tuple[str, ...]:
    async with AsyncExitStack() as resources:
        return tuple(await wiring._transports(resources, settings, None, "cpu", Membership(None, "w", "cs")))


@pytest.mark.usefixtures("installed")
async def test_the_quicker_kind_of_link_comes_first_and_ours_among_equals() -> None:
    assert await opened(Settings()) == ("warp", "wire", "shelf", "tcp", "aardvark")


@pytest.mark.usefixtures("installed")
async def test_the_operators_order_stands() -> None:
    assert await opened(Settings(transports="tcp,warp")) == ("tcp", "warp")


def test_every_kind_of_link_has_its_place() -> None:
    assert set(wiring.LINKS) == set(get_args(Link))
