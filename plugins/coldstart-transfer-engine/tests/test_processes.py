"""Two real processes: the bytes are right, either may die or stop at any moment, and an abandoned pull is quiet."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import pytest
from anyio.abc import Process
from coldstart_transfer_engine import FACTORY, transport

from coldstart.errors import TransportError
from coldstart.layout import Span, merged
from coldstart.ports import Transport, TransportSettings
from coldstart.testing.late_writes import Pulling
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, grant, whole
from coldstart.testing.transport_contract import SLOW

pytestmark = pytest.mark.processes

SIZES = (64 * MIB + 13, 1, 3000)
LAYOUT = layout_of(*SIZES)

SOURCE = """
import anyio, sys
from coldstart_transfer_engine import FACTORY
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import grant
async def main(rate, *sizes):
    source = FACTORY.open(TransportSettings(lend_bytes_per_second=float(rate)))
    print((await source.offer(grant("t"), BytesMemory(layout_of(*map(int, sizes)), seed=1))).hex(), flush=True)
    await anyio.sleep_forever()
anyio.run(main, *sys.argv[1:])
"""

JOINER = """
import anyio, sys
from coldstart_transfer_engine import FACTORY
from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import whole
async def main(ticket, *sizes):
    layout = layout_of(*map(int, sizes))
    landed = lambda span: print("landed", flush=True)
    try:
        joiner = FACTORY.open(TransportSettings())
        await joiner.pull(bytes.fromhex(ticket), [whole(layout)], BytesMemory(layout), landed)
    except TransportError as error:
        print("reason:", error.reason, flush=True)
    await joiner.aclose()
anyio.run(main, *sys.argv[1:])
"""


@asynccontextmanager
async def process(script: str, *words: object, environment: Mapping[str, str]) -> AsyncIterator[Process]:
    """A process that runs ``script`` until the end of the block, at the latest."""
    command = [sys.executable, "-c", script, *map(str, words)]
    async with await anyio.open_process(command, stderr=None, env=environment) as started:
        try:
            yield started
        finally:
            for blow in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    started.send_signal(blow)


class Listener:
    """What a process has said so far."""

    def __init__(self, process: Process) -> None:
        self.said = ""
        self._process = process

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for words in self._process.stdout:
            self.said += words.decode()

    async def until(self, words: str, seconds: float = 10.0) -> None:
        await eventually(lambda: words in self.said, seconds)


@asynccontextmanager
async def source_process(environment: Mapping[str, str], rate: float = 0.0) -> AsyncIterator[tuple[Process, bytes]]:
    async with process(SOURCE, rate, *SIZES, environment=environment) as source:
        listener = Listener(source)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.listen)
            await listener.until("\n", 20.0)
            group.cancel_scope.cancel()
        yield source, bytes.fromhex(listener.said.strip())


async def test_the_bytes_are_the_other_process_s(installed: Mapping[str, str]) -> None:
    joiner, target, landed = FACTORY.open(TransportSettings()), BytesMemory(LAYOUT, fill=0xAA), Landings()
    assert joiner.route == ""
    async with source_process(installed) as (_, ticket):
        with anyio.fail_after(20):
            await joiner.pull(ticket, [whole(LAYOUT)], target, landed)
    assert target.storages == BytesMemory(LAYOUT, seed=1).storages
    assert merged(landed.spans) == (whole(LAYOUT),)
    assert joiner.route == "tcp"
    await joiner.aclose()


async def test_a_source_that_is_killed_ends_the_pull(installed: Mapping[str, str]) -> None:
    joiner, target, landed = FACTORY.open(TransportSettings()), BytesMemory(LAYOUT, fill=0xAA), Landings()
    async with source_process(installed, SLOW) as (source, ticket):
        pulling = Pulling(joiner, ticket, target, landed)
        await landed.first()
        source.kill()
        with pytest.raises(TransportError, match="has ended") as caught:
            await pulling.returns_within(5)
    assert caught.value.reason == "closed"
    before = bytes(target.storages[0])
    with pytest.raises(TransportError) as again:
        await joiner.pull(ticket, [whole(LAYOUT)], target, landed)
    assert again.value.reason == "unreachable"
    assert target.storages[0] == before
    await joiner.aclose()


@pytest.mark.parametrize("cancelled", ["by anyio", "by asyncio"])
async def test_a_pull_from_a_stopped_source_is_quiet_soon_after_it_is_cancelled(
    installed: Mapping[str, str], cancelled: Literal["by anyio", "by asyncio"]
) -> None:
    """The library itself would wait for half a minute; and once the source goes on, nothing of it arrives."""
    joiner, target, landed = FACTORY.open(TransportSettings()), BytesMemory(LAYOUT, fill=0xAA), Landings()
    async with source_process(installed) as (source, ticket):
        async with stopped_in_mid_read(source, joiner, ticket, target, landed) as pulling:
            pulling.cancel(cancelled)
            assert await pulling.returns_within(2), "the pull waits for its source"
        before, count = bytes(target.storages[0]), len(landed.spans)
        assert b"\xaa" * MIB in before, "the pull was not caught half-way"
        source.send_signal(signal.SIGCONT)
        await joiner.pull(ticket, [Span(0, MIB)], BytesMemory(LAYOUT), Landings())
        assert target.storages[0] == before, "written after the pull had returned"
        assert len(landed.spans) == count
    await joiner.aclose()


async def test_a_stopped_source_is_given_up(installed: Mapping[str, str]) -> None:
    joiner, target, landed = FACTORY.open(TransportSettings(io_seconds=1.0)), BytesMemory(LAYOUT), Landings()
    async with (
        source_process(installed) as (source, ticket),
        stopped_in_mid_read(source, joiner, ticket, target, landed) as pulling,
    ):
        with pytest.raises(TransportError, match="no read of the transfer engine has ended for 1 s") as caught:
            await pulling.returns_within(5)
        assert caught.value.reason == "timeout"
    await joiner.aclose()


@asynccontextmanager
async def stopped_in_mid_read(
    source: Process, joiner: Transport, ticket: bytes, target: BytesMemory, landed: Landings
) -> AsyncIterator[Pulling]:
    """A pull with reads in flight at a source that has stopped: it stops in the call that tells of the first bytes."""

    def first(span: Span) -> None:
        if not landed.spans:
            source.send_signal(signal.SIGSTOP)
        landed(span)

    pulling = Pulling(joiner, ticket, target, first)
    await landed.first()
    yield pulling


@asynccontextmanager
async def lending_to_a_process(
    environment: Mapping[str, str],
) -> AsyncIterator[tuple[Transport, Process, Listener]]:
    """A slow source in this process, and a joiner elsewhere that reads it."""
    source = FACTORY.open(TransportSettings(lend_bytes_per_second=SLOW))
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    try:
        async with process(JOINER, ticket.hex(), *SIZES, environment=environment) as joiner:
            listener = Listener(joiner)
            async with anyio.create_task_group() as group:
                group.start_soon(listener.listen)
                await listener.until("landed", 20.0)
                yield source, joiner, listener
                group.cancel_scope.cancel()
    finally:
        await source.aclose()


async def test_a_joiner_elsewhere_is_told_of_the_end_of_its_grant(installed: Mapping[str, str]) -> None:
    async with lending_to_a_process(installed) as (source, _, listener):
        assert source.reading("t")
        with anyio.fail_after(5):
            await source.revoke("t")
        assert not source.reading("t")
        await listener.until("reason: revoked")


async def test_a_joiner_that_is_killed_reads_no_more(installed: Mapping[str, str]) -> None:
    async with lending_to_a_process(installed) as (source, joiner, _):
        joiner.kill()
        await eventually(lambda: not source.reading("t"))
        with anyio.fail_after(1):
            await source.revoke("t")


async def test_revoking_says_so_when_a_joiner_has_stopped(
    installed: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be inside a read, so nobody can say that the memory is quiet; once it goes on, it is."""
    monkeypatch.setattr(transport, "QUIET_SECONDS", 0.2)
    async with lending_to_a_process(installed) as (source, joiner, listener):
        joiner.send_signal(signal.SIGSTOP)
        with pytest.raises(TransportError, match="still reads memory") as caught:
            await source.revoke("t")
        assert caught.value.reason == "timeout"
        assert source.reading("t")
        joiner.send_signal(signal.SIGCONT)
        await listener.until("reason: revoked")
        await eventually(lambda: not source.reading("t"))
        await source.revoke("t")
