"""Two processes on two GPUs over NVLink: the source on the first one, the joiner, this process, on the second.

    pytest plugins/coldstart-transfer-engine/tests/gpu -m gpu -s

Needs ``mooncake-transfer-engine-cuda13`` and ``libibverbs1 libmlx5 libnuma1 libcurl4``. What was measured is
printed, so that a failure comes with versions, routes and rates.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress

import anyio
import anyio.to_thread
import pytest
import torch
from anyio.abc import Process
from coldstart_transfer_engine import FACTORY, library
from coldstart_transfer_engine.transport import TransferEngineTransport

from coldstart.errors import TransportError
from coldstart.layout import Layout, Span, merged
from coldstart.ports import Region, TransportSettings
from coldstart.testing.late_writes import Pulling
from coldstart.testing.memories import layout_of
from coldstart.testing.transfers import Landings, whole

GIB = 1 << 30
NBYTES = 8 * GIB + 12_345
LAYOUT = layout_of(NBYTES)
HERE, THERE = "cuda:1", "cuda:0"
CAP = 2e9
"""Bytes per second of a source that is to be caught in the middle: the whole would take four seconds."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices on this machine"),
    pytest.mark.timeout(180),
]

SOURCE = """
import anyio, sys, torch
from coldstart_transfer_engine import FACTORY
from coldstart.ports import Region, TransportSettings
from coldstart.testing.memories import layout_of
from coldstart.testing.transfers import grant
device, nbytes, cap = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
class Held:
    layout, device = layout_of(nbytes), device
    flat = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device,
                         generator=torch.Generator(device).manual_seed(7))
    def regions(self, span):
        return [Region(self.device, self.flat.data_ptr() + span.offset, span.length, span.offset)]
async def main():
    torch.cuda.synchronize(device)
    source = FACTORY.open(TransportSettings(device=device, lend_bytes_per_second=cap))
    held = Held()
    await source.prepare(held)
    print((await source.offer(grant("t", seconds=600.0), held)).hex(), flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    await source.aclose()
anyio.run(main)
"""


class DeviceMemory:
    """``ports.Memory`` of one tensor on a GPU, as far as a transport by address needs it."""

    def __init__(self, layout: Layout, device: str, fill: int = 0xAA) -> None:
        self.layout, self.device = layout, device
        self.flat = torch.full((layout.nbytes,), fill, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)

    def regions(self, span: Span) -> list[Region]:
        return [Region(self.device, self.flat.data_ptr() + span.offset, span.length, span.offset)]

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        raise AssertionError("bytes of a device were taken through the host")

    writing = reading


@pytest.fixture(autouse=True)
def _variant() -> None:
    if "nvlink" not in library.routes(HERE):
        pytest.skip(f"{library.version()} is built without NVLink")
    print(
        f"\n{library.version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"python {sys.version.split()[0]}, {torch.cuda.get_device_name(HERE)}, adapters: {list(library.adapters())}, "
        f"peer access: {torch.cuda.can_device_access_peer(1, 0)}"
    )


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    """What the source holds, made here."""
    generator = torch.Generator(HERE).manual_seed(7)
    return torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, device=HERE, generator=generator)


@asynccontextmanager
async def source_process(environment: Mapping[str, str], cap: float = 0.0) -> AsyncIterator[tuple[Process, bytes]]:
    """A source on the other GPU, and the ticket for all it has."""
    command = [sys.executable, "-c", SOURCE, THERE, str(NBYTES), str(cap)]
    async with await anyio.open_process(command, stderr=None, env=environment) as source:
        try:
            said = b""
            assert source.stdout is not None
            with anyio.fail_after(90):
                while not said.endswith(b"\n"):
                    said += await source.stdout.receive()
            yield source, bytes.fromhex(said.decode())
        finally:
            for blow in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    source.send_signal(blow)


@asynccontextmanager
async def joiner_here() -> AsyncIterator[TransferEngineTransport]:
    joiner = FACTORY.open(TransportSettings(device=HERE))
    try:
        yield joiner
    finally:
        await joiner.aclose()


def report(joiner: TransferEngineTransport, landed: Landings, began: float) -> None:
    nbytes, seconds = sum(span.length for span in landed.spans), time.perf_counter() - began
    print(f"{joiner.route}: {nbytes / 1e9:.2f} GB in {seconds * 1e3:.1f} ms, {nbytes / seconds / 1e9:.1f} GB/s, "
          f"{len(landed.spans)} landings")  # fmt: skip


def assert_right(target: DeviceMemory, expected: torch.Tensor, spans: list[Span]) -> None:
    """The landed ranges are the source's bytes."""
    torch.cuda.synchronize(HERE)
    wrong = [
        span for span in merged(spans)
        if not torch.equal(target.flat[span.offset : min(span.end, NBYTES)], expected[span.offset : span.end])
    ]  # fmt: skip
    assert not wrong, f"landed, but not the source's bytes: {wrong}"


async def test_all_bytes_arrive_over_nvlink(installed: Mapping[str, str], expected: torch.Tensor) -> None:
    async with source_process(installed) as (_, ticket), joiner_here() as joiner:
        target = DeviceMemory(LAYOUT, HERE)
        for number in range(4):
            target.flat.fill_(0xAA)
            torch.cuda.synchronize(HERE)
            if number == 1:
                began = time.perf_counter()
                await joiner.prepare(target)
                print(f"prepared in {(time.perf_counter() - began) * 1e3:.1f} ms")
            landed, began = Landings(), time.perf_counter()
            await joiner.pull(ticket, [whole(LAYOUT)], target, landed)
            report(joiner, landed, began)
            assert joiner.route == "nvlink"
            assert merged(landed.spans) == (whole(LAYOUT),)
            assert_right(target, expected, landed.spans)


async def test_only_what_was_asked_for_is_written(installed: Mapping[str, str], expected: torch.Tensor) -> None:
    spans = [Span(1, 3), Span(GIB - 1, 257), Span(3 * GIB + 5, GIB), Span(NBYTES - 1, 1)]
    async with source_process(installed) as (_, ticket), joiner_here() as joiner:
        target, landed = DeviceMemory(LAYOUT, HERE), Landings()
        await joiner.pull(ticket, spans, target, landed)
        assert merged(landed.spans) == merged(spans)
        assert_right(target, expected, landed.spans)
        at = 0
        for span in spans:
            assert bool((target.flat[at : span.offset] == 0xAA).all()), f"written between {at} and {span.offset}"
            at = span.end


async def test_a_killed_source_ends_the_pull_although_its_memory_can_still_be_read(
    installed: Mapping[str, str], expected: torch.Tensor
) -> None:
    """A mapping outlives its owner, so the library goes on saying that reads succeed."""
    async with source_process(installed, CAP) as (source, ticket), joiner_here() as joiner:
        target, landed = DeviceMemory(LAYOUT, HERE), Landings()
        pulling = Pulling(joiner, ticket, target, landed)
        await landed.first()
        source.kill()
        began = time.perf_counter()
        with pytest.raises(TransportError) as caught:
            assert await pulling.returns_within(10), "nobody noticed that the source is dead"
        print(f"noticed {time.perf_counter() - began:.3f} s after the kill: {caught.value.reason}: {caught.value}")
        report(joiner, landed, began)
        assert caught.value.reason == "closed"
        assert sum(span.length for span in landed.spans) < NBYTES
        assert_right(target, expected, landed.spans)
        count = len(landed.spans)
        with pytest.raises(TransportError) as again:
            await joiner.pull(ticket, [whole(LAYOUT)], target, landed)
        assert again.value.reason == "unreachable"
        assert len(landed.spans) == count
        torch.ones(1, device=HERE).add_(1).cpu()  # the CUDA context has survived it


async def test_a_stopped_source_is_read_all_the_same(installed: Mapping[str, str], expected: torch.Tensor) -> None:
    """It does no work per byte. Who has no line yet is told that nobody answers."""
    async with source_process(installed, CAP) as (source, ticket), joiner_here() as joiner:
        target, landed = DeviceMemory(LAYOUT, HERE), Landings()
        began = time.perf_counter()
        pulling = Pulling(joiner, ticket, target, landed)
        await landed.first()
        source.send_signal(signal.SIGSTOP)
        assert await pulling.returns_within(30), "the pull waits for a source that has stopped"
        report(joiner, landed, began)
        assert_right(target, expected, landed.spans)
        assert merged(landed.spans) == (whole(LAYOUT),)
        began = time.perf_counter()
        with pytest.raises(TransportError) as caught:
            await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
        print(f"refused after {time.perf_counter() - began:.1f} s: {caught.value.reason}: {caught.value}")
        assert caught.value.reason == "closed"


@pytest.mark.parametrize("cancelled", ["by anyio", "by asyncio"])
async def test_a_cancelled_pull_writes_no_more(installed: Mapping[str, str], cancelled: str) -> None:
    async with source_process(installed) as (_, ticket), joiner_here() as joiner:
        target, landed = DeviceMemory(LAYOUT, HERE), Landings()
        pulling = Pulling(joiner, ticket, target, landed)
        await landed.first()
        began = time.perf_counter()
        pulling.cancel("by anyio" if cancelled == "by anyio" else "by asyncio")
        assert await pulling.returns_within(1), "cancelling took too long"
        print(f"quiet {(time.perf_counter() - began) * 1e3:.1f} ms after the end, {len(landed.spans)} landings")
        target.flat.fill_(0x55)
        torch.cuda.synchronize(HERE)
        await joiner.pull(ticket, [Span(0, GIB)], DeviceMemory(LAYOUT, HERE), Landings())
        assert bool((target.flat == 0x55).all()), "written after the pull had returned"


async def test_ten_cold_starts_leave_no_memory_behind(installed: Mapping[str, str]) -> None:
    """Neither here nor at the source, whose memory lives as long as anybody has it mapped."""
    torch.cuda.empty_cache()
    before_there = free(THERE)
    held: list[int] = []
    async with source_process(installed) as (source, ticket):
        for _ in range(10):
            async with joiner_here() as joiner:
                target = DeviceMemory(LAYOUT, HERE)
                await joiner.prepare(target)
                await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
            del target
            torch.cuda.empty_cache()
            held.append(free(HERE))
        source.kill()
        await source.wait()
    lost = before_there - await settled(THERE, before_there - GIB)
    print(f"free here after each, in MiB: {[each >> 20 for each in held]}; lost at the source: {lost >> 20} MiB")
    assert held[1] - held[-1] < 64 << 20, "each cold start leaves something behind"
    assert lost < GIB, "the source's memory is still mapped here"


def free(device: str) -> int:
    """Bytes that nobody has on a GPU."""
    return torch.cuda.mem_get_info(device)[0]


async def settled(device: str, wanted: int) -> int:
    """Free bytes once there are ``wanted`` of them, or after ten seconds."""
    with anyio.move_on_after(10):
        while free(device) < wanted:  # noqa: ASYNC110 - another process's memory
            await anyio.sleep(0.05)
    return free(device)


async def test_a_connection_maps_beforehand_and_serves_pull_after_pull(
    installed: Mapping[str, str], expected: torch.Tensor
) -> None:
    async with source_process(installed) as (_, ticket), joiner_here() as joiner:
        target, landed = DeviceMemory(LAYOUT, HERE), Landings()
        began = time.perf_counter()
        await joiner.connect(ticket, target)
        print(f"connected in {(time.perf_counter() - began) * 1e3:.1f} ms")
        assert bool((target.flat == 0xAA).all()), "written before anything was asked for"
        for offset in range(0, LAYOUT.nbytes, GIB):
            span, began = Span(offset, min(GIB, LAYOUT.nbytes - offset)), time.perf_counter()
            await joiner.pull(ticket, [span], target, landed)
            print(f"{span.length / (time.perf_counter() - began) / 1e9:.0f} GB/s")
        assert merged(landed.spans) == (whole(LAYOUT),)
        assert_right(target, expected, landed.spans)
        await joiner.disconnect(ticket)
