"""Hundreds of cold starts as coroutines against one Valkey: what coordination costs by itself.

    python -m benchmarks.fleet.joiners [--joiners 500] [--json FILE]

The nodes, their machines, mail and bus connections are the real ones; weights are some bytes in memory
that move at once. All connections stand and all nodes are built before the joiners are let go, at one moment.
Three ways to begin:

- ``room``: sources with slots for everybody, and a joiner takes any (``share`` is 0). A pull begins when everybody
  is through the HANDSHAKE: real ones take seconds, and what follows them would compete for this process.
- ``share``: the same slots with the default policy, which leaves a source that lends to its one joiner, so that all
  but a few stand in line until those before them serve.
- ``spread``: the same policy and one source with two slots: whoever has been served must serve the next.

All share this process and its one core; the store has another.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import platform
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import msgspec
import redis

from benchmarks.fleet.coordination import Coordination, Result, p99, table
from coldstart import __version__
from coldstart.bus.embedded import embedded
from coldstart.bus.redis import RedisBus
from coldstart.cli.bench_results import at_most, figure
from coldstart.layout import Span
from coldstart.phases.states import Failed, Loading, Phase, Serving, State, Transferring
from coldstart.plan import Limits
from coldstart.ports import Bus, Landed, Memory, Traits, Transport
from coldstart.runner import Entry
from coldstart.source import Source
from coldstart.testing.harness import SHARD, FakeStorage, Fleet, Member, fleet
from coldstart.testing.memories import layout_of
from coldstart.testing.transports import Wrapped

LAYOUT = layout_of(4096)
BAR_SECONDS = 2.0
MOST_CALLS = 8
LOOK = 0.5
"""Seconds between two looks at the store's slots: hundreds of adverts, which must not be what is measured."""
DEADLINE = 300.0
YOUNG_ONLY = (700, 10, 1_000_000)
"""The collector's thresholds while joiners are under way: Python's own, but no full collections."""
COUNTED = tuple(
    name for name, member in vars(Bus).items() if inspect.iscoroutinefunction(member) and name != "aclose"
)
"""Operations of a bus, all of which go to the store. ``listen`` may wait there; an advert takes two round trips."""
BESIDE = ("listen", "record")
"""Mail, which has a connection of its own, and the journal, which nobody waits for."""


class CountedBus(RedisBus):
    """Counts what is asked of the store in ``calls``, by operation."""

    calls: Counter[str]


def _counted(name: str) -> Callable[..., Awaitable[object]]:
    plain: Callable[..., Awaitable[object]] = getattr(RedisBus, name)

    async def call(self: CountedBus, *words: object, **options: object) -> object:
        if "calls" in vars(self):  # opening it is not counted
            self.calls[name] += 1
        return await plain(self, *words, **options)

    return call


for _name in COUNTED:
    setattr(CountedBus, _name, _counted(_name))


class Slots:
    """Watches that no source gives more slots than it has: at each step of a source, and in the store."""

    def __init__(self, slots: int) -> None:
        self.at_sources = self.in_store = 0
        """The most that one source had in use."""
        self.exceeded: list[str] = []
        self._slots: dict[str, int] = {}
        self._usual = slots

    def expect(self, worker: str, slots: int) -> None:
        """``worker`` has so many."""
        self._slots[worker] = slots

    def stepped(self, inbox: str, entry: Entry[State] | Entry[Source]) -> None:
        if isinstance(entry.after, Source):
            used = len([grant for grant in entry.after.grants if not grant.closing])
            self.at_sources = max(self.at_sources, used)
            self._look(inbox.rpartition(".")[0] or inbox, used, "at the source")

    async def watch(self, bus: RedisBus) -> None:
        """Until cancelled."""
        while True:
            for advert in await bus.adverts(SHARD.key):
                self.in_store = max(self.in_store, advert.used)
                self._look(advert.worker, advert.used, "in the store")
            await anyio.sleep(LOOK)

    def _look(self, worker: str, used: int, where: str) -> None:
        if used > self._slots.get(worker, self._usual):
            self.exceeded.append(f"{worker}: {used} slots in use {where}")


class _Held(Wrapped):
    """A transport whose pulls begin when ``gate`` opens. So a source must not take who waits for it as gone."""

    def __init__(self, inner: Transport, gate: anyio.Event) -> None:
        super().__init__(inner)
        self._gate = gate

    @property
    def traits(self) -> Traits:
        return msgspec.structs.replace(super().traits, sees_readers=False)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await self._gate.wait()
        await super().pull(ticket, spans, into, landed)


class _Joiner:
    """One cold start: its member, and what it had asked for when it served."""

    def __init__(self, member: Member, bus: CountedBus) -> None:
        self.member, self.bus = member, bus
        self.calls: Mapping[str, int] = {}

    async def agree(self) -> None:
        """Until it has done with DISCOVER and HANDSHAKE, one way or another."""
        await self.member.reached(Transferring, Loading, Serving, Failed)

    async def serve(self) -> None:
        await self.member.ready()
        self.calls = dict(self.bus.calls)

    def phase(self, phase: Phase) -> float:
        return self.member.report.phases.get(phase.value.lower(), 0.0)


async def coordination(
    name: str, url: str, *, joiners: int, sources: int, slots: int, limits: Limits, held: bool = False
) -> Coordination:
    """Start ``joiners`` at one moment beside ``sources`` with ``slots`` each; those who came may lend two at a time.

    With ``held`` no pull begins before everybody is through the HANDSHAKE.
    """
    watched, gate, opened = Slots(2), anyio.Event(), anyio.Event()
    opened.set()
    async with AsyncExitStack() as resources:
        observer = await RedisBus.open(url, name, seconds=DEADLINE)
        resources.push_async_callback(observer.aclose)
        buses = [await _connected(url, name, resources) for _ in range(sources + joiners)]
        workers = await resources.enter_async_context(fleet(limits))
        workers.watch = watched.stepped
        for number, bus in enumerate(buses[:sources]):
            watched.expect(f"s{number}", slots)
            await _start(workers, f"s{number}", bus, slots, opened).lends()
        if not held:
            gate = opened
        resources.enter_context(_young_only())
        before, cpu, store = _calls(buses), time.process_time(), _store_cpu(url)
        started = [_Joiner(_start(workers, f"j{n}", bus, 2, gate), bus) for n, bus in enumerate(buses[sources:])]
        began = anyio.current_time()
        async with anyio.create_task_group() as watching:
            watching.start_soon(watched.watch, observer)
            with anyio.fail_after(DEADLINE):
                await _all(joiner.agree for joiner in started)
                gate.set()
                await _all(joiner.serve for joiner in started)
            watching.cancel_scope.cancel()
        seconds, asked = anyio.current_time() - began, _calls(buses) - before
        busy = time.process_time() - cpu, _store_cpu(url) - store
        return _found(name, started, asked, seconds, busy, watched, sources, slots)


async def _all(waits: Iterable[Callable[[], Coroutine[object, object, None]]]) -> None:
    """Side by side."""
    async with anyio.create_task_group() as tasks:
        for wait in waits:
            tasks.start_soon(wait)


@contextmanager
def _young_only() -> Iterator[None]:
    """Without full collections: each would go through the objects of hundreds of workers, and a worker has its own.

    Young objects are collected as always.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*YOUNG_ONLY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


async def _connected(url: str, namespace: str, resources: AsyncExitStack) -> CountedBus:
    bus = await CountedBus.open(url, namespace)
    bus.calls = Counter()
    resources.push_async_callback(bus.aclose)
    await bus.warm()
    return bus


def _start(workers: Fleet, name: str, bus: CountedBus, slots: int, gate: anyio.Event) -> Member:
    storage, held = FakeStorage(workers.weights(LAYOUT), seconds=0.01), partial(_Held, gate=gate)
    return workers.start(
        name, layout=LAYOUT, storage=storage, bus=bus, slots=slots, peer_seconds=0.001, transport=held
    )


def _store_cpu(url: str) -> float:
    """CPU seconds that the store has used so far."""
    with redis.Redis.from_url(url) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _calls(buses: Sequence[CountedBus]) -> Counter[str]:
    calls: Counter[str] = Counter()
    for bus in buses:
        calls.update(bus.calls)
    return calls


def _found(
    name: str,
    started: Sequence[_Joiner],
    asked: Counter[str],
    seconds: float,
    busy: tuple[float, float],
    watched: Slots,
    sources: int,
    slots: int,
) -> Coordination:
    joiners = len(started)
    discover = [joiner.phase(Phase.DISCOVER) * 1000 for joiner in started]
    handshake = [joiner.phase(Phase.HANDSHAKE) * 1000 for joiner in started]
    own: Counter[str] = Counter()
    for joiner in started:
        own.update(joiner.calls)
    return Coordination(
        name=name,
        joiners=joiners,
        sources=sources,
        slots=slots,
        discover=figure("ms", discover),
        handshake=figure("ms", handshake),
        both=figure("ms", [one + other for one, other in zip(discover, handshake, strict=True)]),
        seconds=round(seconds, 3),
        cpu_seconds=round(busy[0], 3),
        store_seconds=round(busy[1], 3),
        claims_per_second=round(asked["claim"] / seconds, 1),
        claims=asked["claim"],
        calls=figure("", [sum(joiner.calls.values()) for joiner in started]),
        by_operation={operation: round(count / joiners, 2) for operation, count in own.most_common()},
        fleet_calls=round(sum(asked.values()) / joiners, 1),
        paths=Counter(joiner.member.report.path for joiner in started),
        most_slots_at_a_source=watched.at_sources,
        most_slots_in_the_store=watched.in_store,
        exceeded=tuple(watched.exceeded),
    )


async def measure(joiners: int, patience: float) -> Result:
    """One alone, then all at once in each way. ``patience`` is in seconds."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        async with embedded(Path(directory) / "store") as url:
            usual = Limits(patience=patience, follow=DEADLINE)
            roomy = partial(coordination, url=url, joiners=joiners, sources=max(1, joiners // 50), slots=50)
            any_source = msgspec.structs.replace(usual, share=0.0, stall=DEADLINE)
            single = await coordination("single", url, joiners=1, sources=1, slots=2, limits=usual)
            room = await roomy("room", limits=any_source, held=True)
            share = await roomy("share", limits=usual)
            spread = await coordination("spread", url, joiners=joiners, sources=1, slots=2, limits=usual)
            bus = await RedisBus.open(url)
            store = await bus.describe()
            await bus.aclose()
    cases = (single, room, share, spread)
    own = single.calls.median - sum(single.by_operation.get(name, 0) for name in BESIDE)
    return Result(
        version=__version__,
        python=platform.python_version(),
        store=f"{store.product} {store.version}",
        cpus=len(os.sched_getaffinity(0)),
        load=round(load, 1),
        date=datetime.now(UTC).date().isoformat(),
        cases=cases,
        bars=(
            at_most(f"DISCOVER and HANDSHAKE of {joiners} at once, p99", p99(room.both), BAR_SECONDS * 1000, "ms"),
            at_most(f"calls of one with a single source, {' and '.join(BESIDE)} apart", own, MOST_CALLS),
            at_most("times that more slots were in use than there are", sum(len(case.exceeded) for case in cases), 0),
        ),
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.joiners", description="coordination alone")
    parser.add_argument("--joiners", type=int, default=500)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds before a joiner reads storage")
    parser.add_argument("--json", default="", help="file for the result")
    asked = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    result = anyio.run(measure, asked.joiners, asked.patience)
    print(table(result))
    if asked.json:
        Path(asked.json).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
