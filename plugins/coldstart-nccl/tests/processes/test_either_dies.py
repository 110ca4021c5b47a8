"""Two real processes: the bytes are right, and either may be killed or stopped at any moment."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import pytest
from anyio.abc import Process
from coldstart_nccl import GLOO
from coldstart_nccl.transport import CollectiveTransport

from coldstart.errors import TransportError
from coldstart.layout import merged
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, grant, whole

pytestmark = pytest.mark.processes

SIZES = (64 * MIB + 13, 1, 3000)
LAYOUT = layout_of(*SIZES)
SLOW = 20.0 * MIB
IO_SECONDS = 2.0
SOON = 5.0
"""Seconds in which an end is noticed: the stall clock's, and some more."""

SOURCE = """
import anyio, sys
from coldstart_nccl import GLOO
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import grant
async def main(rate, io, *sizes):
    source = GLOO.open(TransportSettings(lend_bytes_per_second=float(rate), io_seconds=float(io)))
    print((await source.offer(grant("t"), BytesMemory(layout_of(*map(int, sizes)), seed=1))).hex(), flush=True)
    await anyio.sleep_forever()
anyio.run(main, *sys.argv[1:])
"""

JOINER = """
import anyio, sys
from coldstart_nccl import GLOO
from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import whole
async def main(ticket, io, *sizes):
    layout = layout_of(*map(int, sizes))
    landed = lambda span: print("landed", flush=True)
    try:
        joiner = GLOO.open(TransportSettings(io_seconds=float(io)))
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
    async with process(SOURCE, rate, IO_SECONDS, *SIZES, environment=environment) as source:
        assert source.stdout is not None
        yield source, bytes.fromhex((await source.stdout.receive()).decode())


class Pulling:
    """A pull here that is on its way from a source in another process."""

    def __init__(self, ticket: bytes) -> None:
        self.target, self.landed = BytesMemory(LAYOUT, fill=0xAA), Landings()
        self.failure: TransportError | None = None
        self.seconds = 0.0
        self._ticket = ticket

    async def run(self) -> None:
        joiner = GLOO.open(TransportSettings(io_seconds=IO_SECONDS))
        try:
            await joiner.pull(self._ticket, [whole(LAYOUT)], self.target, self.landed)
        except TransportError as error:
            self.failure = error
        finally:
            await joiner.aclose()


async def test_the_bytes_are_the_other_process_s(installed: Mapping[str, str]) -> None:
    async with source_process(installed) as (_, ticket):
        pulling = Pulling(ticket)
        with anyio.fail_after(20):
            await pulling.run()
    assert pulling.failure is None
    assert pulling.target.storages == BytesMemory(LAYOUT, seed=1).storages
    assert merged(pulling.landed.spans) == (whole(LAYOUT),)


@pytest.mark.parametrize(("blow", "reason"), [(signal.SIGKILL, "closed"), (signal.SIGSTOP, "timeout")])
async def test_a_source_that_is_struck_ends_the_pull(
    installed: Mapping[str, str], blow: signal.Signals, reason: str
) -> None:
    async with source_process(installed, SLOW) as (source, ticket):
        pulling = Pulling(ticket)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(pulling.run)
                await pulling.landed.first()
                source.send_signal(blow)
                began = time.monotonic()
        assert time.monotonic() - began < SOON
    assert pulling.failure is not None
    assert pulling.failure.reason == reason
    expected = BytesMemory(LAYOUT, seed=1)
    assert all(pulling.target.content(span) == expected.content(span) for span in pulling.landed.spans)


async def test_a_source_that_is_gone_before_the_first_byte(installed: Mapping[str, str]) -> None:
    async with source_process(installed) as (source, ticket):
        source.kill()
        await source.wait()
        pulling = Pulling(ticket)
        await pulling.run()
    assert pulling.failure is not None
    assert pulling.failure.reason == "unreachable"


@asynccontextmanager
async def lending(environment: Mapping[str, str]) -> AsyncIterator[tuple[CollectiveTransport, Process, list[str]]]:
    """A source here, and a joiner in another process that has landed something and has far to go."""
    source = GLOO.open(TransportSettings(lend_bytes_per_second=SLOW, io_seconds=IO_SECONDS))
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    said: list[str] = []

    async def listen(joiner: Process) -> None:
        assert joiner.stdout is not None
        async for words in joiner.stdout:
            said.append(words.decode())  # noqa: PERF401 - each as soon as it comes

    try:
        async with (
            process(JOINER, ticket.hex(), IO_SECONDS, *SIZES, environment=environment) as joiner,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listen, joiner)
            await eventually(lambda: any("landed" in words for words in said), 20)
            yield source, joiner, said
            group.cancel_scope.cancel()
    finally:
        with anyio.fail_after(SOON):
            await source.aclose()


async def test_a_joiner_elsewhere_is_told_of_the_end_of_its_grant(installed: Mapping[str, str]) -> None:
    async with lending(installed) as (source, _, said):
        assert source.reading("t")
        with anyio.fail_after(SOON):
            await source.revoke("t")
        assert not source.reading("t")
        await eventually(lambda: "reason: revoked" in "".join(said))


@pytest.mark.parametrize("then", ["revoke", "wait"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_joiner_that_is_struck_costs_the_source_nothing_lasting(
    installed: Mapping[str, str], blow: signal.Signals, then: Literal["revoke", "wait"]
) -> None:
    """Its pair is given up at once when asked for, else when its process is gone or nothing has moved for long."""
    async with lending(installed) as (source, joiner, _):
        joiner.send_signal(blow)
        if then == "revoke":
            with anyio.fail_after(1):
                await source.revoke("t")
        await eventually(lambda: not source.reading("t"), SOON)
        held = BytesMemory(layout_of(3000), seed=2)
        target = BytesMemory(held.layout)
        await source.pull(await source.offer(grant("u"), held), [whole(held.layout)], target, Landings())
        assert target.storages == held.storages
