"""Performs what the joiner's machine asks for, in the simulation.

The counterpart of ``coldstart.joining`` and ``coldstart.claiming`` without waiting: every effect is
answered later by events. Letters are the real ones. It decides nothing about the path; bytes move
in ``movement.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coldstart import effects, events
from coldstart.claiming import LEAD_SECONDS, SIGN_OF_LIFE, SLOT_SECONDS
from coldstart.effects import Effect
from coldstart.events import AttemptEvent, Event
from coldstart.messages import Accept, Done, Doubt, Hello, Message, Offer, Refusal, encode
from coldstart.plan import Chunks
from coldstart.ports import Advert, Claim, ClaimOutcome, Conflicted, Deferred, Elected, Granted
from coldstart.testing.simulator.memory import Truth
from coldstart.testing.simulator.movement import Movement, Pull, StorageRead
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process

TRANSPORTS = ("sim",)


class Transfer(msgspec.Struct, eq=False):
    """One claim of ours, as we remember it."""

    ident: str
    number: int
    source: Advert | None = None
    early: list[AttemptEvent] | None = []


class JoinerHands:
    """One process's joining; ``slot_seconds`` is how long a claim asks for its slot."""

    slot_seconds = SLOT_SECONDS

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.truth: Truth | None = None
        self.published = False
        """Whether the store has had our truth."""
        self.leading = False
        self.transfers: dict[int, Transfer] = {}
        self.movements: dict[int, Movement] = {}
        self.digests: dict[int, int] = {}
        self.wronged: list[str] = []
        """Incarnations that gave us wrong bytes."""

    # ---------------------------------------------------------------------------- claims, letters

    def claim(self, effect: effects.ClaimSource) -> None:
        process, luck, attempt = self.process, self.world.heap.luck, effect.attempt
        transfer = Transfer(f"{process.inbox}.{attempt}", luck.getrandbits(62))
        self.transfers[attempt] = transfer
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
            lead_seconds=LEAD_SECONDS,
            luck=luck.getrandbits(31),
        )
        store = self.world.store
        store.call(
            process,
            lambda: store.ledger.claim(claim),
            partial(self._claimed, attempt),
            lambda reason: process.post(events.ClaimFailed(attempt, reason)),
        )

    def _claimed(self, attempt: int, outcome: ClaimOutcome) -> None:
        transfer = self.transfers[attempt]
        match outcome:
            case Granted():
                transfer.source = outcome.source
                self.process.post(events.SourceClaimed(attempt, outcome.source, outcome.root))
            case Elected():
                self.leading = True
                self.process.post(events.LoaderElected(attempt, outcome.root))
            case Deferred():
                self.process.post(events.ClaimDeferred(attempt, outcome.leader))
            case Conflicted():
                self.process.post(events.TruthDisputed(attempt, outcome.roots))
        early, transfer.early = transfer.early or (), None
        for event in early:
            self.process.post(event)

    def offered(self, message: Offer) -> None:
        """A source's yes."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(events.OfferReceived(attempt, message.transport, message.ticket, message.number))

    def refused(self, message: Refusal) -> None:
        """A source's no."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(events.OfferRefused(attempt, message.reason))

    def _meant(self, message: Offer | Refusal) -> int | None:
        """The attempt that a letter proves to mean."""
        for attempt, transfer in self.transfers.items():
            if transfer.ident == message.transfer and message.answer == transfer.number + 1:
                return attempt
        return None

    def _answered(self, event: AttemptEvent) -> None:
        early = self.transfers[event.attempt].early
        if early is None:
            self.process.post(event)
        else:
            early.append(event)

    def send(self, inbox: str, message: Accept, nonce: str) -> None:
        """Post a letter; nobody waits for it."""
        store, body = self.world.store, encode(message)
        store.tell(self.process, lambda: store.ledger.send(SHARD, inbox, body, nonce))

    def show_life(self, attempt: int, source: Advert, number: int, count: int = 0) -> None:
        """Accept the offer, and again as long as the pull goes on."""
        if attempt in self.movements:
            ident = self.transfers[attempt].ident
            self.send(source.inbox, Accept(transfer=ident, answer=number + 1), f"{ident}.{count}")
            again = partial(self.show_life, attempt, source, number, count + 1)
            self.world.heap.after(SIGN_OF_LIFE, self.process.when_awake, again)

    def release(self, effect: effects.Release) -> None:
        self._release(effect.attempt, effect.outcome, _ignore, _ignore)

    def _release(
        self, attempt: int, outcome: str, done: Callable[[Advert | None], None], failed: Callable[[str], None]
    ) -> None:
        transfer = self.transfers.get(attempt)
        if transfer is None or transfer.source is None:
            done(None)
            return
        source, transfer.source = transfer.source, None
        letter = encode(Done(transfer=transfer.ident, outcome=outcome[:512]))
        self.give_back(source, transfer.ident, letter, done, failed)

    def give_back(
        self,
        source: Advert,
        transfer: str,
        letter: bytes,
        done: Callable[[Advert | None], None],
        failed: Callable[[str], None],
    ) -> None:
        """The slot is free for others."""
        store = self.world.store
        store.call(self.process, lambda: store.ledger.release(SHARD, source.worker, transfer, letter), done, failed)

    def strike(self, effect: effects.Strike) -> None:
        store, source = self.world.store, effect.source
        self.wronged.append(source.inbox)
        letter = encode(Doubt(transfer=self.transfers[effect.attempt].ident, chunk=effect.chunk))
        store.tell(
            self.process,
            lambda: store.ledger.strike(SHARD, source.worker, source.incarnation, source.proof, letter),
        )

    # ------------------------------------------------------------------------------------- truth

    def fetch_truth(self, effect: effects.FetchTruth) -> None:
        attempt = effect.attempt
        self._with_truth(
            effect.root,
            lambda truth: self.process.post(events.TruthReceived(attempt)),
            lambda reason: self.process.post(events.TruthMissed(attempt, reason)),
        )

    def _with_truth(self, root: str, done: Callable[[Truth], None], failed: Callable[[str], None]) -> None:
        if self.truth is not None and self.truth.root == root:
            done(self.truth)
            return

        def fetched(record: bytes | None) -> None:
            truth = self.world.checkpoint.decoded(record) if record is not None else None
            if truth is None or truth.root != root:
                failed("the truth is announced but missing")
                return
            self.truth, self.published = truth, True
            done(truth)

        store = self.world.store
        store.call(self.process, lambda: store.ledger.fetch_truth(SHARD, LINEAGE), fetched, failed)

    def publish_truth(self, effect: effects.PublishTruth) -> None:
        attempt, process = effect.attempt, self.process
        self.truth = truth = self.world.checkpoint.truth(list(dict(sorted(self.digests.items())).values()))
        self.published = False

        def published(roots: tuple[str, ...]) -> None:
            self.published = roots == (truth.root,)
            event: Event = events.TruthPublished(attempt, truth.root)
            process.post(event if self.published else events.TruthConflicted(attempt, roots))

        self.publish(published, lambda reason: process.post(events.TruthUnpublished(attempt, reason)))

    def publish(self, done: Callable[[tuple[str, ...]], None], failed: Callable[[str], None]) -> None:
        """Tell the store the truth that we know."""
        store, truth = self.world.store, self.truth
        assert truth is not None
        store.call(
            self.process,
            lambda: store.ledger.publish_truth(SHARD, LINEAGE, truth.root, truth.record),
            done,
            failed,
        )

    # ------------------------------------------------------------------------------------- bytes

    def pull(self, effect: effects.Pull) -> None:
        self.world.promises.pulling(self.process, effect)
        if self.truth is None:
            self.process.post(events.PullEnded(effect.attempt, "there is no truth to verify against"))
            return
        pull = Pull(self.process, effect, self.truth)
        self.movements[effect.attempt] = pull
        self.show_life(effect.attempt, effect.source, effect.number)
        pull.begin()

    def read_storage(self, effect: effects.ReadStorage) -> None:
        self.world.storage_reads += 1
        self.world.loaders += effect.leading
        attempt = effect.attempt

        def begin(truth: Truth | None) -> None:
            partial_ = self.world.scenario.partial
            chunks = effect.chunks if partial_ else Chunks.first(self.world.scenario.chunks)
            read = StorageRead(self.process, attempt, chunks, truth)
            self.movements[attempt] = read
            read.begin()

        def missed(reason: str) -> None:
            self.process.post(events.TruthMissed(attempt, reason))
            begin(None)

        if self.leading:
            self.keep_lead(attempt, -1)
        if effect.root:
            self._with_truth(effect.root, begin, missed)
        else:
            begin(None)

    def keep_lead(self, attempt: int, seen: int) -> None:
        """Renew the loader's lease while bytes land."""
        movement = self.movements.get(attempt)
        if not self.leading or self.process.ended:
            return
        landed = movement.landed if movement is not None else 0
        if landed > seen or not self.world.scenario.partial:
            self._lead(LEAD_SECONDS)
        again = partial(self.keep_lead, attempt, landed)
        self.world.heap.after(LEAD_SECONDS / 3, self.process.when_awake, again)

    def abandon(self, effect: effects.Abandon) -> None:
        movement = self.movements.get(effect.attempt)
        if movement is not None:
            movement.abandon()

    def replace_memory(self, effect: effects.ReplaceMemory) -> None:
        """What is taken along is digested again, in memory that the late writer does not know."""
        old, fresh, kept = self.process.memory, self.world.checkpoint.empty(), Chunks()
        for chunk in effect.keep:
            fresh[chunk] = old[chunk]
            if self.truth is not None and fresh[chunk] == self.truth.digests[chunk]:
                kept = kept.add(chunk)
        self.process.memory = fresh
        self.process.post(events.MemoryReplaced(effect.attempt, kept))

    def verify(self, attempt: int, chunk: int, content: int, truth: Truth | None) -> None:
        """A chunk has landed whole: digest it, from the memory."""
        self.digests[chunk] = content
        if truth is not None and truth.digests[chunk] != content:
            self.process.post(events.ChunkCorrupted(attempt, chunk))
        else:
            self.process.post(events.ChunkVerified(attempt, chunk))

    # ------------------------------------------------------------------------------------ the end

    def check(self, effect: effects.Check) -> None:
        attempt, source = effect.attempt, effect.source

        def passed(answer: object) -> None:
            self.process.post(events.CheckPassed(attempt))

        def released(now: Advert | None) -> None:
            if source is None or now is None or now.incarnation != source.incarnation:
                passed(now)
            elif now.generation != source.generation:
                self.process.post(events.SourceChanged(attempt, source.worker, "generation"))
            else:
                passed(now)

        if source is None:
            passed(None)
        else:
            self._release(attempt, "ok", released, passed)

    def resign(self, effect: effects.Resign | None = None) -> None:
        """Give up the loader's lease."""
        if self.leading:
            self.leading = False
            self._lead(0.0)

    def _lead(self, seconds: float) -> None:
        store, name = self.world.store, self.process.name
        store.tell(self.process, lambda: store.ledger.lead(SHARD, LINEAGE, name, seconds))

    def start_lending(self, effect: effects.StartLending) -> None:
        self.process.post_to_source(events.LendingStarted())

    def stop_lending(self, effect: effects.StopLending) -> None:
        self.process.post_to_source(events.DrainRequested())


def _ignore(answer: object) -> None:
    return


JOINER_HANDS: Mapping[type[Effect], Callable[..., None]] = {
    effects.ClaimSource: JoinerHands.claim,
    effects.FetchTruth: JoinerHands.fetch_truth,
    effects.Pull: JoinerHands.pull,
    effects.ReadStorage: JoinerHands.read_storage,
    effects.Abandon: JoinerHands.abandon,
    effects.Release: JoinerHands.release,
    effects.Strike: JoinerHands.strike,
    effects.PublishTruth: JoinerHands.publish_truth,
    effects.Check: JoinerHands.check,
    effects.ReplaceMemory: JoinerHands.replace_memory,
    effects.Resign: JoinerHands.resign,
    effects.StartLending: JoinerHands.start_lending,
    effects.StopLending: JoinerHands.stop_lending,
}
"""What performs each effect: ``JOINER_HANDS[type(effect)](hands, effect)``. One table for all processes."""

JOINER_LETTERS: Mapping[type[Message], Callable[..., None]] = {
    Offer: JoinerHands.offered,
    Refusal: JoinerHands.refused,
}
"""What takes each letter that is for the joiner."""
