"""What a simulated joiner knows of digests: the published truth, what a loader has stated so far, its own.

The counterpart of ``coldstart.truths`` without waiting. It must not know where bytes come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coldstart import effects, events
from coldstart.events import Event
from coldstart.plan import Chunks
from coldstart.ports import Stated
from coldstart.testing.simulator.memory import Truth, content_of, digest_of
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process


class Truths:
    """One process's knowledge."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.truth: Truth | None = None
        self.published = False
        """Whether the store has had our truth."""
        self.stated: dict[int, int] = {}
        """Digests of single chunks that were stated before there was a truth."""
        self.digests: dict[int, int] = {}
        """Of what has landed here."""
        self._unstated: dict[int, None] = {}
        self._stating = False

    def fetch(self, effect: effects.FetchTruth) -> None:
        attempt = effect.attempt
        self.with_truth(
            effect.root,
            lambda truth: self.process.post(events.TruthReceived(attempt)),
            lambda reason: self.process.post(events.TruthMissed(attempt, reason)),
        )

    def with_truth(self, root: str, done: Callable[[Truth], None], failed: Callable[[str], None]) -> None:
        """Go on with the truth of that name, which may be here already."""
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

    def expected(self, chunk: int) -> int | None:
        """The digest that a chunk must have, if anybody knows it."""
        return self.truth.digests[chunk] if self.truth is not None else self.stated.get(chunk)

    def learn(self, chunks: Chunks, done: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Find out what is known of ``chunks`` by now."""
        first = next((chunk for chunk in chunks if chunk not in self.stated), -1)
        if self.truth is not None or first < 0:
            done()
            return

        def heard(stated: Stated) -> None:
            if stated.root:
                self.with_truth(stated.root, lambda truth: done(), failed)
            else:
                self.stated.update({chunk: content_of(digest) for chunk, digest in stated.digests.items()})
                done()

        store = self.world.store
        store.call(self.process, lambda: store.ledger.stated(SHARD, LINEAGE, first), heard, failed)

    def state(self, effect: effects.StateDigests) -> None:
        """State what we have read; one call for all that come while another is on its way."""
        self._unstated.update(dict.fromkeys(effect.chunks))
        if not self._stating:
            self._state_now(effect.attempt)

    def _state_now(self, attempt: int) -> None:
        chunks, self._unstated = self._unstated, {}
        self._stating = bool(chunks)
        if not chunks:
            return
        digests = {chunk: digest_of(self.digests[chunk]) for chunk in chunks}

        def stated(right: bool) -> None:
            if right:
                self.stated.update({chunk: self.digests[chunk] for chunk in chunks})
            event = events.DigestsStated(attempt, Chunks.of(chunks)) if right else None
            self.process.post(event or events.StatementRefused(attempt, "another reader has stated other digests"))
            self._state_now(attempt)

        store = self.world.store
        store.call(
            self.process,
            lambda: store.ledger.state(SHARD, LINEAGE, digests),
            stated,
            lambda reason: self._state_now(attempt),
        )

    def publish_own(self, effect: effects.PublishTruth) -> None:
        """Make a truth of what is here, and tell the store."""
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
