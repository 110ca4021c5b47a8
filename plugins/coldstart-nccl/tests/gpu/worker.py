"""A worker of ``test_two_devices.py``: orders come as lines of JSON, answers leave the same way.

Content is a function of the offset in the stream, so that either side can make or check it alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version

import anyio
import anyio.to_thread
import torch
from coldstart_nccl import NCCL
from coldstart_nccl.transport import CollectiveTransport

import coldstart
from coldstart.errors import TransportError
from coldstart.layout import Layout, Span, merged
from coldstart.ports import Region, TransportSettings
from coldstart.testing.memories import layout_of
from coldstart.testing.transfers import grant, whole

NEVER = 0xA5


class DeviceMemory:
    """``ports.Memory`` on a device: one tensor, or one tensor per storage."""

    def __init__(self, layout: Layout, device: str, kind: str) -> None:
        self.layout, self.device = layout, device
        if kind == "flat":
            self._tensors = [torch.full((layout.nbytes,), NEVER, dtype=torch.uint8, device=device)]
            self._offsets: Sequence[int] = [0]
        else:
            self._tensors = [
                torch.full((size,), NEVER, dtype=torch.uint8, device=device) for size in layout.storages
            ]
            self._offsets = layout.starts
        torch.cuda.synchronize(device)

    def regions(self, span: Span) -> Sequence[Region]:
        found = []
        for offset, tensor in zip(self._offsets, self._tensors, strict=True):
            low, high = max(offset, span.offset), min(offset + tensor.numel(), span.end)
            if low < high:
                found.append(Region(self.device, tensor.data_ptr() + low - offset, high - low, low))
        return found

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        raise NotImplementedError("moved by address only")

    def writing(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        raise NotImplementedError("moved by address only")

    def storage(self, index: int) -> torch.Tensor:
        if len(self._tensors) == 1:
            start = self.layout.starts[index]
            return self._tensors[0][start : start + self.layout.storages[index]]
        return self._tensors[index]

    def fill(self) -> None:
        for index in range(len(self.layout.storages)):
            _content(self, index, compare=False)
        torch.cuda.synchronize(self.device)

    def wrong(self) -> int:
        """Bytes of weights that are not what they should be."""
        return sum(_content(self, index, compare=True) for index in range(len(self.layout.storages)))

    def checksum(self) -> int:
        return sum(int(tensor.to(torch.int64).sum()) for part in self._tensors for tensor in part.split(1 << 28))


def _content(memory: DeviceMemory, index: int, *, compare: bool) -> int:
    wrong = 0
    at = memory.layout.starts[index]
    for piece in memory.storage(index).split(1 << 26):
        numbers = torch.arange(at, at + piece.numel(), dtype=torch.int64, device=memory.device)
        expected = ((numbers * 2654435761) >> 13).to(torch.uint8)
        if compare:
            wrong += int((piece != expected).sum())
        else:
            piece.copy_(expected)
        at += piece.numel()
    return wrong


class Work:
    """What one worker does."""

    def __init__(self, device: str, rate: float, io: float) -> None:
        self._device = device
        self._transport: CollectiveTransport = NCCL.open(
            TransportSettings(device=device, lend_bytes_per_second=rate, io_seconds=io)
        )
        self._offers = 0
        self._joined = anyio.Event()

    async def start(self) -> dict[str, object]:
        began = time.monotonic()
        await self._transport.prepare(DeviceMemory(layout_of(1), self._device, "flat"))
        nccl = await anyio.to_thread.run_sync(_nccl_version)
        return {
            "torch": torch.__version__,
            "nccl": nccl,
            "nccl4py": version("nccl4py"),
            "device": torch.cuda.get_device_name(self._device),
            "warm_seconds": round(time.monotonic() - began, 2),
        }

    async def offer(self, order: dict[str, object]) -> dict[str, object]:
        memory = DeviceMemory(_layout(order), self._device, str(order["memory"]))
        await anyio.to_thread.run_sync(memory.fill)
        self._offers += 1
        ticket = await self._transport.offer(grant(f"t{self._offers}", 600), memory)
        return {"ticket": ticket.hex()}

    async def pull(self, order: dict[str, object]) -> dict[str, object]:
        layout = _layout(order)
        memory = DeviceMemory(layout, self._device, str(order["memory"]))
        landed: list[Span] = []
        first, first_seconds = anyio.Event(), list[float]()
        loop = asyncio.get_running_loop()

        def on_landed(span: Span) -> None:
            landed.append(span)
            if len(landed) == 1:
                first_seconds.append(round(time.monotonic() - began, 4))
                loop.call_soon_threadsafe(first.set)

        reason = "cancelled"
        began = time.monotonic()
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await first.wait()
                if order.get("tell"):
                    say({"first": True})
                if order.get("cancel"):
                    group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                await self._transport.pull(
                    bytes.fromhex(str(order["ticket"])), [whole(layout)], memory, on_landed
                )
                reason = ""
            except TransportError as error:
                reason = error.reason
                print(error, file=sys.stderr)
            finally:
                seconds = time.monotonic() - began
                before = memory.checksum() if reason else 0
            first.set()
        if reason:
            await anyio.sleep(0.5)
        return {
            "reason": reason,
            "seconds": round(seconds, 4),
            "first_landed": first_seconds,
            "gbps": round(layout.nbytes / seconds / 1e9, 1),
            "wrong": memory.wrong() if not reason else -1,
            "landed": sum(span.length for span in merged(landed)),
            "stream": layout.nbytes,
            "abortable": self._transport.traits.abortable,
            "written_late": bool(reason) and memory.checksum() != before,
        }

    async def quiet(self, order: dict[str, object]) -> dict[str, object]:
        began = time.monotonic()
        with anyio.move_on_after(float(str(order["seconds"]))):
            while self._transport.reading(f"t{self._offers}"):  # noqa: ASYNC110 - it ends in a thread
                await anyio.sleep(0.01)
        return {
            "quiet": not self._transport.reading(f"t{self._offers}"),
            "seconds": round(time.monotonic() - began, 2),
        }

    async def revoke(self, order: dict[str, object]) -> dict[str, object]:
        began, reason = time.monotonic(), ""
        try:
            await self._transport.revoke(f"t{self._offers}")
        except TransportError as error:
            reason = error.reason
        return {"reason": reason, "seconds": round(time.monotonic() - began, 2)}

    async def footprint(self, order: dict[str, object]) -> dict[str, object]:
        """Once the pairs of earlier pulls are closed, which goes on beside everything else."""
        with anyio.move_on_after(10):
            while any(_has_a_pair(thread) for thread in threading.enumerate()):  # noqa: ASYNC110 - they are threads
                await anyio.sleep(0.05)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return {
            "device_mib": (total - free) // 2**20,
            "allocated_mib": torch.cuda.memory_allocated(self._device) // 2**20,
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    async def join(self, order: dict[str, object], group: anyio.abc.TaskGroup) -> dict[str, object]:
        """One cold start; with ``stay`` the worker lends until its process ends."""
        checkpoint, name, stay = str(order["checkpoint"]), str(order["name"]), bool(order["stay"])
        reports: list[dict[str, object]] = []
        joined = anyio.Event()

        async def run() -> None:
            async with coldstart.join(
                checkpoint, skeleton="tensors", worker=name, device=self._device
            ) as replica:
                report = replica.report
                reports.append(
                    {
                        "path": report.path,
                        "transport": report.transport,
                        "verified": report.verified,
                        "gbps": report.gbps,
                        "detours": [str(detour) for detour in report.detours],
                    }
                )
                joined.set()
                if stay:
                    await anyio.sleep_forever()

        if stay:
            group.start_soon(run)
            await joined.wait()
        else:
            await run()
        return reports[0]

    async def obey(self, order: dict[str, object], group: anyio.abc.TaskGroup) -> dict[str, object]:
        match order["do"]:
            case "offer":
                return await self.offer(order)
            case "pull":
                return await self.pull(order)
            case "quiet":
                return await self.quiet(order)
            case "revoke":
                return await self.revoke(order)
            case "footprint":
                return await self.footprint(order)
            case "join":
                return await self.join(order, group)
            case unknown:
                raise AssertionError(f"no such order: {unknown}")


def _has_a_pair(thread: threading.Thread) -> bool:
    return thread.name.endswith(("-pull", "-source"))


def _layout(order: dict[str, object]) -> Layout:
    sizes = order["sizes"]
    assert isinstance(sizes, list)
    return layout_of(*sizes)


def _nccl_version() -> str:
    from nccl.core import get_version

    return str(get_version().libnccl)


def say(words: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def main(settings: dict[str, object]) -> None:
    device = str(settings["device"])
    torch.cuda.set_device(device)
    work = Work(device, float(str(settings.get("rate", 0.0))), float(str(settings.get("io", 10.0))))
    say(await work.start())
    async with anyio.create_task_group() as group:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            say(await work.obey(json.loads(line), group))
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
