"""Performs what the joiner's machine asks for, in the simulation.

The counterpart of ``coldstart.joining`` without waiting: every effect is answered later by events. What
is said to the store is in ``claims.py``, what digests should be in ``truths.py``. It decides nothing about the
path; bytes move in ``movement.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from coldstart import effects, events
from coldstart.claiming import LEAD_SECONDS
from coldstart.effects import Effect
from coldstart.messages import Message, Offer, Progress, Refusal
from coldstart.plan import Chunks
from coldstart.ports import Advert
from coldstart.testing.simulator.claims import Claims
from coldstart.testing.simulator.memory import Truth
from coldstart.testing.simulator.movement import Movement, Pull, StorageRead
from coldstart.testing.simulator.truths import Truths

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process


class JoinerHands:
    """One process's joining; ``claims_of`` is what planted bugs replace."""

    claims_of: type[Claims] = Claims

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.claims = self.claims_of(process)
        self.truths = Truths(process)
        self.movements: dict[int, Movement] = {}
        self.received = 0
        """The best rate at which our chunks came from a peer."""
        self._given_up: set[int] = set()

    # ------------------------------------------------------------------------------------- bytes

    def pull(self, effect: effects.Pull) -> None:
        self.world.promises.pulling(self.process, effect)
        attempt, process, unknown = effect.attempt, self.process, self.truths.truth is None

        def failed(reason: str) -> None:
            process.post(events.PullEnded(attempt, reason, chunks=effect.chunks))

        def begin() -> None:
            if attempt in self._given_up:
                failed("abandoned")
                return
            if unknown and self.truths.truth is not None:
                process.post(events.TruthReceived(attempt, self.truths.truth.root))
            chunks = effect.chunks
            if self.truths.truth is None:
                chunks = Chunks.of(chunk for chunk in chunks if chunk in self.truths.stated)
            under_way = self.movements.get(attempt)
            if isinstance(under_way, Pull):
                under_way.extend(effect.chunks, chunks)
                return
            pull = self.movements[attempt] = Pull(process, effect, chunks)
            pull.begin()

        self.truths.learn(effect.chunks, begin, failed)

    def read_storage(self, effect: effects.ReadStorage) -> None:
        self.world.storage_reads += 1
        self.world.loaders += effect.leading
        attempt = effect.attempt

        def begin(truth: Truth | None) -> None:
            read = StorageRead(self.process, attempt, effect.chunks, None if truth is None else truth.digests)
            self.movements[attempt] = read
            read.begin()

        def missed(reason: str) -> None:
            self.process.post(events.TruthMissed(attempt, reason))
            begin(None)

        if self.claims.leading:
            self.keep_lead(attempt, -1)
        if effect.root:
            self.truths.with_truth(effect.root, begin, missed)
        else:
            begin(None)

    def keep_lead(self, attempt: int, seen: int) -> None:
        """Renew the loader's lease while bytes land."""
        movement = self.movements.get(attempt)
        if not self.claims.leading or self.process.ended:
            return
        landed = movement.landed if movement is not None else 0
        if landed > seen or not self.world.scenario.partial:
            self.claims.lead(LEAD_SECONDS)
        again = partial(self.keep_lead, attempt, landed)
        self.world.heap.after(LEAD_SECONDS / 3, self.process.when_awake, again)

    def abandon(self, effect: effects.Abandon) -> None:
        movement = self.movements.get(effect.attempt)
        if movement is not None:
            movement.abandon()
        self._given_up.add(effect.attempt)

    def replace_memory(self, effect: effects.ReplaceMemory) -> None:
        """What is taken along is digested again, in memory that the late writer does not know."""
        old, fresh, kept = self.process.memory, self.world.checkpoint.empty(), Chunks()
        for chunk in effect.keep:
            fresh[chunk] = old[chunk]
            if fresh[chunk] == self.truths.expected(chunk):
                kept = kept.add(chunk)
        self.process.memory = fresh
        self.process.post(events.MemoryReplaced(effect.attempt, kept))

    def verify(self, attempt: int, chunk: int, content: int, expected: int | None) -> None:
        """A chunk has landed whole: digest it, from the memory. Where nothing is expected, it is right."""
        self.truths.digests[chunk] = content
        if expected is not None and expected != content:
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
            self.claims.end(attempt, "ok", released, passed)

    def vote(self, effect: effects.Vote) -> None:
        """See :mod:`coldstart.testing.simulator.groups`."""
        assert self.process.votes is not None
        self.process.votes.vote(effect)

    def share(self, effect: effects.Share) -> None:
        self.process.post_to_source(events.ChunksShared(effect.have, effect.parts))

    def end_sharing(self, effect: effects.EndSharing) -> None:
        self.process.post_to_source(events.SharingEnded())

    def start_lending(self, effect: effects.StartLending) -> None:
        self.process.post_to_source(events.LendingStarted())

    def stop_lending(self, effect: effects.StopLending) -> None:
        self.process.post_to_source(events.DrainRequested())


def _claims(method: Callable[..., None]) -> Callable[..., None]:
    return lambda hands, asked: method(hands.claims, asked)


def _truths(method: Callable[..., None]) -> Callable[..., None]:
    return lambda hands, asked: method(hands.truths, asked)


JOINER_HANDS: Mapping[type[Effect], Callable[..., None]] = {
    effects.ClaimSource: _claims(Claims.claim),
    effects.FetchTruth: _truths(Truths.fetch),
    effects.ShowLife: _claims(Claims.show_life),
    effects.Pull: JoinerHands.pull,
    effects.StateDigests: _truths(Truths.state),
    effects.Share: JoinerHands.share,
    effects.EndSharing: JoinerHands.end_sharing,
    effects.ReadStorage: JoinerHands.read_storage,
    effects.Abandon: JoinerHands.abandon,
    effects.Release: _claims(Claims.release),
    effects.Strike: _claims(Claims.strike),
    effects.PublishTruth: _truths(Truths.publish_own),
    effects.Check: JoinerHands.check,
    effects.ReplaceMemory: JoinerHands.replace_memory,
    effects.Admit: _claims(Claims.admit),
    effects.LeaveStorage: _claims(Claims.leave_storage),
    effects.Resign: _claims(Claims.resign),
    effects.Vote: JoinerHands.vote,
    effects.StartLending: JoinerHands.start_lending,
    effects.StopLending: JoinerHands.stop_lending,
}
"""What performs each effect: ``JOINER_HANDS[type(effect)](hands, effect)``. One table for all processes."""

JOINER_LETTERS: Mapping[type[Message], Callable[..., None]] = {
    Offer: _claims(Claims.offered),
    Progress: _claims(Claims.progressed),
    Refusal: _claims(Claims.refused),
}
"""What takes each letter that is for the joiner."""
