"""One worker's parts, connected: two machines, their runners and hands, and the postman between.

Decides which part hears of what. Everything that touches the world is given to it, so that the
same connections hold in a process with sockets and in a test without (``wiring.py``,
``coldstart.testing.harness``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from secrets import SystemRandom
from typing import Any

import anyio
import msgspec

from coldstart import machine, source
from coldstart.chronicle.lines import Header, trace_of, words
from coldstart.claiming import Claiming, Place
from coldstart.departing import Departing
from coldstart.errors import ConfigError
from coldstart.events import (
    DrainRequested,
    Event,
    Expired,
    Started,
    StoreRenewed,
    Timer,
    WeightsChanged,
    WeightsSettled,
)
from coldstart.glance import Watch
from coldstart.group import Group
from coldstart.identity import Shard, lineage
from coldstart.inspecting import Inspector
from coldstart.joining import Joining, Target
from coldstart.journal import Journal
from coldstart.lending import Lending
from coldstart.links.memory import Links
from coldstart.mail import Mail
from coldstart.namesakes import Namesakes
from coldstart.phases.states import Draining, Serving, State
from coldstart.plan import Limits
from coldstart.policies import AtOnce, Prefer, source_bound
from coldstart.ports import Bus, Connecting, Consensus, Growing, Transport
from coldstart.refusals import Refusals
from coldstart.runner import Observer, Runner
from coldstart.scrubbing import Pace
from coldstart.source import Mode, Source, Terms
from coldstart.station import Station, Worker
from coldstart.truths import Truths
from coldstart.voting import Ties, Voting

Part = Callable[[], Coroutine[Any, Any, None]]


class Means(msgspec.Struct, frozen=True):
    """How a worker reaches the others.

    Args:
        bus: None when there is no coordination; ``no_bus`` says why.
        transports: those that can serve the target's device, in order of preference; ``no_transport``: why none can.
        host: the address that the advert shows.
        rack: what workers with a fast way to each other have in common.
        links: what is known of the links to others; None: nothing, and nothing is remembered.
        ordered: whether the order of ``transports`` is the operator's, which no rate changes.
        sealed: whether ``bus`` seals and believes sealed letters only; ``refusals`` counts what it refuses.
    """

    bus: Bus | None
    transports: Mapping[str, Transport]
    host: str
    no_bus: str = ""
    links: Links | None = None
    ordered: bool = False
    rack: str = ""
    sealed: bool = False
    refusals: Refusals | None = None
    no_transport: str = ""


class Policy(msgspec.Struct, frozen=True):
    """How long and how often the joiner tries, whom it prefers, and on what conditions the source lends (seconds)."""

    limits: Limits
    slots: int = 2
    lease: float = 6.0
    prefer: Prefer | None = None
    scrub: float = 0.0
    scrub_share: float = Pace().share
    """See :class:`coldstart.scrubbing.Pace`."""
    at_once: AtOnce = source_bound
    cap: int = 0
    """Bytes per second that the source may send, as its transports were told; 0: not limited."""


class Node:
    """One worker; ``parts`` are to be run until cancelled.

    Args:
        target: what is to be filled, then lent.
        carrier: the current trace context.
        observers: told of each step of the joiner's machine; ``lend_observers`` of the source's.
        chance: where everything random comes from.
        group: the ranks that this one acts as one with; ``consensus`` is the host's own way to agree, if any.
        watch: looks at the module that the target's memory belongs to.
        began: monotonic seconds at which the cold start began; None: now.
        ties: how the group's traces come together; None: they do not.
    """

    def __init__(
        self,
        shard: Shard,
        worker: Worker,
        target: Target,
        means: Means,
        policy: Policy,
        *,
        carrier: Callable[[], str],
        observers: Sequence[Observer[State]],
        lend_observers: Sequence[Observer[Source]],
        chance: Random | None = None,
        group: Group | None = None,
        consensus: Consensus | None = None,
        watch: Watch | None = None,
        began: float | None = None,
        ties: Ties | None = None,
    ) -> None:
        layout, algorithm, names = target.memory.layout, target.digester.algorithm, tuple(means.transports)
        chance = chance or SystemRandom()
        kin = lineage(layout, algorithm, sealed=means.sealed)
        station = Station(shard, kin, worker, means.bus, means.no_bus, chance)
        truths = Truths(station, layout, algorithm)
        self._inspector = Inspector(target.memory, truths, target.digester, watch)
        scrub = Pace(policy.scrub, policy.scrub_share, layout.chunks, self._inspector.at_once)
        terms = Terms(station.lineage, policy.slots, names, policy.lease, drain=policy.limits.drain, scrub=scrub)
        storage = target.storage
        connecting = tuple(name for name, each in means.transports.items() if isinstance(each, Connecting))
        growing = tuple(name for name, each in means.transports.items() if isinstance(each, Growing))
        links = means.links or Links(None, target.memory.device)
        self._started = Started(
            layout.chunks,
            storage.partial,
            layout.chunk_bytes,
            names,
            connecting,
            growing,
            loaded=storage.loaded,
            storage_rate=links.storage(target.mount),
            abortable=tuple(name for name, each in means.transports.items() if each.traits.abortable),
        )
        favours = dict if means.ordered else partial(links.favours, names)
        self._claiming = Claiming(
            station, truths, names, carrier, favours, Place(means.host, means.rack, links.best_by_host), policy.prefer,
            means.no_transport,
        )  # fmt: skip
        self._voting: Voting | None = None
        if group is not None and group.size > 1:
            self._voting = Voting(group, station, policy.limits, consensus, ties)
        self._joining = Joining(target, self._claiming, truths, means.transports, links, self._voting)
        self._departing = Departing(
            station, in_flight=lambda: len(self.source.state.grants), serves=self._serves, drain=self.drain
        )
        self._namesakes: Namesakes | None = None
        if means.bus is not None:
            self._namesakes = Namesakes(
                means.bus, station, host=means.host, lease=policy.lease, serves=self._serves, drain=self.drain
            )
        self._lending = Lending(
            station,
            target.memory,
            truths,
            self._inspector,
            means.transports,
            terms,
            host=means.host,
            rack=means.rack,
            received=lambda: links.received,
            advertised=self._claiming.resign,
            left=self._departing.left,
            cap=policy.cap,
            renewed=_nothing if self._namesakes is None else self._namesakes.renewed,
        )
        self._journal: Journal | None = None
        told, lend_told = (*observers,), (*lend_observers,)
        if means.bus is not None:
            header = _header(shard, worker, means.host, carrier(), group)
            began = anyio.current_time() if began is None else began
            refused = dict if means.refusals is None else means.refusals.counts
            self._journal = Journal(means.bus, header, layout, began, refused)
            told, lend_told = (*told, self._journal.joiner), (*lend_told, self._journal.source)
        self.joiner: Runner[State] = Runner(
            machine.initial(policy.limits, group, policy.at_once),
            machine.step,
            machine.ended,
            self._joining.perform,
            told,
        )
        self.source: Runner[Source] = Runner(
            Source(terms), source.step, _closed, self._lending.perform, lend_told
        )
        self._claiming.post = self._joining.post = self._lending.post_to_joiner = self.joiner.post
        self._lending.post = self._joining.post_to_source = self.source.post
        self.parts: tuple[Part, ...] = (self.joiner.run, self.source.run, links.run)
        if self._voting is not None:
            self._voting.post = self.joiner.post
            self.parts += (self._voting.run,)
        if means.bus is not None and self._journal is not None and self._namesakes is not None:
            self.parts += (self._mail(means.bus, station, self._namesakes).run, self._departing.run, self._journal.run)
            self.parts += (self._namesakes.look, self._namesakes.answer)

    def _mail(self, bus: Bus, station: Station, namesakes: Namesakes) -> Mail:
        return Mail(
            bus,
            station.key,
            station.worker.inbox,
            to_joiner=self._claiming.letter,
            granted=self._claiming.granted,
            to_source=self._lending.letter,
            to_host=self._departing.asked,
            to_namesakes=namesakes.letter,
            store_renewed=lambda: self.source.post(StoreRenewed()),
        )

    def start(self) -> None:
        """Set off: look for the weights."""
        self.joiner.post(self._started)

    def drain(self, *, at_once: bool = False) -> None:
        """End the cold start, or stop lending; ``at_once`` leaves transfers in flight no time."""
        if at_once:
            self.source.post(DrainRequested())
            self.source.post(Expired(Timer.DRAIN))
        self.joiner.post(DrainRequested())

    def withhold(self) -> None:
        """The weights are about to change: end all reading of them."""
        self.source.post(WeightsChanged())

    def settle(self) -> None:
        """The change is over: lend again if the weights are what they were."""
        self.source.post(WeightsSettled())

    async def written(self) -> None:
        """Wait until the journal has been written, or cannot be; must be given a limit."""
        if self._journal is not None:
            await self._journal.written()

    @property
    def lost(self) -> ConfigError | None:
        """Why it had to leave although it served: another one has its name."""
        return None if self._namesakes is None else self._namesakes.lost

    def _serves(self) -> bool:
        return isinstance(self.joiner.state, Serving | Draining)

    @property
    def read(self) -> bool:
        """Whether somebody may read these weights now, or soon, we ourselves among them."""
        source = self.source.state
        return source.mode in (Mode.SILENT, Mode.OPEN) or bool(source.grants) or self._inspector.reading

    def sever(self) -> None:
        """Part what is tied in circles, so that the weights' memory is free as soon as nobody holds the module."""
        self._claiming.post = self._joining.post = self._joining.post_to_source = _nowhere
        self._lending.post = self._lending.post_to_joiner = _nowhere
        if self._voting is not None:
            self._voting.post = _nowhere
        self.parts = ()
        self._departing.forget()
        if self._namesakes is not None:
            self._namesakes.forget()
        self.joiner.forget()
        self.source.forget()


def _header(shard: Shard, worker: Worker, host: str, parent: str, group: Group | None) -> Header:
    """Of which cold start the journal's lines are."""
    return Header(
        start=worker.incarnation,
        worker=worker.name,
        shard=shard.key,
        model=words(str(shard)),
        host=words(host),
        rank=str(shard.rank),
        trace=trace_of(parent),
        group="" if group is None or group.size == 1 else group.name,
        index=0 if group is None else group.index,
        size=1 if group is None else group.size,
    )


def _closed(state: Source) -> bool:
    return state.mode is Mode.CLOSED


def _nowhere(event: Event) -> None:
    return


def _nothing() -> None:
    return
