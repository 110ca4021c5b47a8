"""Gives a worker's node its adapters: a module to fill, a bus, transports.

Decides which bus, which transports and which address a worker uses. The only module that names
adapters, and it imports them late and in worker threads, because torch and redis are slow to
import. How the parts are connected is in ``node.py``; what the whole does is ``session.py``'s matter.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from coldstart import registry
from coldstart.bus.address import Tls
from coldstart.config import Settings
from coldstart.errors import BusError, ConfigError, PluginUnavailable, in_a_line
from coldstart.group import Group
from coldstart.instruments import Instruments, Outcome, instruments
from coldstart.joining import Target
from coldstart.journal import tell_unbuilt
from coldstart.links.memory import Links, recall
from coldstart.links.mounts import storage_of
from coldstart.links.rates import Floors, Path, Rate
from coldstart.membership import Membership, membership
from coldstart.metrics import JoinerMetrics, SourceMetrics
from coldstart.node import Means, Node, Policy
from coldstart.phases.states import State
from coldstart.policies import AtOnce, Prefer, source_bound
from coldstart.ports import Bus, Consensus, Link, Preparing, Transport, TransportSettings
from coldstart.recorder import Recorder
from coldstart.runner import Observer
from coldstart.source import Source
from coldstart.station import Worker
from coldstart.telemetry import JoinerTrace, SourceTrace, logger
from coldstart.voting import Ties

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Built

LOOPBACK = "127.0.0.1"
LINKS: tuple[Link, ...] = ("nvlink", "rdma", "memory", "tcp", "storage")
"""Kinds of links, the quickest first, as far as the kind says."""
WARM_SECONDS = 0.25
"""A store that takes longer to connect to is left to the first claim, whose time is patience's."""


Build = Callable[[], "Built"]
"""Makes module, arena and the rest; blocks, for a worker thread."""


class Wired:
    """One worker's node with the module it fills, ready to run; closed with :meth:`close`."""

    def __init__(
        self,
        built: Built,
        recorder: Recorder,
        trace: JoinerTrace,
        node: Node,
        transports: Mapping[str, Transport],
        resources: AsyncExitStack,
    ) -> None:
        self.built, self.recorder, self.trace, self.node = built, recorder, trace, node
        self._transports, self._resources = transports, resources

    async def prepare(self) -> None:
        """Let transports do what is slow the first time, while a source is being sought."""
        for name, transport in self._transports.items():
            if isinstance(transport, Preparing):
                try:
                    await transport.prepare(self.built.arena)
                except Exception as error:  # a plugin may raise anything; pull and offer will tell
                    logger().warning("transport not prepared", transport=name, reason=repr(error))

    async def close(self) -> None:
        """Release sockets, threads and connections."""
        try:
            await self._resources.aclose()
        finally:
            self.node.sever()


async def wire(
    build: Build,
    worker: str,
    device: str,
    settings: Settings,
    bus: Bus | None,
    began: float,
    observe: Observer[State],
    lend_observe: Observer[Source],
    group: Group | None = None,
    consensus: Consensus | None = None,
    prefer: Prefer | None = None,
    at_once: AtOnce = source_bound,
) -> Wired:
    """Build the module, reach the bus and the transports, and connect both machines to them.

    Args:
        device: where the weights are to be.
        bus: the caller's own; else one is opened as the settings say.
        began: monotonic seconds at which the cold start began.
        observe: told of each step of the joiner, after report and trace; ``lend_observe`` of the source.
        group: the ranks that this one acts as one with; ``consensus`` is the host's own way to agree, if any.
        prefer: the host's choice among sources, if any; ``at_once``: from how many it would receive.
    """
    async with AsyncExitStack() as resources:
        await anyio.to_thread.run_sync(import_module, "structlog")  # slow the first time, and telemetry's
        floors = Floors(settings.warn_gbps, settings.warn_share)
        trace = JoinerTrace(worker, floors)
        measured = instruments()
        resources.push(_end(trace, measured))
        me = Worker(worker, secrets.token_hex(6))
        member = await membership(settings, me.inbox)
        with trace.building():
            built, (reached, no_bus, opened, rates) = await _side_by_side(
                build, device, resources, settings, member, bus, me, began
            )
        transports = opened.transports
        shard, arena = built.shard, built.arena
        recorder = Recorder(worker, shard.key, str(shard), arena.layout, began, floors, member.refusals.counts)
        recorder.built(anyio.current_time() - began, built.storage.reason, built.notice)
        trace.identify(shard, me.incarnation, arena.layout, began, group)
        mount = await anyio.to_thread.run_sync(storage_of, built.checkpoint)
        links = Links(settings.links_directory, arena.device, rates)
        metrics = JoinerMetrics(measured, str(shard), recorder.report, transports, floors)
        lend_trace = SourceTrace(worker, shard.key, trace.context)
        lend_metrics = SourceMetrics(measured, str(shard), transports)
        for each in (lend_trace, metrics, lend_metrics):
            resources.callback(each.end)
        node = Node(
            shard,
            me,
            Target(arena, built.digester, built.storage, built.self_check, arena.quarantine, built.probe, mount),
            Means(
                reached,
                transports,
                _host(settings, reached),
                no_bus,
                links,
                ordered=bool(settings.transport_names),
                rack=settings.rack,
                sealed=member.keyed,
                refusals=member.refusals,
                no_transport=opened.none,
            ),
            Policy(
                settings.limits,
                settings.slots,
                settings.lease,
                prefer,
                settings.scrub,
                settings.scrub_share,
                at_once,
                cap=round(settings.lend_gbps * 1e9),
            ),
            carrier=trace.carrier,
            observers=(recorder, trace, metrics, observe),
            lend_observers=(lend_trace, lend_metrics, lend_observe),
            group=group,
            consensus=consensus,
            watch=built.watch,
            began=began,
            ties=Ties(trace.own, trace.link) if trace.own else None,
        )
        return Wired(built, recorder, trace, node, transports, resources.pop_all())


def _end(trace: JoinerTrace, measured: Instruments) -> Callable[[type | None, BaseException | None, object], None]:
    """An exit that ends the trace, and counts a start that has not come as far as its machine."""

    def leave(kind: type | None, error: BaseException | None, where: object) -> None:
        trace.end(error)
        if error is not None:
            measured.unbuilt(Outcome.FAILED if isinstance(error, Exception) else Outcome.CANCELLED)

    return leave


class Opened(NamedTuple):
    """The transports to use, in order of preference; ``none``: why there are none, and where to look."""

    transports: Mapping[str, Transport]
    none: str = ""


Reached = tuple[Bus | None, str, Opened, Mapping[Path, Rate]]
"""The bus, or why there is none; the transports, and how fast they were before."""


async def _side_by_side(
    build: Build,
    device: str,
    resources: AsyncExitStack,
    settings: Settings,
    member: Membership,
    bus: Bus | None,
    me: Worker,
    began: float,
) -> tuple[Built, Reached]:
    """Build the skeleton; reach the bus and open the transports meanwhile."""
    reached: list[Reached] = []
    failed: list[Exception] = []

    async def reach() -> None:
        try:
            found, no_bus = (bus, "") if bus is not None else await _reach_bus(resources, settings)
            found = None if found is None else member.sealed(found)
            opened = await _transports(resources, settings, found, device, member)
            reached.append((found, no_bus, opened, await recall(settings.links_directory)))
        except Exception as error:  # the operator's mistake: no need to wait for the build
            failed.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reach)
        try:
            built = await anyio.to_thread.run_sync(build, abandon_on_cancel=True)
        except Exception as error:
            failed.insert(0, error)
    if failed:
        if reached and (found := reached[0][0]) is not None:
            await tell_unbuilt(found, me.incarnation, me.name, failed[0], anyio.current_time() - began)
        raise failed[0]
    return built, reached[0]


async def _reach_bus(resources: AsyncExitStack, settings: Settings) -> tuple[Bus | None, str]:
    """The bus to use, or why there is none. A store that is down now may come up later."""
    if settings.redis == "none":
        return None, "coordination is switched off"
    try:
        return await resources.enter_async_context(_open_bus(settings)), ""
    except (BusError, PluginUnavailable) as error:
        logger().warning("no coordination", reason=str(error))
        return None, str(error)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[str]:
    """The URL of the store: the one given, or that of this machine's embedded Valkey, attached to for the block."""
    if settings.redis:
        yield settings.redis
        return
    embedded = await anyio.to_thread.run_sync(import_module, "coldstart.bus.embedded")
    async with embedded.embedded(settings.embedded_directory) as url:
        yield url


@asynccontextmanager
async def open_bus(settings: Settings, *, probe: bool = False) -> AsyncIterator[Bus]:
    """A bus on the store that the settings name, for tools: sealed where the settings name keys.

    Args:
        probe: connect now, so that a store that is down is an error here and not at first use.

    Raises:
        ConfigError: malformed URL, unusable directory, unusable keys.
        BusError, PluginUnavailable: the embedded Valkey does not start; the store does not answer.
    """
    member = await membership(settings, f"tool.{secrets.token_hex(6)}")
    async with _open_bus(settings, probe=probe) as bus:
        yield member.sealed(bus)


@asynccontextmanager
async def _open_bus(settings: Settings, *, probe: bool = False) -> AsyncIterator[Bus]:
    """The bus itself, as it is for fleets without keys."""
    tls = Tls(settings.redis_ca, settings.redis_cert, settings.redis_cert_key)
    async with open_store(settings) as url:
        redis = await anyio.to_thread.run_sync(import_module, "coldstart.bus.redis")
        bus = await redis.RedisBus.open(url, settings.namespace, probe=probe, tls=tls)
        try:
            if not probe:
                with anyio.move_on_after(WARM_SECONDS), suppress(BusError):
                    await bus.warm()
            yield bus
        finally:
            await bus.aclose()


async def _transports(
    resources: AsyncExitStack, settings: Settings, bus: Bus | None, device: str, member: Membership
) -> Opened:
    """Open the transports asked for by name, or all installed ones that can serve ``device``."""
    chosen = settings.transport_names
    kind = device.partition(":")[0]
    own = TransportSettings(
        host=_host(settings, bus),
        connections=settings.connections,
        lend_bytes_per_second=settings.lend_gbps * 1e9,
        io_seconds=settings.io_seconds,
        device=device,
        signer=member.signer,
    )
    opened: dict[str, Transport] = {}
    left_out: dict[str, str] = {}
    for name in chosen or await anyio.to_thread.run_sync(registry.names, "transports"):
        try:
            factory = await anyio.to_thread.run_sync(registry.transport, name)
        except PluginUnavailable as error:
            if chosen:
                raise
            logger().info("transport left out", transport=name, reason=str(error))
            left_out[name] = error.what
            continue
        try:
            transport = await anyio.to_thread.run_sync(factory.open, own)  # may look a host name up
            resources.push_async_callback(transport.aclose)
            fits = transport.traits.needs_peer and kind in transport.traits.device_kinds
        except ConfigError:
            raise
        except Exception as error:  # a plugin may raise anything, chosen or not
            if chosen:
                raise PluginUnavailable(f"transport {name!r} does not open: {error!r}") from error
            logger().warning("transport left out", transport=name, reason=repr(error))
            left_out[name] = f"does not open: {in_a_line(error)}"
            continue
        if not fits:
            if chosen:
                raise PluginUnavailable(f"transport {name!r} cannot serve {device} memory between peers")
            if transport.traits.needs_peer:
                left_out[name] = f"serves {' and '.join(transport.traits.device_kinds)} memory"
            continue
        opened[name] = transport
    if not opened:
        return Opened({}, _none(device, left_out))
    return Opened(opened if chosen else dict(sorted(opened.items(), key=_preference)))


def _none(device: str, left_out: Mapping[str, str]) -> str:
    """Why no bytes can come from peers; said once, here, and as the reason for reading storage."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "none is installed"
    none = f"no transport moves {device} memory between peers here ({reasons}); see 'coldstart doctor'"
    logger().warning("no peer can be read", reason=none)
    return none


def _preference(item: tuple[str, Transport]) -> tuple[int, bool, str]:
    """Without the operator's order: the quicker kind of link first; among equals ours, then by name."""
    name, transport = item
    return LINKS.index(transport.traits.link), name != "tcp", name


def _host(settings: Settings, bus: Bus | None) -> str:
    return settings.host or (bus.local_address if bus is not None else LOOPBACK)
