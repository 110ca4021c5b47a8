"""A library that hangs in ``abort``: nobody waits for it for ever, and nothing claims to be quiet."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest
from coldstart_nccl import GLOO, hush, transport
from coldstart_nccl.communicator import RECEIVER, SENDER
from coldstart_nccl.gloo import GlooBackend, GlooPair
from coldstart_nccl.transport import CollectiveTransport

from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, grant, whole

LAYOUT = layout_of(32 * MIB)
HANGS = 0.3


class Hanging(GlooBackend):
    """Gloo whose pairs of one rank do not come back from ``abort`` until the test ends."""

    def __init__(self, rank: int) -> None:
        self.let_go = threading.Event()
        self._rank = rank

    def connect(self, rank: int, invitation: bytes, device: str, *, largest: int, ctas: int) -> GlooPair:
        pair = super().connect(rank, invitation, device, largest=largest, ctas=ctas)
        if rank == self._rank:
            quiet = pair.abort

            def abort() -> None:
                self.let_go.wait(30)
                quiet()

            pair.abort = abort  # type: ignore[method-assign]
        return pair


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hush, "HANG_SECONDS", HANGS)
    monkeypatch.setattr(transport, "CLOSE_SECONDS", HANGS)
    yield
    hush._spoilt.clear()


def test_a_device_without_a_number_is_spoilt_with_any_of_its_kind() -> None:
    hush.spoil("cuda:1")
    assert [hush.spoilt(name) for name in ("cuda:1", "cuda", "cuda:0", "cuda:10", "cpu")] == [True, True] + [False] * 3


def opened(backend: GlooBackend) -> CollectiveTransport:
    settings = TransportSettings(lend_bytes_per_second=4 * MIB, io_seconds=5)
    return CollectiveTransport(backend, GLOO.open(settings).traits, settings)


async def test_a_cancelled_pull_comes_back_and_says_that_it_may_still_be_writing() -> None:
    backend = Hanging(RECEIVER)
    source, joiner = GLOO.open(TransportSettings(lend_bytes_per_second=4 * MIB)), opened(backend)
    landed = Landings()
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    assert joiner.traits.abortable
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(joiner.pull, ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), landed)
            await landed.first()
            group.cancel_scope.cancel()
    assert not joiner.traits.abortable
    with pytest.raises(TransportError, match="hung on cpu in this process") as caught:
        await joiner.pull(ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), landed)
    assert caught.value.reason == "spoilt"
    with pytest.raises(TransportError, match="hung on cpu"):
        await joiner.offer(grant("u"), BytesMemory(LAYOUT))
    with anyio.fail_after(3):
        await joiner.aclose()
        backend.let_go.set()
        await source.aclose()


async def test_a_pull_that_failed_does_not_come_back_before_it_is_cancelled() -> None:
    """Coming back would mean that nothing writes any more."""
    backend = Hanging(RECEIVER)
    source, joiner = GLOO.open(TransportSettings(lend_bytes_per_second=4 * MIB)), opened(backend)
    landed, returned = Landings(), anyio.Event()
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))

    async def pull() -> None:
        try:
            await joiner.pull(ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), landed)
        finally:
            returned.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            await landed.first()
            await source.aclose()
            await eventually(lambda: hush.spoilt("cpu"))
            await anyio.sleep(0.05)
            assert not returned.is_set()
            group.cancel_scope.cancel()
    assert not joiner.traits.abortable
    await joiner.aclose()
    backend.let_go.set()


async def test_closing_the_joiner_does_not_wait_for_it() -> None:
    backend = Hanging(RECEIVER)
    source, joiner = GLOO.open(TransportSettings(lend_bytes_per_second=4 * MIB)), opened(backend)
    landed = Landings()
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(joiner.pull, ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), landed)
            await landed.first()
            await joiner.aclose()
            group.cancel_scope.cancel()
    backend.let_go.set()
    await source.aclose()


async def test_revoking_says_that_memory_may_still_be_read() -> None:
    backend = Hanging(SENDER)
    source, joiner = opened(backend), GLOO.open(TransportSettings())
    landed = Landings()
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))

    async def pull() -> None:
        with pytest.raises(TransportError):
            await joiner.pull(ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), landed)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            await landed.first()
            with pytest.raises(TransportError, match="still reads memory") as caught:
                await source.revoke("t")
        assert caught.value.reason == "timeout"
        await eventually(lambda: hush.spoilt("cpu"))
        await source.aclose()
        await joiner.aclose()
    backend.let_go.set()
