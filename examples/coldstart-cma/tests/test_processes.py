"""Two real processes: the bytes are right, either may die or stop at any moment, and revoking means something."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import Process
from coldstart_cma import FACTORY, transport
from coldstart_cma.board import OpenBoard, decode_ticket

from coldstart.errors import TransportError
from coldstart.layout import Layout, merged
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import MIB, SLOW, Landings, eventually, grant, whole

pytestmark = pytest.mark.processes

SIZES = (64 * MIB + 13, 1, 3000)
LAYOUT = layout_of(*SIZES)

SOURCE = """
import anyio, sys
from coldstart_cma import FACTORY
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import grant
async def main(rate, *sizes):
    source = FACTORY.open(TransportSettings(lend_bytes_per_second=float(rate)))
    print((await source.offer(grant("t"), BytesMemory(layout_of(*map(int, sizes)), seed=1))).hex(), flush=True)
    await anyio.sleep_forever()
anyio.run(main, *sys.argv[1:])
"""

JOINER = """
import anyio, sys
from coldstart_cma import FACTORY
from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import whole
async def main(ticket, *sizes):
    layout = layout_of(*map(int, sizes))
    landed = lambda span: print("landed", flush=True)
    try:
        joiner = FACTORY.open(TransportSettings())
        await joiner.pull(bytes.fromhex(ticket), [whole(layout)], BytesMemory(layout), landed)
    except TransportError as error:
        print("reason:", error.reason, flush=True)
anyio.run(main, *sys.argv[1:])
"""


@asynccontextmanager
async def process(script: str, *words: object, environment: Mapping[str, str]) -> AsyncIterator[Process]:
    command = [sys.executable, "-c", script, *map(str, words)]
    async with await anyio.open_process(command, stderr=None, env=environment) as started:
        try:
            yield started
        finally:
            for blow in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    started.send_signal(blow)


@asynccontextmanager
async def source_process(environment: Mapping[str, str], rate: float = 0.0) -> AsyncIterator[tuple[Process, bytes]]:
    async with process(SOURCE, rate, *SIZES, environment=environment) as source:
        assert source.stdout is not None
        yield source, bytes.fromhex((await source.stdout.receive()).decode())


class Reader:
    """What a joiner process has said so far."""

    def __init__(self, process: Process) -> None:
        self.said = ""
        self._process = process

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for words in self._process.stdout:
            self.said += words.decode()

    async def until(self, words: str) -> None:
        await eventually(lambda: words in self.said)


async def pulled(ticket: bytes, layout: Layout = LAYOUT) -> tuple[BytesMemory, Landings]:
    joiner, target, landed = FACTORY.open(TransportSettings()), BytesMemory(layout, fill=0xAA), Landings()
    with anyio.fail_after(20):
        await joiner.pull(ticket, [whole(layout)], target, landed)
    return target, landed


async def test_the_bytes_are_the_other_process_s(installed: Mapping[str, str]) -> None:
    async with source_process(installed) as (_, ticket):
        target, landed = await pulled(ticket)
    assert target.storages == BytesMemory(LAYOUT, seed=1).storages
    assert merged(landed.spans) == (whole(LAYOUT),)


async def test_a_stopped_source_is_read_all_the_same(installed: Mapping[str, str]) -> None:
    """It does no work per byte, so it need not even run."""
    async with source_process(installed) as (source, ticket):
        source.send_signal(signal.SIGSTOP)
        target, _ = await pulled(ticket)
    assert target.storages == BytesMemory(LAYOUT, seed=1).storages


async def test_a_source_that_is_killed_ends_the_pull(installed: Mapping[str, str]) -> None:
    joiner, target, landed = FACTORY.open(TransportSettings()), BytesMemory(LAYOUT, fill=0xAA), Landings()
    failures: list[TransportError] = []
    async with source_process(installed, SLOW) as (source, ticket):

        async def pull() -> None:
            try:
                await joiner.pull(ticket, [whole(LAYOUT)], target, landed)
            except TransportError as error:
                failures.append(error)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(pull)
                await landed.first()
                source.kill()
    assert [failure.reason for failure in failures] == ["closed"]
    expected = BytesMemory(LAYOUT, seed=1)
    assert all(target.content(span) == expected.content(span) for span in landed.spans), "landed, but not the source's"


async def test_a_source_that_has_ended_is_found_out_before_the_first_byte(installed: Mapping[str, str]) -> None:
    async with source_process(installed) as (source, ticket):
        source.kill()
        await source.wait()
        with pytest.raises(TransportError, match="has ended") as caught:
            await pulled(ticket)
    assert caught.value.reason == "closed"


@asynccontextmanager
async def lending_to_a_process(
    environment: Mapping[str, str],
) -> AsyncIterator[tuple[transport.CmaTransport, Process, Reader]]:
    """A source here, and a joiner in another process that has landed something and has far to go."""
    source = FACTORY.open(TransportSettings(lend_bytes_per_second=SLOW / 4))
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    try:
        async with process(JOINER, ticket.hex(), *SIZES, environment=environment) as joiner:
            reader = Reader(joiner)
            async with anyio.create_task_group() as group:
                group.start_soon(reader.listen)
                await reader.until("landed")
                yield source, joiner, reader
                group.cancel_scope.cancel()
    finally:
        await source.aclose()


async def test_a_joiner_elsewhere_is_told_of_the_end_of_its_grant(installed: Mapping[str, str]) -> None:
    async with lending_to_a_process(installed) as (source, _, reader):
        assert source.reading("t")
        with anyio.fail_after(5):
            await source.revoke("t")
        assert not source.reading("t")
        await reader.until("reason: revoked")


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
    monkeypatch.setattr(transport, "_QUIET_SECONDS", 0.2)
    async with lending_to_a_process(installed) as (source, joiner, reader):
        joiner.send_signal(signal.SIGSTOP)
        with pytest.raises(TransportError, match="still reads memory") as caught:
            await source.revoke("t")
        assert caught.value.reason == "timeout"
        assert source.reading("t")
        joiner.send_signal(signal.SIGCONT)
        await reader.until("reason: revoked")
        await eventually(lambda: not source.reading("t"))
        await source.revoke("t")


async def test_a_fork_of_the_joiner_does_not_count_as_a_reader() -> None:
    """It has a copy of the board's descriptor, and would keep the lock for as long as it lives."""
    source = FACTORY.open(TransportSettings())
    board = OpenBoard(decode_ticket(await source.offer(grant("t"), BytesMemory(layout_of(10)))))
    board.open()
    assert source.reading("t")
    inherited = [int(name) for name in os.listdir("/proc/self/fd") if is_board(name)]
    async with await anyio.open_process(["sleep", "60"], pass_fds=inherited) as fork:
        board.close()
        assert not source.reading("t")
        fork.kill()
    await source.aclose()


def is_board(descriptor: str) -> bool:
    try:
        return "coldstart-cma" in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
