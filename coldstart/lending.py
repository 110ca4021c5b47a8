"""Performs what the source's machine asks for: adverts, offers, refusals, the end of grants.

Decides nothing about who may read. Adverts and withdrawals are kept in order, so that a slow
advert can never outlive the withdrawal after it. It knows ports and messages, no adapter.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.errors import ColdstartError, TransportError, TruthConflict
from coldstart.events import Event
from coldstart.inspecting import Inspector
from coldstart.messages import MAX_TICKET_BYTES, Accept, Done, Doubt, Hello, Offer, Progress, Refusal, encode
from coldstart.plan import Chunks
from coldstart.ports import Advert, Grant, Memory, Transport
from coldstart.source import NO_SIGN_OF_LIFE, Terms
from coldstart.station import Station
from coldstart.telemetry import logger
from coldstart.truths import Truths

BACKSTOP_SECONDS = 6 * 3600.0
"""The machine ends grants by signs of life; should it fail to, the transport ends them after this."""

UNSEEN = 2
"""A joiner that was reading and is not, at so many renewals of the advert in a row, is gone."""

GONE = "gone"

REASON_SECONDS = 0.5
"""A grant is closed so much later at most, so that the reason comes before the end of the connection."""

REVOKE_SECONDS = 15.0
"""A transport's revoke must return within this, or the grant counts as closed all the same."""


class Lending:
    """The source's hands.

    Args:
        station: without a bus nothing is ever lent.
        memory: the verified weights.
        truths: knows the digests they were verified against.
        inspector: looks whether they are still so.
        transports, terms: what is lent over, and on what conditions.
        host, rack: where we are, in the advert.
        left: called when nothing is lent any more, before the host hears of it.
        received: bytes per second at which our weights came from a peer; 0: not known.
        advertised: called after the first advert of all chunks: nobody need wait for us any more.
        renewed: called after every advert that the store has taken.

    ``post`` queues an event for the source's machine, ``post_to_joiner`` for the joiner's; both are
    set by whoever connects the parts.
    """

    def __init__(
        self,
        station: Station,
        memory: Memory,
        truths: Truths,
        inspector: Inspector,
        transports: Mapping[str, Transport],
        terms: Terms,
        *,
        host: str,
        advertised: Callable[[], Awaitable[None]],
        left: Callable[[], Awaitable[None]],
        rack: str = "",
        received: Callable[[], int] = int,
        cap: int = 0,
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self._station, self._worker = station, station.worker
        self._memory, self._truths, self._transports = memory, truths, transports
        self._inspector = inspector
        self._terms, self._host, self._rack = terms, host, rack
        self._advertised, self._left = advertised, left
        self._received, self._renewed, self._cap = received, renewed, cap
        self._complete = False
        self._numbers: dict[str, int] = {}
        self._opening: set[str] = set()
        self._news: dict[str, effects.SendProgress] = {}
        """What each joiner that is being told is to know by now."""
        self._refusing: dict[str, anyio.Event] = {}
        """Reasons that are on their way to joiners; each is set when it is there."""
        self._unseen: dict[str, int] = {}
        """Times in a row that a joiner that should be reading was not seen."""
        self._epoch = ""
        self._since = time.time()
        self._in_order = anyio.Lock(fast_acquire=True)
        self.post: Callable[[Event], None] = lambda event: None
        self.post_to_joiner: Callable[[Event], None] = lambda event: None

    async def perform(self, effect: Effect) -> None:
        """Perform one effect and post what comes of it; never raises but for cancellation."""
        try:
            await self._perform(effect)
        except Exception as error:  # a transport may raise anything
            if not isinstance(error, ColdstartError):
                logger().error("effect broke", effect=type(effect).__name__, error=repr(error))
            match effect:
                case effects.Advertise():
                    logger().warning("advert failed", worker=self._worker.name, reason=str(error))
                    self.post(events.AdvertFailed(str(error), conflict=isinstance(error, TruthConflict)))
                case effects.Inspect(generation=generation):
                    self.post(events.WeightsDamaged(generation, -1, f"they cannot be digested: {error}"[:512]))
                case effects.OpenOffer(transfer=transfer):
                    self._opening.discard(transfer)
                    self.post(events.OfferFailed(transfer, str(error)[:512]))
                case _:
                    logger().warning("effect failed", effect=type(effect).__name__, error=str(error))

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.Advertise():
                self._inspector.advertised(effect.generation, whole=effect.have is None)
                self._vouch_for(effect.held, waiting=effect.have is not None)
                async with self._in_order:
                    await self._advertise(effect)
            case effects.Withdraw():
                async with self._in_order:
                    if self._station.bus is not None:
                        await self._station.bus.withdraw(
                            self._station.key, self._worker.name, self._worker.incarnation
                        )
            case effects.OpenOffer():
                await self._open(effect)
            case effects.SendOffer():
                await self._send_offer(effect)
            case effects.SendProgress():
                await self._tell(effect)
            case effects.SendRefusal():
                await self._refuse(effect)
            case effects.CloseGrant():
                await self._close(effect)
            case effects.Inspect():
                self.post(await self._inspect(effect))
            case effects.Scrub(generation=generation, chunks=chunks):
                self.post(await self._inspector.scrub(generation, chunks))
            case effects.ReportDrained():
                await self._inspector.leave()
                async with self._in_order:  # the withdrawal comes first: the host may leave at once
                    await self._left()
                    self.post_to_joiner(events.Drained())
            case _:
                raise AssertionError(f"not an effect of the source: {effect}")

    def letter(self, message: Hello | Accept | Doubt | Done, fence: int) -> None:
        """A joiner's letter as an event, if it proves what it must."""
        match message:
            case Hello():
                self.post(
                    events.HelloReceived(
                        message.transfer,
                        message.joiner,
                        fence,
                        message.number,
                        message.layout,
                        _wanted(message, self._host),
                        message.trace,
                    )
                )
            case Accept():
                if self._numbers.get(message.transfer) == message.answer - 1:
                    self._unseen.setdefault(message.transfer, 0)
                    self.post(events.AcceptReceived(message.transfer))
            case Doubt():
                if message.chunk < self._memory.layout.chunks:
                    self.post(events.DoubtReceived(message.transfer, message.chunk))
            case Done():
                taken = min(message.taken, self._memory.layout.nbytes)  # nobody takes more for one start
                self.post(events.DoneReceived(message.transfer, message.outcome, taken))

    async def _advertise(self, effect: effects.Advertise) -> None:
        bus = self._station.bus
        truth, layout, complete = self._truths.known, self._memory.layout, effect.have is None
        if bus is None or (truth is None and complete):
            return
        if truth is not None and (effect.afresh or not self._truths.published):
            await self._publish()
        have = layout.chunks if effect.have is None else len(effect.have)
        advert = Advert(
            worker=self._worker.name,
            inbox=self._worker.inbox,
            incarnation=self._worker.incarnation,
            generation=effect.generation,
            layout=self._station.lineage,
            slots=self._terms.slots,
            have=have if effect.lends else 0,
            total=layout.chunks,
            transports=tuple(self._transports),
            host=self._host,
            device=self._memory.device,
            since=self._since,
            proof=effect.proof,
            rack=self._rack,
            parts=effect.parts,
            rate=self._received(),
            cap=self._cap,
        )
        standing = await bus.advertise(self._station.key, advert, self._terms.lease, effect.held, effect.ended)
        self._renewed()
        if complete and not self._complete:
            self._complete = True
            await self._advertised()
        lost = self._epoch not in ("", standing.epoch) or (truth is not None and standing.root != truth.root)
        self._epoch = standing.epoch
        self.post(events.StoreRenewed() if lost else events.Advertised(standing.struck, effect.ended))

    async def _publish(self) -> None:
        """Make sure that the store knows the truth that our weights equal."""
        roots = await self._truths.publish()
        if not self._truths.published:
            shard = str(self._station.shard)
            logger().error("truth conflict", shard=shard, roots=list(roots), worker=self._worker.name)
            raise TruthConflict("published truths disagree", advice="this worker serves but does not lend")

    def _vouch_for(self, held: Sequence[str], *, waiting: bool) -> None:
        """A joiner that a transport sees reading is alive, whether or not its letters come through.

        One that has accepted, or was seen, and is not seen twice in a row, has died; unless it may be
        ``waiting`` for chunks that we have not got ourselves.
        """
        for transfer in held:
            able = [transport for transport in self._transports.values() if transport.traits.sees_readers]
            if any(transport.reading(transfer) for transport in able):
                self._unseen[transfer] = 0
                self.post(events.AcceptReceived(transfer))
            elif waiting:
                self._unseen.pop(transfer, None)
            elif transfer in self._unseen and len(able) == len(self._transports):
                self._unseen[transfer] += 1
                if self._unseen[transfer] == UNSEEN:
                    self.post(events.DoneReceived(transfer, GONE))

    async def _inspect(self, effect: effects.Inspect) -> Event:
        """Digest our own memory anew."""
        return await self._inspector.inspect(effect.generation, effect.chunks)

    async def _open(self, effect: effects.OpenOffer) -> None:
        grant = Grant(effect.transfer, effect.joiner, effect.fence, BACKSTOP_SECONDS)
        transport = self._transports[effect.transport]
        self._opening.add(effect.transfer)
        wrong = await self._inspector.before_offer(effect.generation)
        if wrong is not None:
            self._opening.discard(effect.transfer)
            self.post(wrong)
            return
        ticket = await transport.offer(grant, self._memory)
        if effect.transfer not in self._opening:  # closed meanwhile: nothing else would revoke it
            await transport.revoke(effect.transfer)
            return
        self._opening.discard(effect.transfer)
        if len(ticket) > MAX_TICKET_BYTES:
            await transport.revoke(effect.transfer)
            raise TransportError(f"ticket of {len(ticket)} bytes is over {MAX_TICKET_BYTES}", reason="ticket")
        self.post(events.OfferOpened(effect.transfer, ticket))

    async def _close(self, effect: effects.CloseGrant) -> None:
        """Revoke, and give back the slot of a joiner that cannot; a revoke that does not return is left behind."""
        self._opening.discard(effect.transfer)
        if (refusing := self._refusing.get(effect.transfer)) is not None:
            with anyio.move_on_after(REASON_SECONDS):
                await refusing.wait()
        try:
            with anyio.fail_after(REVOKE_SECONDS):
                await self._transports[effect.transport].revoke(effect.transfer)
        except Exception as error:  # a transport may raise anything
            logger().error("grant not quiet", transfer=effect.transfer, transport=effect.transport, error=repr(error))
        self._numbers.pop(effect.transfer, None)
        self._unseen.pop(effect.transfer, None)
        self.post(events.GrantClosed(effect.transfer))
        if effect.outcome in (GONE, NO_SIGN_OF_LIFE) and self._station.bus is not None:
            await self._station.bus.release(self._station.key, self._worker.name, effect.transfer)

    async def _send_offer(self, effect: effects.SendOffer) -> None:
        number = self._station.number()
        self._numbers[effect.transfer] = number
        offer = Offer(
            transfer=effect.transfer,
            answer=effect.number + 1,
            number=number,
            transport=effect.transport,
            ticket=effect.ticket,
            generation=effect.generation,
            have=_bits(effect.have),
            source=self._worker.inbox,
        )
        await self._send(effect.joiner, offer)

    async def _tell(self, effect: effects.SendProgress) -> None:
        """One letter at a time to each joiner; what has come meanwhile goes with the next.

        So a slow store makes letters rarer, not more of them, and none overtakes a later one.
        """
        telling, self._news[effect.transfer] = effect.transfer in self._news, effect
        if telling:
            return
        told: effects.SendProgress | None = None
        try:
            while (news := self._news[effect.transfer]) is not told:
                await self._send(news.joiner, self._progress(news))
                told = news
        finally:
            del self._news[effect.transfer]

    async def _refuse(self, effect: effects.SendRefusal) -> None:
        there = self._refusing[effect.transfer] = anyio.Event()
        try:
            await self._send(effect.joiner, self._refusal(effect))
        finally:
            there.set()
            self._refusing.pop(effect.transfer, None)

    def _progress(self, effect: effects.SendProgress) -> Progress:
        answer, have = effect.number + 1, _bits(effect.have)
        return Progress(transfer=effect.transfer, answer=answer, have=have, source=self._worker.inbox)

    def _refusal(self, effect: effects.SendRefusal) -> Refusal:
        answer, reason = effect.number + 1, effect.reason[:512]
        return Refusal(transfer=effect.transfer, answer=answer, reason=reason, source=self._worker.inbox)

    async def _send(self, inbox: str, message: Offer | Progress | Refusal) -> None:
        if self._station.bus is not None:
            await self._station.bus.send(self._station.key, inbox, encode(message), self._station.nonce())


def _bits(have: Chunks | None) -> bytes | None:
    return None if have is None else have.encoded()


def _wanted(hello: Hello, host: str) -> tuple[str, ...]:
    """The joiner's transports in the order that it wants them in from ``host``."""
    favoured = [name for name in hello.favours.get(host, ()) if name in hello.transports]
    return tuple(dict.fromkeys((*favoured, *hello.transports)))
