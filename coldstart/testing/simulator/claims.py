"""A simulated joiner's claims, the letters about them, and its leases.

The counterpart of ``coldstart.claiming`` without waiting: the store's answers become events later. Letters are the
real ones. It must not know bytes or digests; those are in ``joiner.py`` and ``truths.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coldstart import effects, events
from coldstart.claiming import FIRST_SIGN, LEAD_SECONDS, QUEUE_SECONDS, SIGN_OF_LIFE, SLOT_SECONDS
from coldstart.events import AttemptEvent
from coldstart.messages import Accept, Done, Doubt, Hello, Offer, Progress, Refusal, encode
from coldstart.plan import Chunks
from coldstart.policies import Here, heard
from coldstart.ports import Admission, Advert, Claim, ClaimOutcome, Conflicted, Deferred, Elected, Granted
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process

TRANSPORTS = ("sim",)


class Transfer(msgspec.Struct, eq=False):
    """One claim of ours, as we remember it."""

    ident: str
    number: int
    source: Advert | None = None
    granted: bool = False
    waiting: bool = False
    over: bool = False
    inbox: str = ""
    early: list[tuple[str, AttemptEvent]] | None = []


class Claims:
    """One process's claims; ``slot_seconds`` is how long each asks for its slot."""

    slot_seconds = SLOT_SECONDS

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.leading = False
        """Whether the loader's lease is ours."""
        self.wronged: list[str] = []
        """Incarnations that gave us wrong bytes."""
        self._transfers: dict[int, Transfer] = {}

    # ------------------------------------------------------------------------------------- claims

    def claim(self, effect: effects.ClaimSource) -> None:
        process, luck, attempt = self.process, self.world.heap.luck, effect.attempt
        transfer = self._transfers.get(attempt)
        if transfer is None:
            transfer = self._transfers[attempt] = Transfer(f"{process.inbox}.{attempt}", luck.getrandbits(62))
        hello = Hello(
            transfer=transfer.ident,
            joiner=process.inbox,
            number=transfer.number,
            layout=LINEAGE,
            transports=TRANSPORTS,
        )
        claim = Claim(
            shard=SHARD,
            layout=LINEAGE,
            worker=process.name,
            transfer=transfer.ident,
            hello=encode(hello),
            exclude=(process.name, *effect.exclude),
            transports=TRANSPORTS,
            slot_seconds=self.slot_seconds,
            lead_seconds=LEAD_SECONDS if effect.part < 0 and effect.queue else 0.0,
            luck=luck.getrandbits(31),
            have=effect.have,
            inbox=process.inbox,
            queue_seconds=QUEUE_SECONDS if effect.queue else 0.0,
            share_seconds=effect.share,
            crowd=effect.crowd,
            part=effect.part,
        )
        store, policy = self.world.store, self.world.scenario.prefer

        def failed(reason: str) -> None:
            process.post(events.ClaimFailed(attempt, reason))

        def ask(claim: Claim) -> None:
            store.call(process, lambda: store.ledger.claim(claim), partial(self._claimed, attempt), failed)

        if policy is None:
            ask(claim)
            return
        here = Here(process.name, have=effect.have)

        def choose(adverts: tuple[Advert, ...]) -> None:
            ask(msgspec.structs.replace(claim, prefer=heard(policy, here, adverts)))

        store.call(process, lambda: store.ledger.adverts(SHARD), choose, failed)

    def _claimed(self, attempt: int, outcome: ClaimOutcome) -> None:
        transfer = self._transfers[attempt]
        transfer.waiting = isinstance(outcome, Deferred)
        match outcome:
            case Granted():
                if transfer.granted:
                    return
                self._take(transfer, attempt, outcome)
            case Elected():
                self.leading = True
                self.process.post(events.LoaderElected(attempt, outcome.root))
            case Deferred():
                rate = self.world.scenario.link_known
                self.process.post(
                    events.ClaimDeferred(attempt, outcome.leader, queue=outcome.queue, rate=rate)
                )
            case Conflicted():
                self.process.post(events.TruthDisputed(attempt, outcome.roots))
        early, transfer.early = transfer.early or (), [] if transfer.waiting else None
        for source, event in early:
            self._hear(transfer, source, event)

    def granted(self, ident: str, outcome: Granted) -> None:
        """The store's letter: a claim that stood in line has got a source."""
        for attempt, transfer in self._transfers.items():
            if transfer.ident == ident and not transfer.granted:
                transfer.waiting = False
                self._take(transfer, attempt, outcome)
                early, transfer.early = transfer.early or (), None
                for source, event in early:
                    self._hear(transfer, source, event)

    def _take(self, transfer: Transfer, attempt: int, outcome: Granted) -> None:
        transfer.source, transfer.inbox, transfer.granted = outcome.source, outcome.source.inbox, True
        rate = self.world.scenario.link_known
        self.process.post(
            events.SourceClaimed(attempt, outcome.source, outcome.root, part=outcome.part, rate=rate)
        )

    # ------------------------------------------------------------------------------------ letters

    def offered(self, message: Offer) -> None:
        """A source's yes."""
        attempt = self._meant(message)
        if attempt is not None:
            have = _chunks(message.have)
            offer = events.OfferReceived(attempt, message.transport, message.ticket, message.number, have)
            self._answered(message.source, offer)

    def progressed(self, message: Progress) -> None:
        """A source has more, or shows that it lives."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(message.source, events.SourceProgressed(attempt, _chunks(message.have)))

    def refused(self, message: Refusal) -> None:
        """A source's no."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(message.source, events.OfferRefused(attempt, message.reason))

    def _meant(self, message: Offer | Progress | Refusal) -> int | None:
        """The attempt that a letter proves to mean."""
        for attempt, transfer in self._transfers.items():
            if transfer.ident == message.transfer and message.answer == transfer.number + 1:
                return attempt
        return None

    def _answered(self, source: str, event: AttemptEvent) -> None:
        transfer = self._transfers[event.attempt]
        if transfer.early is None:
            self._hear(transfer, source, event)
        else:
            transfer.early.append((source, event))

    def _hear(self, transfer: Transfer, source: str, event: AttemptEvent) -> None:
        """From another source it means another grant than ours."""
        if source == transfer.inbox:
            self.process.post(event)

    def send(self, inbox: str, message: Accept, nonce: str) -> None:
        """Post a letter; nobody waits for it."""
        store, body = self.world.store, encode(message)
        store.tell(self.process, lambda: store.ledger.send(SHARD, inbox, body, nonce))

    def show_life(self, effect: effects.ShowLife) -> None:
        """Accept the offer, and again until the slot is given back."""
        transfer, (inbox, number) = self._transfers[effect.attempt], (effect.source.inbox, effect.number)
        first = partial(self._show_life, transfer, inbox, number, 0)
        self.world.heap.after(FIRST_SIGN, self.process.when_awake, first)

    def _show_life(self, transfer: Transfer, inbox: str, number: int, count: int) -> None:
        if not transfer.over:
            self.send(inbox, Accept(transfer=transfer.ident, answer=number + 1), f"{transfer.ident}.{count}")
            again = partial(self._show_life, transfer, inbox, number, count + 1)
            self.world.heap.after(SIGN_OF_LIFE, self.process.when_awake, again)

    # -------------------------------------------------------------------------------------- slots

    def release(self, effect: effects.Release) -> None:
        self.end(effect.attempt, effect.outcome, _ignore, _ignore)

    def end(
        self, attempt: int, outcome: str, done: Callable[[Advert | None], None], failed: Callable[[str], None]
    ) -> None:
        """The same, and tell what the source's advert is then; None where there is none."""
        transfer = self._transfers.get(attempt)
        if transfer is None or not (transfer.source or transfer.waiting):
            done(None)
            return
        source = transfer.source.worker if transfer.source is not None else ""
        transfer.source, transfer.waiting, transfer.over = None, False, True
        body = encode(Done(transfer=transfer.ident, outcome=outcome[:512]))
        self.give_back(source, transfer.ident, body, done, failed)

    def give_back(
        self,
        source: str,
        transfer: str,
        letter: bytes,
        done: Callable[[Advert | None], None],
        failed: Callable[[str], None],
    ) -> None:
        """The slot is free for others, and the source knows."""
        store = self.world.store
        store.call(self.process, lambda: store.ledger.release(SHARD, source, transfer, letter), done, failed)

    def strike(self, effect: effects.Strike) -> None:
        store, source = self.world.store, effect.source
        self.wronged.append(source.inbox)
        letter = encode(Doubt(transfer=self._transfers[effect.attempt].ident, chunk=effect.chunk))
        store.tell(
            self.process,
            lambda: store.ledger.strike(SHARD, source.worker, source.incarnation, source.proof, letter),
        )

    # ------------------------------------------------------------------------------------- leases

    def resign(self, effect: effects.Resign | None = None) -> None:
        """Give up the loader's lease."""
        if self.leading:
            self.leading = False
            self.lead(0.0)

    def lead(self, seconds: float) -> None:
        """Hold the loader's lease for so long, or give it up."""
        store, name = self.world.store, self.process.name
        store.tell(self.process, lambda: store.ledger.lead(SHARD, LINEAGE, name, seconds))

    def admit(self, effect: effects.Admit) -> None:
        """Ask the store whether we may read storage beside others."""
        store, process, attempt = self.world.store, self.process, effect.attempt

        def answered(answer: Admission) -> None:
            kind = events.StorageOpened if answer.admitted else events.StorageRefused
            process.post(kind(attempt, answer.readers))

        store.call(
            process,
            lambda: store.ledger.admit(SHARD, LINEAGE, process.name, effect.most, effect.seconds),
            answered,
            lambda reason: process.post(events.StorageRefused(attempt)),
        )

    def leave_storage(self, effect: effects.LeaveStorage) -> None:
        """Make room for others."""
        store, name = self.world.store, self.process.name
        store.tell(self.process, lambda: store.ledger.admit(SHARD, LINEAGE, name, 0, 0.0))


def _chunks(bits: bytes | None) -> Chunks | None:
    return None if bits is None else Chunks.decoded(bits)


def _ignore(answer: object) -> None:
    return
