"""Performs what the source's machine asks for, in the simulation.

The counterpart of ``coldstart.lending``: adverts and withdrawals in order, offers that count only
with the right number, grants that end when they are revoked. It decides nothing about who may read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.lending import GONE, UNSEEN
from coldstart.messages import Accept, Done, Doubt, Hello, Message, Offer, Progress, Refusal, encode
from coldstart.plan import Chunks
from coldstart.ports import Advert, Standing
from coldstart.source import NO_SIGN_OF_LIFE
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.movement import Pull
    from coldstart.testing.simulator.process import Process



class SourceHands:
    """One process's lending."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.granted: dict[str, None] = {}
        """Transfers with an open grant, in their order."""
        self.reading: dict[str, Pull] = {}
        """The pulls that read for them now."""
        self.epoch = ""
        """The life of the store that knows us."""
        self._ordered = False
        self._told = 0
        self._numbers: dict[str, int] = {}
        self._unseen: dict[str, int] = {}
        self._orders: deque[Callable[[], None]] = deque()

    # ------------------------------------------------------------------------------------ adverts

    def advertise(self, effect: effects.Advertise) -> None:
        self._vouch_for(effect.held, waiting=effect.have is not None)
        self._in_order(partial(self._advertise, effect))

    def _advertise(self, effect: effects.Advertise) -> None:
        truths = self.process.joining.truths
        if truths.truth is not None and (effect.afresh or not truths.published):
            truths.publish(partial(self._published, effect), self._failed)
        else:
            self._put(effect)

    def _published(self, effect: effects.Advertise, roots: tuple[str, ...]) -> None:
        truths = self.process.joining.truths
        truths.published = truths.truth is not None and roots == (truths.truth.root,)
        if truths.published:
            self._put(effect)
        else:
            self._failed("truths disagree")

    def _put(self, effect: effects.Advertise) -> None:
        store, process, chunks = self.world.store, self.process, self.world.scenario.chunks
        joining = process.joining
        terms = process.lender.terms
        advert = Advert(
            worker=process.name,
            inbox=process.inbox,
            incarnation=process.incarnation,
            generation=effect.generation,
            layout=LINEAGE,
            slots=terms.slots,
            have=(chunks if effect.have is None else len(effect.have)) if effect.lends else 0,
            total=chunks,
            transports=terms.transports,
            host="sim",
            device="cpu",
            proof=effect.proof,
            parts=effect.parts,
            rate=joining.received,
        )
        store.call(
            process,
            lambda: store.ledger.advertise(SHARD, advert, terms.lease, effect.held, effect.ended),
            partial(self._advertised, effect),
            self._failed,
        )

    def _advertised(self, effect: effects.Advertise, standing: Standing) -> None:
        lost = self.lost(standing)
        if effect.have is None:
            self.process.joining.claims.resign()
            self.process.since = min(self.process.since, self.world.heap.now)
        self.epoch = standing.epoch
        event = events.StoreRenewed() if lost else events.Advertised(standing.struck, effect.ended)
        self.process.post_to_source(event)
        self._next()

    def lost(self, standing: Standing) -> bool:
        """Whether the store has forgotten what we told it."""
        truth = self.process.joining.truths.truth
        return self.epoch not in ("", standing.epoch) or (truth is not None and standing.root != truth.root)

    def _failed(self, reason: str) -> None:
        self.process.post_to_source(events.AdvertFailed(reason))
        self._next()

    def withdraw(self, effect: effects.Withdraw) -> None:
        store, process = self.world.store, self.process

        def order() -> None:
            store.call(
                process,
                lambda: store.ledger.withdraw(SHARD, process.name, process.incarnation),
                self._next,
                self._next,
            )

        self._in_order(order)

    def report_drained(self, effect: effects.ReportDrained) -> None:
        def order() -> None:
            self.process.post(events.Drained())
            self._next()

        self._in_order(order)

    def _in_order(self, order: Callable[[], None]) -> None:
        if self._ordered:
            self._orders.append(order)
        else:
            self._ordered = True
            order()

    def _next(self, answer: object = None) -> None:
        self._ordered = bool(self._orders)
        if self._orders:
            self._orders.popleft()()

    def _vouch_for(self, held: tuple[str, ...], *, waiting: bool) -> None:
        """Who is seen reading lives; who was and is not any more, twice in a row, does not, unless it waits for us."""
        for transfer in held:
            if transfer in self.reading:
                self._unseen[transfer] = 0
                self.process.post_to_source(events.AcceptReceived(transfer))
            elif waiting:
                self._unseen.pop(transfer, None)
            elif transfer in self._unseen:
                self._unseen[transfer] += 1
                if self._unseen[transfer] == UNSEEN:
                    self.process.post_to_source(events.DoneReceived(transfer, GONE))

    # ------------------------------------------------------------------------------------- grants

    def hello(self, message: Hello, fence: int) -> None:
        """A joiner asks for an offer."""
        self.process.post_to_source(
            events.HelloReceived(
                message.transfer, message.joiner, fence, message.number, message.layout, message.transports
            )
        )

    def accepted(self, message: Accept, fence: int) -> None:
        """A joiner shows that it lives, if it proves that it means our offer."""
        if self._numbers.get(message.transfer) == message.answer - 1:
            self._unseen.setdefault(message.transfer, 0)
            self.process.post_to_source(events.AcceptReceived(message.transfer))

    def doubted(self, message: Doubt, fence: int) -> None:
        """A joiner found a chunk wrong."""
        if message.chunk < self.world.scenario.chunks:
            self.process.post_to_source(events.DoubtReceived(message.transfer, message.chunk))

    def done(self, message: Done, fence: int) -> None:
        """A joiner needs its grant no more."""
        self.process.post_to_source(events.DoneReceived(message.transfer, message.outcome))

    def open_offer(self, effect: effects.OpenOffer) -> None:
        self.granted[effect.transfer] = None
        self.process.post_to_source(events.OfferOpened(effect.transfer, effect.transfer.encode()))

    def send_offer(self, effect: effects.SendOffer) -> None:
        number = self._numbers[effect.transfer] = self.world.heap.luck.getrandbits(62)
        offer = Offer(
            transfer=effect.transfer,
            answer=effect.number + 1,
            number=number,
            transport=effect.transport,
            ticket=effect.ticket,
            generation=effect.generation,
            have=_bits(effect.have),
            source=self.process.inbox,
        )
        self._send(effect.joiner, offer, f"{effect.transfer}.offer")

    def send_progress(self, effect: effects.SendProgress) -> None:
        answer, have = effect.number + 1, _bits(effect.have)
        progress = Progress(transfer=effect.transfer, answer=answer, have=have, source=self.process.inbox)
        self._told += 1
        self._send(effect.joiner, progress, f"{effect.transfer}.told.{self._told}")

    def send_refusal(self, effect: effects.SendRefusal) -> None:
        answer, reason = effect.number + 1, effect.reason
        refusal = Refusal(transfer=effect.transfer, answer=answer, reason=reason, source=self.process.inbox)
        self._send(effect.joiner, refusal, f"{effect.transfer}.{effect.reason}")

    def _send(self, inbox: str, message: Offer | Progress | Refusal, nonce: str) -> None:
        store, body = self.world.store, encode(message)
        store.tell(self.process, lambda: store.ledger.send(SHARD, inbox, body, nonce))

    def close_grant(self, effect: effects.CloseGrant) -> None:
        self._revoke(effect.transfer)
        self._numbers.pop(effect.transfer, None)
        self._unseen.pop(effect.transfer, None)
        self.process.post_to_source(events.GrantClosed(effect.transfer))
        if effect.outcome in (GONE, NO_SIGN_OF_LIFE):
            store, name, transfer = self.world.store, self.process.name, effect.transfer
            store.tell(self.process, lambda: store.ledger.release(SHARD, name, transfer))

    def _revoke(self, transfer: str) -> None:
        self.granted.pop(transfer, None)
        pull = self.reading.pop(transfer, None)
        if pull is not None:
            pull.closed("revoked")

    def close_all(self) -> None:
        """The process has ended."""
        transfers = tuple(self.granted)
        self.granted.clear()
        for transfer in transfers:
            pull = self.reading.pop(transfer, None)
            if pull is not None and self.process.answers:
                pull.closed("connection lost")

    # ------------------------------------------------------------------------------------ weights

    def inspect(self, effect: effects.Inspect) -> None:
        expected, memory = self.process.joining.truths.expected, self.process.memory
        chunks = effect.chunks if effect.chunks is not None else range(len(memory))
        for chunk in chunks:
            if memory[chunk] != expected(chunk):
                self.process.post_to_source(events.WeightsDamaged(effect.generation, chunk))
                return
        self.process.post_to_source(events.WeightsProven(effect.generation))

    def scrub(self, effect: effects.Scrub) -> None:
        expected, memory = self.process.joining.truths.expected, self.process.memory
        wrong = next((chunk for chunk in effect.chunks if memory[chunk] != expected(chunk)), None)
        if wrong is not None:
            self.process.post_to_source(events.WeightsDamaged(effect.generation, wrong))
        else:
            self.process.post_to_source(events.Scrubbed(effect.generation, effect.chunks, 0.0))


def _bits(have: Chunks | None) -> bytes | None:
    return None if have is None else have.encoded()


SOURCE_HANDS: Mapping[type[Effect], Callable[..., None]] = {
    effects.Advertise: SourceHands.advertise,
    effects.Withdraw: SourceHands.withdraw,
    effects.OpenOffer: SourceHands.open_offer,
    effects.SendOffer: SourceHands.send_offer,
    effects.SendProgress: SourceHands.send_progress,
    effects.SendRefusal: SourceHands.send_refusal,
    effects.CloseGrant: SourceHands.close_grant,
    effects.Inspect: SourceHands.inspect,
    effects.Scrub: SourceHands.scrub,
    effects.ReportDrained: SourceHands.report_drained,
}
"""What performs each effect: ``SOURCE_HANDS[type(effect)](hands, effect)``. One table for all processes."""

SOURCE_LETTERS: Mapping[type[Message], Callable[..., None]] = {
    Hello: SourceHands.hello,
    Accept: SourceHands.accepted,
    Doubt: SourceHands.doubted,
    Done: SourceHands.done,
}
"""What takes each letter that is for the source, with its fence."""
