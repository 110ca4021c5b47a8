"""A fleet in one process: real machines, runners, hands and mail over fakes of everything else.

    async with fleet() as workers:
        a = workers.start("a")
        assert (await a.lends()).path == "storage"
        b = workers.start("b", transport=lambda inner: Stalling(inner, 100_000))

Decides how workers are put together without torch, files, sockets or a server, as ``wiring.py``
does it with them. An async context manager, used inside the test; made for virtual time
(``virtual_time.py``). When it ends, nobody may have served bytes that storage does not hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import anyio
from anyio.abc import TaskGroup

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.sealed import SealedBus
from coldstart.effects import Advertise
from coldstart.errors import BusError, ConfigError
from coldstart.events import AdvertFailed, Advertised
from coldstart.group import Group
from coldstart.identity import ModelVersion, Shard, lineage
from coldstart.joining import Target as Filling
from coldstart.layout import Layout, Span
from coldstart.links.memory import Links
from coldstart.node import Means, Node, Policy
from coldstart.phases.states import Failed, Gone, Serving, State
from coldstart.plan import Limits
from coldstart.policies import Prefer
from coldstart.ports import Bus, Claim, ClaimOutcome, Consensus, Digester, Landed, Memory, Transport
from coldstart.recorder import Recorder
from coldstart.report import Report, failure
from coldstart.runner import Entry, Runner
from coldstart.source import Source
from coldstart.station import Worker
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transports import Loopback, LoopbackTransport

SHARD = Shard(ModelVersion("model", "c" * 32, "bytes/1"))
CHUNK = 64 * 1024
LAYOUT = layout_of(150_000, 3, 257, 200_000, 65_536, 1, chunk_bytes=CHUNK)
"""Seven chunks, the last one short; storages that begin and end inside chunks."""

LINEAGE = lineage(LAYOUT, "blake2b")
"""Under which the fleet's adverts and truth stand on the bus."""

STORAGE_SECONDS = 10.0
PEER_SECONDS = 1.0
FLOOR = LAYOUT.nbytes / STORAGE_SECONDS
"""Bytes per second: a peer slower than storage is not worth it."""

Wrap = Callable[[Transport], Transport]
"""Puts a fault around a transport."""

Watch = Callable[[str, "Entry[State] | Entry[Source]"], None]
"""Told of a step: by whom, and what."""


class Target(BytesMemory):
    """Memory that can be left to a late writer, as the arena can."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, fill=0xFF)
        self.quarantined: list[list[bytearray]] = []

    def quarantine(self, keep: Sequence[Span] = ()) -> None:
        kept = []
        for span in keep:
            with self.reading(span) as views:
                kept.append(b"".join(views))
        self.quarantined.append(self.storages)
        self.storages = [bytearray(b"\xff" * size) for size in self.layout.storages]
        for span, data in zip(keep, kept, strict=True):
            with self.writing(span) as views:
                fill(views, data)


def fill(views: Sequence[memoryview], data: bytes) -> None:
    """Spread ``data`` over ``views``."""
    left = memoryview(data)
    for view in views:
        view[:], left = left[: len(view)], left[len(view) :]


class HashDigester:
    """BLAKE2b over the bytes, padding as zeros."""

    algorithm = "blake2b"

    def digest(self, memory: Memory, span: Span) -> bytes:
        with memory.reading(span) as views:
            return hashlib.blake2b(b"".join(views), digest_size=16).digest()


MOUNT = "/checkpoints"
"""Where everybody's storage is mounted, as far as its rate is remembered."""


class FakeStorage:
    """A checkpoint that takes its time.

    Args:
        held: what the checkpoint holds.
        seconds: how long reading all of it takes.
        partial: whether single chunks can be read; else one read brings everything, at its end.
        limit: bytes after which it stalls or, with ``error``, raises.
    """

    def __init__(
        self,
        held: BytesMemory,
        seconds: float = STORAGE_SECONDS,
        *,
        partial: bool = True,
        limit: int | None = None,
        error: Exception | None = None,
    ) -> None:
        self.held, self.seconds, self.partial = held, seconds, partial
        self.limit, self.error = limit, error
        self.loaded = False
        self.into: Memory = held
        self.reads: list[tuple[Span, ...]] = []
        self.read_bytes = 0

    async def sample(self) -> None:
        """See :class:`coldstart.joining.Storage`; nothing is here before it is read."""

    async def read(self, spans: Sequence[Span], landed: Landed) -> None:
        """See :class:`coldstart.joining.Storage`."""
        layout = self.held.layout
        self.reads.append(tuple(spans))
        wanted = spans if self.partial else [Span(0, layout.nbytes)]
        step = layout.chunk_bytes if self.partial else layout.nbytes
        for span in wanted:
            for offset in range(span.offset, span.end, step):
                await self._bring(Span(offset, min(step, span.end - offset)), landed)

    async def _bring(self, part: Span, landed: Landed) -> None:
        await anyio.sleep(self.seconds * part.length / self.held.layout.nbytes)
        if self.limit is not None and self.read_bytes + part.length > self.limit:
            if self.error is not None:
                raise self.error
            await anyio.sleep_forever()
        with self.held.reading(part) as theirs, self.into.writing(part) as ours:
            fill(ours, b"".join(theirs))
        self.read_bytes += part.length
        landed(part)


class TroubledBus(MemoryBus):
    """A connection on which chosen operations fail or take long.

    ``down`` are names of operations that fail, ``slow`` seconds before an operation reaches the
    store, ``late`` seconds before the answer to a claim is back. ``calls`` counts all operations.
    """

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.down: set[str] = set()
        self.slow: dict[str, float] = {}
        self.late = 0.0
        self.calls: list[str] = []

    async def claim(self, claim: Claim) -> ClaimOutcome:
        outcome = await super().claim(claim)
        await anyio.sleep(self.late)
        return outcome

    async def _call(self, operation: str) -> None:
        self.calls.append(operation)
        await anyio.sleep(self.slow.get(operation, 0.0))
        if operation in self.down:
            raise BusError(f"{operation} fails here")
        await super()._call(operation)


@dataclass
class Member:
    """One worker of the fleet."""

    name: str
    inbox: str
    """Its name, and which of its lives this is."""
    memory: Target
    storage: FakeStorage
    transport: Transport
    node: Node
    recorder: Recorder
    entries: list[Entry[State]]
    lent: list[Entry[Source]]
    changed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    refused: str = ""
    """Why its name was not left to it before it served."""

    @property
    def joiner(self) -> Runner[State]:
        return self.node.joiner

    @property
    def source(self) -> Runner[Source]:
        return self.node.source

    @property
    def report(self) -> Report:
        return self.recorder.report()

    @property
    def content(self) -> bytes:
        return self.memory.content()

    async def ready(self) -> Report:
        """Wait for SERVE; raises what the cold start failed with."""
        await self.reached(Serving, Failed, Gone)
        if isinstance(self.joiner.state, Failed):
            raise failure(self.report, self.joiner.state)
        return self.report

    async def lends(self) -> Report:
        """Wait for SERVE and until the first advert of everything stands."""
        report = await self.ready()
        while not self._advertised:
            await self.changed.wait()
        return report

    @property
    def _advertised(self) -> bool:
        """Adverts are made and answered in order."""
        adverts = [effect for entry in self.lent for effect in entry.effects if isinstance(effect, Advertise)]
        partial = sum(advert.have is not None for advert in adverts)
        return sum(isinstance(entry.event, Advertised | AdvertFailed) for entry in self.lent) > partial

    async def reached(self, *states: type[State]) -> None:
        """Wait until the joiner is in one of ``states``."""
        while not isinstance(self.joiner.state, states):
            await self.changed.wait()

    async def drain(self) -> None:
        self.node.drain()
        await self.reached(Gone, Failed)

    async def kill(self) -> None:
        """End it as ``kill -9`` would: nothing is withdrawn, revoked or said."""
        self.scope.cancel()
        await self.ended.wait()


class Fleet:
    """Workers that share a store and a loopback; made by :func:`fleet`.

    ``watch`` is told of each step of anybody's machines, with the member's name and incarnation; ``around`` puts
    something around each worker's connection.
    """

    def __init__(self, tasks: TaskGroup, limits: Limits, seed: int | None) -> None:
        self.store = MemoryStore()
        self.hub = Loopback()
        self.members: list[Member] = []
        self.watch: Watch = _nobody
        self.around: Callable[[Bus], Bus] = lambda bus: bus
        self._limits, self._seed = limits, seed
        self._tasks = tasks

    def weights(self, layout: Layout = LAYOUT, seed: int = 1) -> BytesMemory:
        """What a checkpoint holds."""
        return BytesMemory(layout, seed=seed)

    def start(
        self,
        name: str,
        *,
        layout: Layout = LAYOUT,
        storage: FakeStorage | None = None,
        transport: Wrap = lambda inner: inner,
        bus: Bus | None = None,
        no_bus: str = "",
        limits: Limits | None = None,
        slots: int = 2,
        prefer: Prefer | None = None,
        digester: Digester | None = None,
        self_check: Callable[[], Sequence[str]] = tuple,
        replace_memory: Callable[[Sequence[Span]], None] | None = None,
        on_enter: Mapping[type[State], Callable[[], None]] | None = None,
        peer_seconds: float = PEER_SECONDS,
        others: Mapping[str, Transport] | None = None,
        links: Links | None = None,
        ordered: bool = False,
        group: Group | None = None,
        consensus: Consensus | None = None,
    ) -> Member:
        """Start a worker.

        Args:
            transport: wraps its transport, on both sides.
            bus: its connection, one of its own by default.
            no_bus: why it has none.
            on_enter: called when its joiner enters one of these states, before the effects.
            peer_seconds: how long its pull of everything takes.
            others: transports that it has besides, less preferred.
            links: what it knows of the links to others.
            ordered: whether the order of its transports is the operator's.
            group: a rank of it; the shard is then the rank's own.
            consensus: its host's own.
        """
        own: Bus = MemoryBus(self.store)
        bus = None if no_bus else self.around(bus or own)
        memory = Target(layout)
        storage = storage or FakeStorage(self.weights(layout))
        storage.into = memory
        sealed = isinstance(bus, SealedBus)
        wrapped = transport(LoopbackTransport(self.hub, layout.nbytes / peer_seconds, layout.chunk_bytes))
        shard = SHARD if group is None else Shard(SHARD.model, group.tensor_parallel)
        recorder = Recorder(name, shard.key, str(shard), layout, anyio.current_time())
        entries: list[Entry[State]] = []
        lent: list[Entry[Source]] = []
        worker = Worker(name, f"{len(self.members)}")

        def wake() -> None:
            member.changed.set()
            member.changed = anyio.Event()

        def lender_moved(entry: Entry[Source]) -> None:
            lent.append(entry)
            wake()
            self.watch(worker.inbox, entry)

        def entered(entry: Entry[State]) -> None:
            wake()
            self.watch(worker.inbox, entry)
            if type(entry.before) is not type(entry.after) and type(entry.after) in (on_enter or {}):
                (on_enter or {})[type(entry.after)]()

        node = Node(
            shard,
            worker,
            Filling(
                memory,
                digester or HashDigester(),
                storage,
                self_check,
                replace_memory or memory.quarantine,
                mount=MOUNT,
            ),
            Means(bus, {wrapped.name: wrapped, **(others or {})}, "127.0.0.1", no_bus, links, ordered, sealed=sealed),
            Policy(limits or self._limits, slots, prefer=prefer),
            carrier=lambda: "",
            observers=(recorder, entries.append, entered),
            lend_observers=(lender_moved,),
            chance=None if self._seed is None else Random(f"{self._seed} {worker.inbox}"),
            group=group,
            consensus=consensus,
        )
        member = Member(name, worker.inbox, memory, storage, wrapped, node, recorder, entries, lent)
        self.members.append(member)
        self._tasks.start_soon(self._run, member, name=name)
        node.start()
        return member

    async def _run(self, member: Member) -> None:
        with member.scope:
            try:
                async with anyio.create_task_group() as tasks:
                    for part in member.node.parts:
                        tasks.start_soon(part)
            except* ConfigError as errors:
                member.refused = str(errors.exceptions[0])
        member.ended.set()
        member.changed.set()

    @property
    def storage_reads(self) -> int:
        """How often anybody read storage."""
        return sum(len(member.storage.reads) for member in self.members)

    def check(self) -> None:
        """The promises that hold after every test."""
        for member in self.members:
            if isinstance(member.joiner.state, Serving) and not member.ended.is_set():
                assert member.content == member.storage.held.content(), f"{member.name} serves wrong weights"


@asynccontextmanager
async def fleet(limits: Limits | None = None, seed: int | None = None) -> AsyncIterator[Fleet]:
    """A fleet without workers; everything in it ends with the block. ``seed``: of all that is random in it."""
    outcome: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        workers = Fleet(tasks, limits or Limits(floor=FLOOR), seed)
        try:
            yield workers
            workers.check()
        except BaseException as error:  # raised as it was, not as a group
            outcome = error
        tasks.cancel_scope.cancel()
    if outcome is not None:
        raise outcome


def _nobody(inbox: str, entry: Entry[State] | Entry[Source]) -> None:
    return
