"""The joiner's dealings with sources over the bus: claims, letters, slots, and the loader's lease.

Decides what proves that a letter means a transfer of ours (our random number plus one), and
what is said to a source at the end. It must not know bytes, digests or phases; outcomes are
events for the joiner's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, assert_never

import anyio
import msgspec

from coldstart import effects, events
from coldstart.errors import BusError
from coldstart.events import AttemptEvent, Event
from coldstart.messages import Accept, Done, Doubt, Hello, Offer, Progress, Refusal, encode
from coldstart.plan import Chunks
from coldstart.policies import Here, Prefer, heard
from coldstart.ports import Advert, Bus, Claim, ClaimOutcome, Conflicted, Deferred, Elected, Granted
from coldstart.station import Station
from coldstart.telemetry import logger
from coldstart.truths import Truths

LEAD_SECONDS = 3.0
"""Life of a loader's lease, renewed three times as often: a dead loader is replaced after it."""
SLOT_SECONDS = 30.0
"""Life of a granted slot that its source has not heard of."""
QUEUE_SECONDS = 5.0
"""A place in line is kept for so long without asking again."""
FIRST_SIGN = 1.0
"""When a joiner first repeats that it is alive; most transfers are over by then."""
SIGN_OF_LIFE = 4.0
"""A joiner says that it is alive so often; sources wait several times as long."""


_Letter = Offer | Progress | Refusal


class _Transfer(msgspec.Struct):
    """One claim of ours, as we remember it."""

    ident: str
    number: int
    source: Advert | None = None
    granted: bool = False
    """There is, or was, a source for it."""
    waiting: bool = False
    over: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set when the source need not hear from us any more."""
    inbox: str = ""
    """Of the source that the store has sent our hello to."""
    early: list[_Letter] | None = []
    """Letters of a source that was faster than the answer to the claim; None once that is here."""


class Place(NamedTuple):
    """Where a worker is, as adverts say it, and the rates of the links to it, by host, as far as they are known."""

    host: str = ""
    rack: str = ""
    rates: Callable[[], Mapping[str, float]] = dict


class Claiming:
    """One joiner's claims.

    Args:
        transports: names of ours, in order of preference; ``no_transport``: why there are none.
        carrier: the current trace context, for the source.
        place: where we are.
        prefer: the operator's choice among sources, if any.
        favours: which other order is wanted from some hosts.
    """

    def __init__(
        self,
        station: Station,
        truths: Truths,
        transports: tuple[str, ...],
        carrier: Callable[[], str],
        favours: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        place: Place | None = None,
        prefer: Prefer | None = None,
        no_transport: str = "",
    ) -> None:
        self._station, self._truths = station, truths
        self._no_transport = no_transport
        self._transports, self._carrier, self._favours = transports, carrier, favours
        self._place, self._prefer = place or Place(), prefer
        self._transfers: dict[int, _Transfer] = {}
        self._leading = self._admitted = False
        self.post: Callable[[Event], None] = lambda event: None
        self.taken: Callable[[int], int] = lambda attempt: 0
        """How many bytes an attempt's source has given; set by assignment."""

    async def claim(self, effect: effects.ClaimSource) -> None:
        """Claim a source; posts what came of it. Raises BusError."""
        station, attempt = self._station, effect.attempt
        if station.bus is None or self._no_transport:
            self.post(events.ClaimFailed(attempt, station.no_bus or self._no_transport))
            return
        transfer = self._transfers.get(attempt) or _Transfer(station.nonce(), station.number())
        transports = tuple(name for name in self._transports if name not in effect.without)
        self._transfers[attempt] = transfer
        preferred = await self._preferred(station.bus, effect.have)
        outcome = await station.bus.claim(
            Claim(
                shard=station.key,
                layout=station.lineage,
                worker=station.worker.name,
                transfer=transfer.ident,
                hello=encode(self._hello(transfer, transports)),
                exclude=(station.worker.name, *effect.exclude),
                transports=transports,
                slot_seconds=SLOT_SECONDS,
                lead_seconds=LEAD_SECONDS if effect.part < 0 and effect.queue else 0.0,
                luck=station.chance.getrandbits(31),
                have=effect.have,
                host=self._place.host,
                rack=self._place.rack,
                inbox=station.worker.inbox,
                queue_seconds=QUEUE_SECONDS if effect.queue else 0.0,
                share_seconds=effect.share,
                crowd=effect.crowd,
                part=effect.part,
                prefer=preferred,
            )
        )
        await self._answered(outcome, attempt, transfer)

    async def _preferred(self, bus: Bus, have: int) -> tuple[str, ...]:
        """What the operator's policy makes of the adverts; one that breaks has no say."""
        if self._prefer is None:
            return ()
        worker = self._station.worker.name
        here = Here(worker, self._place.host, self._place.rack, have, self._place.rates())
        try:
            adverts = [advert for advert in await bus.adverts(self._station.key) if not advert.unproven]
            return heard(self._prefer, here, adverts)
        except BusError:
            raise
        except Exception as error:  # an operator's function may raise anything
            logger().warning("policy broke", error=repr(error))
            return ()

    async def _answered(self, outcome: ClaimOutcome, attempt: int, transfer: _Transfer) -> None:
        transfer.waiting = isinstance(outcome, Deferred)
        if isinstance(outcome, Granted) and transfer.granted:
            return  # a letter has said so before
        self.post(await self._event_of(outcome, attempt, transfer))
        if transfer.source is None and not transfer.waiting:
            self._transfers.pop(attempt, None)
        # Whoever stands in line asks again, and a source may be faster than that answer, too.
        early, transfer.early = transfer.early or (), [] if transfer.waiting else None
        for letter in early:
            self._hear(attempt, transfer, letter)

    def granted(self, ident: str, outcome: Granted) -> None:
        """The store's letter: the claim that stood in line has got a source."""
        for attempt, transfer in self._transfers.items():
            if transfer.ident == ident:
                transfer.waiting = False
                if not transfer.granted:
                    self.post(self._taken(outcome, attempt, transfer))
                    early, transfer.early = transfer.early or (), None
                    for letter in early:
                        self._hear(attempt, transfer, letter)
                return
        logger().warning("stray grant dropped", transfer=ident)

    def _taken(self, outcome: Granted, attempt: int, transfer: _Transfer) -> Event:
        transfer.source, transfer.inbox, transfer.granted = outcome.source, outcome.source.inbox, True
        rate = self._rate_from((outcome.source.host,))
        return events.SourceClaimed(attempt, outcome.source, outcome.root, outcome.skipped, outcome.part, rate)

    def _rate_from(self, hosts: Sequence[str]) -> float:
        """The best that any link from ``hosts`` has given; 0: not known."""
        rates = self._place.rates() if hosts else {}
        return max((rates.get(host, 0.0) for host in hosts), default=0.0)

    def _hello(self, transfer: _Transfer, transports: tuple[str, ...]) -> Hello:
        return Hello(
            transfer=transfer.ident,
            joiner=self._station.worker.inbox,
            number=transfer.number,
            layout=self._station.lineage,
            transports=transports,
            trace=self._carrier(),
            favours=dict(self._favours()),
        )

    async def _event_of(self, outcome: ClaimOutcome, attempt: int, transfer: _Transfer) -> Event:
        match outcome:
            case Granted():
                return self._taken(outcome, attempt, transfer)
            case Elected():
                self._leading = True
                skipped = await self._truths.explained(outcome.skipped)
                return events.LoaderElected(attempt, outcome.root, skipped)
            case Deferred():
                rate = self._rate_from(outcome.queue.hosts if outcome.queue is not None else ())
                return events.ClaimDeferred(attempt, outcome.leader, outcome.skipped, outcome.queue, rate)
            case Conflicted():
                return events.TruthDisputed(attempt, outcome.roots)
            case _:
                assert_never(outcome)

    def letter(self, message: _Letter) -> None:
        """A source's letter: an event if it proves that it means a transfer of ours, else nothing."""
        for attempt, transfer in self._transfers.items():
            if transfer.ident == message.transfer and message.answer == transfer.number + 1:
                if transfer.early is None:
                    self._hear(attempt, transfer, message)
                else:
                    transfer.early.append(message)
                return
        _drop(message)

    def _hear(self, attempt: int, transfer: _Transfer, message: _Letter) -> None:
        """A letter about our claim; but from another source it means another grant than ours."""
        if message.source in ("", transfer.inbox):
            self.post(_letter_event(message, attempt))
        else:
            _drop(message)

    async def show_life(self, effect: effects.ShowLife) -> None:
        """Accept the offer, and again until the slot is given back. A running pull needs no bus.

        The first time after a while: a source waits longer, and what is over by then needs no letter.
        """
        station, transfer = self._station, self._transfers[effect.attempt]
        accept = encode(Accept(transfer=transfer.ident, answer=effect.number + 1))
        with anyio.move_on_after(FIRST_SIGN):
            await transfer.over.wait()
        while station.bus is not None and not transfer.over.is_set():
            try:
                await station.bus.send(station.key, effect.source.inbox, accept, station.nonce())
            except BusError as error:
                logger().warning("sign of life not sent", source=effect.source.worker, error=str(error))
            with anyio.move_on_after(SIGN_OF_LIFE):
                await transfer.over.wait()

    async def release(self, attempt: int, outcome: str) -> Advert | None:
        """Give the attempt's slot back, once; returns the source's advert as it stands now. Raises BusError."""
        station, transfer = self._station, self._transfers.get(attempt)
        if transfer is None or station.bus is None or not (transfer.source or transfer.waiting):
            return None
        source = transfer.source.worker if transfer.source is not None else ""
        transfer.source, transfer.waiting = None, False
        transfer.over.set()
        done = encode(Done(transfer=transfer.ident, outcome=outcome[:512], taken=self.taken(attempt)))
        return await station.bus.release(station.key, source, transfer.ident, done)

    async def strike(self, effect: effects.Strike) -> None:
        """Warn the others of a source that gave us wrong bytes, and the source itself. Raises BusError."""
        station, transfer, source = self._station, self._transfers.get(effect.attempt), effect.source
        if station.bus is not None and transfer is not None:
            doubt = encode(Doubt(transfer=transfer.ident, chunk=effect.chunk))
            await station.bus.strike(station.key, source.worker, source.incarnation, source.proof, doubt)

    async def changed(self, attempt: int, source: Advert) -> str:
        """Give the slot back; returns how the source changed since the claim, if it did.

        A source that is gone or a bus that is down cannot tell; the digests have told already.
        """
        try:
            now = await self.release(attempt, "ok")
        except BusError:
            return ""
        if now is None or now.incarnation != source.incarnation or now.generation == source.generation:
            return ""
        return f"weights of {source.worker} changed while they were read"

    async def keep_lead(self, progress: Callable[[], int] | None = None) -> None:
        """Until cancelled: others must go on waiting for us, as long as ``progress`` grows (if given)."""
        seen = -1
        while True:
            now = progress() if progress is not None else seen + 1
            if self._leading and now != seen:
                seen = now
                try:
                    await self._lead(LEAD_SECONDS)
                except BusError as error:
                    logger().warning("loader's lease not renewed", error=str(error))
            await anyio.sleep(LEAD_SECONDS / 3)

    async def admit(self, effect: effects.Admit) -> None:
        """Ask the store whether we may read storage beside others; posts its answer. Raises BusError."""
        station, attempt = self._station, effect.attempt
        if station.bus is None:
            self.post(events.StorageRefused(attempt))
            return
        name, most, seconds = station.worker.name, effect.most, effect.seconds
        answer = await station.bus.admit(station.key, station.lineage, name, most, seconds)
        self._admitted = answer.admitted
        kind = events.StorageOpened if answer.admitted else events.StorageRefused
        self.post(kind(attempt, answer.readers))

    async def leave_storage(self) -> None:
        """Make room for others, where we were admitted. Raises BusError."""
        station = self._station
        if self._admitted and station.bus is not None:
            self._admitted = False
            await station.bus.admit(station.key, station.lineage, station.worker.name, 0, 0.0)

    async def resign(self) -> None:
        """Give up the loader's lease: others may read storage, or find us advertised. Raises BusError."""
        if self._leading:
            self._leading = False
            await self._lead(0)

    async def _lead(self, seconds: float) -> None:
        station = self._station
        if station.bus is not None:
            await station.bus.lead(station.key, station.lineage, station.worker.name, seconds)


def _drop(message: _Letter) -> None:
    logger().warning("stray letter dropped", transfer=message.transfer, type=type(message).__name__)


def _letter_event(message: _Letter, attempt: int) -> AttemptEvent:
    match message:
        case Offer():
            have = _chunks(message.have)
            return events.OfferReceived(attempt, message.transport, message.ticket, message.number, have)
        case Progress():
            return events.SourceProgressed(attempt, _chunks(message.have))
        case Refusal():
            return events.OfferRefused(attempt, message.reason)
        case _:
            assert_never(message)


def _chunks(bits: bytes | None) -> Chunks | None:
    return None if bits is None else Chunks.decoded(bits)
