"""Puts the parts of one worker together: ports get their adapters, machines get their hands.

Decides which bus, which transports and which address a worker uses. The only module that names
adapters, and it imports them late and in worker threads, because torch and redis are slow to
import. What the whole does is ``replica.py``'s matter.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from coldstart import machine, registry, source
from coldstart.config import Settings
from coldstart.errors import BusError, PluginUnavailable
from coldstart.events import Drained, DrainRequested, FleetChanged, LendingStarted, StoreRenewed
from coldstart.joining import Joining, Worker
from coldstart.journal import Journal
from coldstart.lending import Lending
from coldstart.mail import Mail
from coldstart.phases.states import State
from coldstart.ports import Bus, Transport, TransportSettings
from coldstart.report import Recorder
from coldstart.runner import Observer, Runner
from coldstart.source import Mode, Source, Terms
from coldstart.telemetry import JoinerTrace, SourceTrace, logger

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Built

LOOPBACK = "127.0.0.1"
WARM_SECONDS = 0.25
"""A store that takes longer to connect to is left to the first claim, whose time is patience's."""


class Wired:
    """One worker's parts, ready to run; closed with :meth:`close`."""

    def __init__(
        self,
        built: Built,
        recorder: Recorder,
        joiner: Runner[State],
        source: Runner[Source],
        mail: Mail | None,
        journal: Journal | None,
        resources: AsyncExitStack,
    ) -> None:
        self.built, self.recorder = built, recorder
        self.joiner, self.source = joiner, source
        self.mail, self.journal = mail, journal
        self._resources = resources

    async def close(self) -> None:
        """Release sockets, threads and connections."""
        await self._resources.aclose()


async def wire(
    build: Callable[[], Built],
    worker: str,
    settings: Settings,
    bus: Bus | None,
    began: float,
    observe: Observer[State],
) -> Wired:
    """Build the module, reach the bus and the transports, and connect both machines to them.

    Args:
        build: makes module, arena and the rest; runs in a worker thread.
        bus: the caller's own; else one is opened as the settings say.
        began: monotonic seconds at which the cold start began.
        observe: told of each step of the joiner, after report and trace.
    """
    async with AsyncExitStack() as resources:
        await anyio.to_thread.run_sync(import_module, "structlog")  # slow the first time, and telemetry's
        trace = JoinerTrace(worker)
        resources.push(_end_trace(trace))
        with trace.building():
            built, (reached, no_bus) = await _side_by_side(build, resources, settings, bus)
        transports = await _transports(resources, settings, reached, built.arena.device)
        who = Worker(worker, secrets.token_hex(6))
        shard, layout = built.shard, built.arena.layout
        recorder = Recorder(worker, shard.key, str(shard), layout, began)
        recorder.built(anyio.current_time() - began)
        trace.identify(shard.key, str(shard))
        lend_trace = SourceTrace(worker, shard.key)
        resources.callback(lend_trace.end)
        joining = Joining(
            shard=shard,
            worker=who,
            bus=reached,
            no_bus=no_bus,
            transports=transports,
            memory=built.arena,
            digester=built.digester,
            storage=built.storage,
            self_check=built.self_check,
            carrier=trace.carrier,
            replace_memory=built.arena.quarantine,
            start_lending=lambda: lender.post(LendingStarted()),
            stop_lending=lambda: lender.post(DrainRequested()),
        )
        terms = Terms(layout.digest, settings.slots, tuple(transports), lease=settings.lease, drain=settings.drain)
        lending = Lending(
            shard=shard,
            worker=who,
            bus=reached,
            transports=transports,
            memory=built.arena,
            terms=terms,
            host=_host(settings, reached),
            truth=lambda: joining.truth,
            advertised=joining.resign,
            report_drained=lambda: joiner.post(Drained()),
        )
        journal = Journal(reached, shard.key, worker) if reached is not None else None
        observers = (recorder, trace, observe) if journal is None else (recorder, trace, journal, observe)
        joiner = Runner(machine.initial(settings.limits), machine.step, machine.ended, joining.perform, observers)
        lender = Runner(
            Source(terms), source.step, lambda state: state.mode is Mode.CLOSED, lending.perform, (lend_trace,)
        )
        joining.post, lending.post = joiner.post, lender.post
        mail = None
        if reached is not None:
            mail = Mail(
                reached,
                shard.key,
                who.inbox,
                to_joiner=joining.letter,
                to_source=lending.letter,
                fleet_changed=lambda: joiner.post(FleetChanged()),
                store_renewed=lambda: lender.post(StoreRenewed()),
            )
        return Wired(built, recorder, joiner, lender, mail, journal, resources.pop_all())


def _end_trace(trace: JoinerTrace) -> Callable[[type | None, BaseException | None, object], None]:
    """An exit that ends the trace, as an error where there was one."""

    def leave(kind: type | None, error: BaseException | None, where: object) -> None:
        trace.end(error)

    return leave


async def _side_by_side(
    build: Callable[[], Built], resources: AsyncExitStack, settings: Settings, bus: Bus | None
) -> tuple[Built, tuple[Bus | None, str]]:
    """Build the skeleton and reach the bus at the same time."""
    reached: list[tuple[Bus | None, str]] = []
    failed: list[Exception] = []

    async def reach() -> None:
        try:
            reached.append((bus, "") if bus is not None else await _reach_bus(resources, settings))
        except Exception as error:  # raised below, once the build has ended
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reach)
        try:
            built = await anyio.to_thread.run_sync(build, abandon_on_cancel=True)
        except Exception as error:
            failed.insert(0, error)
    if failed:
        raise failed[0]
    return built, reached[0]


async def _reach_bus(resources: AsyncExitStack, settings: Settings) -> tuple[Bus | None, str]:
    """The bus to use, or why there is none. A store that is down now may come up later."""
    if settings.redis == "none":
        return None, "coordination is switched off"
    try:
        return await resources.enter_async_context(open_bus(settings)), ""
    except (BusError, PluginUnavailable) as error:
        logger().warning("no coordination", reason=str(error))
        return None, str(error)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[str]:
    """The URL of the store: the one given, or that of this machine's embedded Valkey, kept up for the block."""
    if settings.redis:
        yield settings.redis
        return
    embedded = await anyio.to_thread.run_sync(import_module, "coldstart.bus.embedded")
    async with embedded.embedded(settings.embedded_directory) as url:
        yield url


@asynccontextmanager
async def open_bus(settings: Settings, *, probe: bool = False) -> AsyncIterator[Bus]:
    """A bus on the store that the settings name.

    Args:
        probe: connect now, so that a store that is down is an error here and not at first use.

    Raises:
        ConfigError: malformed URL, unusable directory.
        BusError, PluginUnavailable: the embedded Valkey does not start; the store does not answer.
    """
    async with open_store(settings) as url:
        redis = await anyio.to_thread.run_sync(import_module, "coldstart.bus.redis")
        bus = await redis.RedisBus.open(url, settings.namespace, probe=probe)
        try:
            if not probe:
                with anyio.move_on_after(WARM_SECONDS), suppress(BusError):
                    await bus.warm()
            yield bus
        finally:
            await bus.aclose()


async def _transports(
    resources: AsyncExitStack, settings: Settings, bus: Bus | None, device: str
) -> Mapping[str, Transport]:
    """Open the transports asked for by name, or all installed ones that can serve ``device``."""
    chosen = settings.transport_names
    kind = device.partition(":")[0]
    own = TransportSettings(
        host=_host(settings, bus),
        connections=settings.connections,
        lend_bytes_per_second=settings.lend_gbps * 1e9,
        io_seconds=settings.io_seconds,
    )
    opened: dict[str, Transport] = {}
    for name in chosen or await anyio.to_thread.run_sync(registry.names, "transports"):
        try:
            factory = await anyio.to_thread.run_sync(registry.transport, name)
        except PluginUnavailable as error:
            if chosen:
                raise
            logger().info("transport left out", transport=name, reason=str(error))
            continue
        transport = factory.open(own)
        if not transport.traits.needs_peer or kind not in transport.traits.device_kinds:
            await transport.aclose()
            if chosen:
                raise PluginUnavailable(f"transport {name!r} cannot serve {device} memory between peers")
            continue
        resources.push_async_callback(transport.aclose)
        opened[name] = transport
    return opened


def _host(settings: Settings, bus: Bus | None) -> str:
    return settings.host or (bus.local_address if bus is not None else LOOPBACK)
