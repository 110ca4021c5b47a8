"""Which transports a worker uses, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import get_args

import anyio
import pytest
from msgspec.structs import replace

import coldstart
from coldstart import registry, wiring
from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.config import Settings
from coldstart.errors import PluginUnavailable
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
        found = await wiring._transports(resources, settings, None, "cpu", Membership(None, "w", "cs"))
        return tuple(found.transports)


@pytest.mark.usefixtures("installed")
async def test_the_quicker_kind_of_link_comes_first_and_ours_among_equals() -> None:
    assert await opened(Settings()) == ("warp", "wire", "shelf", "tcp", "aardvark")


@pytest.mark.usefixtures("installed")
async def test_the_operators_order_stands() -> None:
    assert await opened(Settings(transports="tcp,warp")) == ("tcp", "warp")


def test_every_kind_of_link_has_its_place() -> None:
    assert set(wiring.LINKS) == set(get_args(Link))


def none_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transport is for another device, one cannot run here, one breaks."""

    class Far(Factory):
        def open(self, settings: TransportSettings) -> LoopbackTransport:
            opened = super().open(settings)
            opened.traits = replace(opened.traits, device_kinds=("cuda",))  # type: ignore[misc]
            return opened

    class Broken(Factory):
        def open(self, settings: TransportSettings) -> LoopbackTransport:
            raise OSError("no such interface")

    def transport(name: str) -> Factory:
        match name:
            case "far":
                return Far(name, "nvlink")
            case "broken":
                return Broken(name, "tcp")
            case _:
                raise PluginUnavailable(f"transport {name!r} cannot run here: no library")

    monkeypatch.setattr(registry, "names", lambda kind: ("broken", "far", "missing"))
    monkeypatch.setattr(registry, "transport", transport)


async def test_without_a_transport_for_its_device_a_worker_says_why_and_reads_storage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_checkpoint: Callable[..., Path]
) -> None:
    where, store = write_checkpoint(tmp_path / "m", mib=1), MemoryStore()
    settings = Settings(cache="none")
    async with coldstart.join(where, skeleton="tensors", bus=MemoryBus(store), settings=settings, worker="a") as lends:
        await lends.ready()
        none_usable(monkeypatch)
        began = anyio.current_time()
        async with coldstart.join(
            where, skeleton="tensors", bus=MemoryBus(store), settings=settings, worker="b"
        ) as alone:
            report = alone.report
        assert report.path == "storage"
        assert report.detours == (
            "no transport moves cpu memory between peers here (broken: does not open: OSError: no such interface; "
            "far: serves cuda memory; missing: transport 'missing' cannot run here: no library); "
            "see 'coldstart doctor'",
        )
        assert anyio.current_time() - began < settings.patience, "no patience is spent on peers"
