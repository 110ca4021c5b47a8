"""What a fault test holds: the workers, the store, the checkpoint and the proxies of one case.

    async with fleet(...) as workers:
        source = await workers.serving("source")
        joiner = workers.start("joiner")
        await joiner.reached("TRANSFER", nbytes=1)

Decides how a worker is followed from outside: by its JSON lines, its signals and its exit code, as
an operator's tools would. It waits for conditions with a deadline and never for time to pass.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from safetensors.torch import load_file

from coldstart.bus.redis import RedisBus
from coldstart.cli.worker import Asked
from coldstart.group import Group
from coldstart.ports import Advert
from coldstart.report import Progress, Report
from rig.disk import STUCK_FILE
from rig.nursery import Nursery
from rig.plugins import GATE_FILE, PORT_FILE, PROXY_PORT
from rig.proxy import Proxy
from rig.store import Store
from rig.worker import Digests, Standing, Task

PAUSE = 5.0
"""Seconds between SIGSTOP and SIGCONT."""
SLOW = 0.008
"""GB/s at which a source lends where a transfer is to last: three seconds for the checkpoint."""
PATIENCE = 30.0
"""Seconds for anything that a case does not time: a start, an answer, an end."""

T = TypeVar("T")


class Line(msgspec.Struct, frozen=True):
    """One line that a worker has said."""

    event: str
    at: float = 0.0
    progress: Progress | None = None
    report: Report | None = None
    error: str = ""


class Worker:
    """One worker process, followed from outside."""

    def __init__(self, nursery: Nursery, name: str, task: Task, place: Path) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.exit_code: int | None = None
        self._raw: list[bytes] = []
        self._log = place / f"{name}.log"
        self._changed = asyncio.Event()
        self._pipes: list[asyncio.ReadTransport] = []
        ours_in, self._stdin = os.pipe()
        self._stdout, ours_out = os.pipe()
        self._status, ours_status = os.pipe()
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.pid = nursery.spawn(msgspec.to_builtins(task), ours_in, ours_out, log, ours_status)
        for descriptor in (ours_in, ours_out, log, ours_status):
            os.close(descriptor)

    async def follow(self) -> None:
        """Begin to listen."""
        for descriptor, take in ((self._stdout, self._take_line), (self._status, self._take_status)):
            loop, pipe = asyncio.get_running_loop(), os.fdopen(descriptor, "rb")
            transport, _ = await loop.connect_read_pipe(lambda take=take: _Lines(take), pipe)
            self._pipes.append(transport)

    def close(self) -> None:
        """Kill it, and stop listening."""
        if self.exit_code is None:
            self.signal(signal.SIGKILL)
        for pipe in self._pipes:
            pipe.close()
        os.close(self._stdin)

    # ----------------------------------------------------------------------------------- signals

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def pause(self) -> None:
        """SIGSTOP, and SIGCONT some seconds later, whatever else goes on."""
        self.stop()
        asyncio.get_running_loop().call_later(PAUSE, self.resume)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        await self._until(lambda: self.exit_code is not None or None, "end")
        assert self.exit_code is not None
        return self.exit_code

    async def leave(self) -> None:
        """SIGTERM: it drains, and that must end well."""
        self.signal(signal.SIGTERM)
        assert await self.ended() == 0, self.log

    # -------------------------------------------------------------------------------- what it says

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def progress(self) -> Progress | None:
        """The last step that it told of."""
        return next((line.progress for line in reversed(self.lines) if line.progress is not None), None)

    async def begun(self) -> None:
        """Wait until its skeleton is built, and its machine has begun."""
        await self._until(lambda: self.progress if self.progress and self.progress.phase != "IDLE" else None, "a phase")

    async def reached(self, phase: str, *, nbytes: int = 0) -> Progress:
        """Wait until it is in ``phase`` now, with at least ``nbytes`` verified; a phase of a moment may be missed."""

        def there() -> Progress | None:
            now = self.progress
            return now if now is not None and now.phase == phase and now.bytes_verified >= nbytes else None

        return await self._until(there, f"{phase} with {nbytes} bytes")

    async def serving(self) -> Report:
        """Wait for SERVE; whatever happened on the way must be in the report."""
        report = await self._until(
            lambda: next((line.report for line in self.lines if line.event == "serving"), None), "SERVE"
        )
        left = [attempt.source for attempt in report.attempts if attempt.outcome != "ok"]
        for source in left:
            assert any(reason.startswith(f"{source}: ") for reason in report.detours), f"{source}: {report}"
        return report

    async def failed(self) -> tuple[int, str]:
        """Wait until it has ended without serving; returns exit code and error."""
        code = await self.ended()
        assert all(line.event != "serving" for line in self.lines), self.log
        error = next((line.error for line in self.lines if line.event == "failed"), "")
        assert code < 0 or error or self.log, "no word of what it failed with"
        return code, error

    async def digests(self) -> Mapping[str, str]:
        """SHA-256 of each tensor that it serves, computed anew."""
        return (await self._ask("digests", Digests)).digests

    async def standing(self) -> Standing:
        return await self._ask("state", Standing)

    async def _ask(self, question: str, answer: type[T]) -> T:
        said = len(self._raw)
        os.write(self._stdin, f"{question}\n".encode())

        def answered() -> T | None:
            for raw in self._raw[said:]:
                if msgspec.json.decode(raw, type=Line).event == question:
                    return msgspec.json.decode(raw, type=answer)
            return None

        with anyio.fail_after(PATIENCE):
            return await self._until(answered, f"answer to {question}")

    async def _until(self, found: Callable[[], T | None], what: str) -> T:
        """Wait for a condition on what it has said; fails when it ends before."""
        try:
            with anyio.fail_after(2 * PATIENCE):
                while (value := found()) is None:
                    assert self.exit_code is None, f"{self.name} ended with {self.exit_code} before {what}: {self.log}"
                    self._changed.clear()
                    await self._changed.wait()
        except BaseException as error:
            error.add_note(f"{self.name}: waited for {what}; last step: {self.progress}; log: {self.log[-2000:]}")
            raise
        return value

    def _take_line(self, raw: bytes) -> None:
        self._raw.append(raw)
        self.lines.append(msgspec.json.decode(raw, type=Line))
        self._changed.set()

    def _take_status(self, raw: bytes) -> None:
        self.exit_code = int(raw)
        self._changed.set()


class _Lines(asyncio.Protocol):
    """Cuts a pipe into lines; the rest at its end is one, too."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take, self._rest = take, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def connection_lost(self, error: Exception | None) -> None:
        if self._rest:
            self._take(self._rest)


class Fleet:
    """The workers of one case, their checkpoint and their store; made by :func:`fleet`."""

    def __init__(
        self, nursery: Nursery, place: Path, checkpoint: Path, store: Store, resources: AsyncExitStack
    ) -> None:
        self.place, self.store = place, store
        self.checkpoint = self._good = checkpoint
        self.gate = place / "gate"
        self.environment: dict[str, str] = {}
        """Of every worker that is started from now on, besides."""
        self._nursery, self._resources = nursery, resources

    async def start(
        self,
        name: str,
        *,
        url: str = "",
        gated: bool = False,
        relay: Proxy | None = None,
        namespace: str = "",
        disk: str = "",
        group: Group | None = None,
        **settings: object,
    ) -> Worker:
        """A new worker.

        Args:
            url: of the store, where it is not reached directly.
            gated: its VERIFY lasts until :meth:`open_gate`.
            relay: joiners reach it through this proxy. All workers of the case must then have one transport.
            namespace: a file that names its network namespace.
            disk: see :mod:`rig.disk`; what it holds goes on with :meth:`open_gate`.
            group: the rank that it is of one.
            settings: fields of ``coldstart.config.Settings``.
        """
        environment = {
            GATE_FILE: str(self.gate),
            PORT_FILE: str(self.port_file(name)),
            STUCK_FILE: str(self._stuck_file(name)),
        }
        environment |= self.environment
        if relay is not None:
            environment[PROXY_PORT] = str(relay.port)
        if gated or "hold" in disk:
            self.gate.touch()
        asked = Asked(str(self.checkpoint), "gated" if gated else "tensors", name, json=True, verbose=2, group=group)
        # Sources are slow on purpose here, and storage is quick: no estimate is to decide between them.
        chosen = {"redis": url or self.store.url, "transports": "relayed", "margin": 0.0, **settings}
        worker = Worker(self._nursery, name, Task(asked, environment, chosen, namespace, disk), self.place)
        self._resources.callback(worker.close)
        await worker.follow()
        return worker

    async def serving(self, name: str, **options: object) -> Worker:
        """A new worker that serves and, if it reaches the store directly, is advertised."""
        worker = await self.start(name, **options)  # type: ignore[arg-type]
        with anyio.fail_after(PATIENCE):
            await worker.serving()
            if not options.get("url"):
                await self.advertised(name)
        return worker

    async def proxy(self, upstream: Callable[[], Path | tuple[str, int]] | None = None) -> Proxy:
        """A proxy that lives as long as the case; in front of the store unless said otherwise."""
        return await self._resources.enter_async_context(Proxy.open(upstream or (lambda: self.store.socket)))

    async def relay(self, name: str) -> Proxy:
        """A proxy in front of the lending port of the worker ``name``, whenever that opens it."""
        return await self.proxy(lambda: ("127.0.0.1", self.port(name)))

    def port_file(self, name: str) -> Path:
        return self.place / f"{name}.port"

    def port(self, name: str) -> int:
        """The port at which ``name`` lends; it has one from the first offer on."""
        return int(self.port_file(name).read_text())

    async def stuck(self, name: str) -> None:
        """Wait until a read of ``name`` hangs or is held."""
        with anyio.fail_after(PATIENCE):
            while not self._stuck_file(name).exists():
                await anyio.sleep(0.01)

    def _stuck_file(self, name: str) -> Path:
        return self.place / f"{name}.stuck"

    def open_gate(self) -> None:
        self.gate.unlink()

    def damageable(self) -> Path:
        """A copy of the checkpoint, which workers from now on read; what is right stays the original."""
        self.checkpoint = self.place / self._good.name
        shutil.copytree(self._good, self.checkpoint)
        return self.checkpoint

    # ------------------------------------------------------------------------------- what must hold

    async def adverts(self, store: Store | None = None) -> dict[str, Advert]:
        """Who is advertised, by name."""
        bus = await RedisBus.open((store or self.store).url, probe=False)
        try:
            return {advert.worker: advert for key in await bus.shards() for advert in await bus.adverts(key)}
        finally:
            await bus.aclose()

    async def advertised(self, *names: str, store: Store | None = None, used: int | None = None) -> None:
        """Wait until all of ``names`` are in the store and believed, with ``used`` slots each if given."""
        while True:
            found = {name: advert for name, advert in (await self.adverts(store)).items() if not advert.struck}
            if all(name in found and used in (None, found[name].used) for name in names):
                return
            await anyio.sleep(0.05)

    async def lends_nothing(self, source: Worker) -> None:
        """Wait until no slot and no grant of ``source`` is in use."""
        await self.advertised(source.name, used=0)
        while (await source.standing()).lending:
            await anyio.sleep(0.05)

    async def check(self, *workers: Worker) -> None:
        """What they serve is the checkpoint, bit for bit."""
        for worker in workers:
            assert await worker.digests() == digests_of(self._good), worker.name

    async def check_lends(self, source: Worker, **options: object) -> None:
        """``source`` has all its slots, and a newcomer gets everything from it, whoever else is advertised."""
        with anyio.fail_after(PATIENCE):
            await self.lends_nothing(source)
            newcomer = await self.start("newcomer", **options)  # type: ignore[arg-type]
            report = await newcomer.serving()
        assert (report.path, report.sources) == ("peer", (source.name,))
        await self.check(newcomer, source)
        await newcomer.leave()


@cache
def digests_of(checkpoint: Path) -> Mapping[str, str]:
    """SHA-256 of each tensor as the files have it."""
    return {
        name: hashlib.sha256(tensor.contiguous().numpy().data).hexdigest()
        for file in sorted(checkpoint.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@asynccontextmanager
async def fleet(nursery: Nursery, place: Path, checkpoint: Path, kind: str = "valkey") -> AsyncIterator[Fleet]:
    """A store, and workers to be; all of it ends with the block."""
    async with AsyncExitStack() as resources:
        store = Store(place / "store", kind)
        resources.callback(store.kill)
        yield Fleet(nursery, place, checkpoint, store, resources)
