"""The suite that every transport must pass; a plugin's test file is one subclass.

    class TestMine(TransportContract):
        def open_source(self, settings):
            return FACTORY.open(settings)

A transport without a source side subclasses :class:`PullContract` instead.

Decides what "keeps its promises" means: the right bytes and no others, a bounded end to every
failure, nothing left after ``aclose``; nothing written after a pull has returned is in
``late_writes.py``, which is part of it. It must not know any implementation. Needs pytest with
anyio's plugin in auto mode; ``memories.py`` is what it moves.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import anyio
import anyio.to_thread
import pytest

from coldstart.errors import TransportError
from coldstart.layout import Layout, Span, gaps, merged
from coldstart.ports import Memory, Transport, TransportSettings
from coldstart.testing.late_writes import LateWriteContract, SendingContract, SendLate
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB as MIB
from coldstart.testing.transfers import Landings as Landings
from coldstart.testing.transfers import eventually as eventually
from coldstart.testing.transfers import grant as grant
from coldstart.testing.transfers import payload as payload
from coldstart.testing.transfers import pieces_of as pieces_of
from coldstart.testing.transfers import resources as resources
from coldstart.testing.transfers import whole as whole

SLOW = 40.0 * MIB
"""Bytes per second of a source that is to be caught in the middle of a transfer."""

AWKWARD = {
    "one byte": layout_of(1),
    "odd sizes": layout_of(1, 255, 256, 257, 3, 65_537, 1),
    "many tiny": layout_of(*(1 + index % 7 for index in range(2000))),
    "large and tiny": layout_of(9 * MIB + 13, 1, 5 * MIB - 1, 2),
}


class PullContract(LateWriteContract):
    """What every transport promises, storage too: the right bytes, only those, never late, and a free loop.

    Override :meth:`holding`.
    """

    deadline: float = 15.0
    """Seconds in which every failure must have been noticed."""

    @pytest.mark.parametrize("layout", AWKWARD.values(), ids=AWKWARD.keys())
    async def test_everything_arrives(self, layout: Layout) -> None:
        held, target, landed = self.memory(layout, seed=1), self.memory(layout, fill=0xAA), Landings()
        async with self.holding(held) as (transport, ticket):
            await transport.pull(ticket, [whole(layout)], target, landed)
            assert payload(target, layout) == payload(held, layout)
            assert merged(landed.spans) == (whole(layout),)
            assert sum(span.length for span in landed.spans) == layout.nbytes, "landed once each"

    @pytest.mark.parametrize("layout", AWKWARD.values(), ids=AWKWARD.keys())
    async def test_only_the_spans_asked_for_are_written(self, layout: Layout) -> None:
        """Spans that start and end anywhere: inside storages, in padding, across both."""
        end = layout.nbytes
        cuts = [0, 1, end // 7, end // 7 + 1, end // 3, end // 3 + 300, end // 2, end - 257, end - 3, end]
        cuts = sorted({min(max(cut, 0), end) for cut in cuts})
        spans = [Span(low, high - low) for low, high in list(pairwise(cuts))[::2]]
        held, target, landed = self.memory(layout, seed=2), self.memory(layout, fill=0xAA), Landings()
        async with self.holding(held) as (transport, ticket):
            await transport.pull(ticket, spans, target, landed)
            assert merged(landed.spans) == merged(spans)
            for span in spans:
                assert pieces_of(target, span) == pieces_of(held, span)
            untouched = self.memory(layout, fill=0xAA)
            for span in gaps(spans, whole(layout)):
                assert pieces_of(target, span) == pieces_of(untouched, span)

    async def test_nothing_asked_nothing_done(self) -> None:
        layout = layout_of(1000)
        target, landed = self.memory(layout, fill=0xAA), Landings()
        async with self.holding(self.memory(layout, seed=1)) as (transport, ticket):
            await transport.pull(ticket, [], target, landed)
            assert landed.spans == []
            assert payload(target, layout) == b"\xaa" * 1000

    async def test_the_loop_is_never_blocked(self) -> None:
        layout = layout_of(48 * MIB)
        gaps_seen: list[float] = []

        async def tick() -> None:
            while True:
                began = time.perf_counter()
                await anyio.sleep(0.001)
                gaps_seen.append(time.perf_counter() - began)

        held, target = self.memory(layout, seed=6), self.memory(layout)
        async with self.holding(held) as (transport, ticket), anyio.create_task_group() as group:
            group.start_soon(tick)
            await transport.pull(ticket, [whole(layout)], target, Landings())
            group.cancel_scope.cancel()
        assert gaps_seen
        assert max(gaps_seen) < 0.5, "the event loop stood still during a pull"


class TransportContract(PullContract, SendingContract):
    """What transports between peers promise besides. Hooks first, then the promises."""

    paces: bool = True
    """Whether the source keeps ``lend_bytes_per_second``; without it, transfers cannot be caught half-way."""

    def open_source(self, settings: TransportSettings) -> Transport:
        """A transport as its factory opens it."""
        raise NotImplementedError

    def open_joiner(self, settings: TransportSettings) -> Transport:
        return self.open_source(settings)

    async def kill(self, source: Transport) -> None:
        """End the source's side without a word; the default closes it."""
        await source.aclose()

    @asynccontextmanager
    async def holding(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes]]:
        async with self._pair() as (source, joiner):
            yield joiner, await source.offer(grant("t"), held)

    @asynccontextmanager
    async def sending_late(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes, SendLate]]:
        """See :class:`SendingContract`; by default a source that keeps a pace and is then used again."""
        self._needs_pace()
        async with self._pair(lend_bytes_per_second=SLOW) as (source, joiner):
            yield joiner, await source.offer(grant("t"), held), partial(self._still_works, source, joiner)

    # ------------------------------------------------------------------------------- several at once

    async def test_one_source_serves_many_pulls_at_once(self) -> None:
        """Three grants, and two pulls under one of them."""
        layout = layout_of(3 * MIB + 1, 17)
        async with self._pair() as (source, joiner):
            held = self.memory(layout, seed=3)
            tickets = [await source.offer(grant(f"t{index}"), held) for index in range(3)]
            targets = [self.memory(layout, fill=0xAA) for _ in range(4)]
            async with anyio.create_task_group() as group:
                for ticket, target in zip([*tickets, tickets[0]], targets, strict=True):
                    group.start_soon(joiner.pull, ticket, [whole(layout)], target, Landings())
            assert all(payload(target, layout) == payload(held, layout) for target in targets)

    async def test_two_memories_are_not_mixed_up(self) -> None:
        layout = layout_of(100_000)
        async with self._pair() as (source, joiner):
            held = [self.memory(layout, seed=seed) for seed in (4, 5)]
            tickets = [await source.offer(grant(f"t{index}"), memory) for index, memory in enumerate(held)]
            for ticket, memory in zip(tickets, held, strict=True):
                target = self.memory(layout)
                await joiner.pull(ticket, [whole(layout)], target, Landings())
                assert payload(target, layout) == payload(memory, layout)

    # ------------------------------------------------------------------------------- tickets

    @pytest.mark.parametrize("ticket", [b"", b"\x00", b"garbage", b"\xff" * 64, b"\xc1" * 20_000])
    async def test_a_garbage_ticket_is_refused(self, ticket: bytes) -> None:
        layout = layout_of(100)
        async with self._pair() as (_, joiner):
            await self._fails(joiner, ticket, self.memory(layout))

    async def test_a_ticket_is_small(self) -> None:
        async with self._pair() as (source, _):
            assert len(await source.offer(grant("t"), self.memory(AWKWARD["many tiny"], seed=1))) <= 16 * 1024

    async def test_a_revoked_ticket_is_worthless_and_others_are_not(self) -> None:
        layout = layout_of(1000)
        async with self._pair() as (source, joiner):
            held = self.memory(layout, seed=7)
            ended, other = await source.offer(grant("a"), held), await source.offer(grant("b"), held)
            await source.revoke("a")
            await source.revoke("a")
            await source.revoke("never heard of")
            target = self.memory(layout, fill=0xAA)
            await self._fails(joiner, ended, target)
            assert payload(target, layout) == b"\xaa" * 1000
            await joiner.pull(other, [whole(layout)], target, Landings())
            assert payload(target, layout) == payload(held, layout)

    async def test_an_expired_ticket_is_refused(self) -> None:
        layout = layout_of(1000)
        async with self._pair() as (source, joiner):
            ticket = await source.offer(grant("t", seconds=0.0), self.memory(layout, seed=8))
            await self._fails(joiner, ticket, self.memory(layout))

    async def test_more_than_the_source_has_is_refused(self) -> None:
        """A joiner with another layout gets an error, and the source goes on."""
        small, large = layout_of(1000), layout_of(1000, 5 * MIB)
        async with self._pair() as (source, joiner):
            held = self.memory(small, seed=9)
            ticket = await source.offer(grant("t"), held)
            await self._fails(joiner, ticket, self.memory(large))
            target = self.memory(small)
            await joiner.pull(await source.offer(grant("u"), held), [whole(small)], target, Landings())
            assert payload(target, small) == payload(held, small)

    # ------------------------------------------------------------------------------- ends

    async def test_revoke_ends_a_pull_and_leaves_the_source_quiet(self) -> None:
        async with self._caught() as (source, joiner, held, pulling):
            await source.revoke("t")
            if isinstance(held, BytesMemory):
                assert held.lent == 0, "revoke returned while the memory was still being read"
            assert isinstance(await pulling(), TransportError)
            await self._still_works(source, joiner)

    async def test_a_dead_source_ends_a_pull(self) -> None:
        async with self._caught() as (source, _, _, pulling):
            await self.kill(source)
            assert isinstance(await pulling(), TransportError)

    async def test_closing_the_joiner_ends_its_pull(self) -> None:
        async with self._caught() as (_, joiner, _, pulling):
            await joiner.aclose()
            assert isinstance(await pulling(), TransportError)

    async def test_a_joiner_can_be_used_after_a_failure(self) -> None:
        layout = layout_of(1000)
        async with self._pair() as (source, joiner):
            await self._fails(joiner, b"garbage", self.memory(layout))
            await self._still_works(source, joiner)

    async def test_aclose_is_idempotent_and_leaves_nothing(self) -> None:
        layout = layout_of(3 * MIB)
        await anyio.to_thread.run_sync(int)  # anyio's own worker threads are not the transport's
        before = resources()
        async with self._pair() as (source, joiner):
            ticket = await source.offer(grant("t"), self.memory(layout, seed=11))
            await joiner.pull(ticket, [whole(layout)], self.memory(layout), Landings())
            for transport in (source, joiner, source, joiner):
                await transport.aclose()
            await self._fails(joiner, ticket, self.memory(layout))
            with pytest.raises(TransportError):
                await source.offer(grant("u"), self.memory(layout))
        await eventually(lambda: resources() <= before)

    # ------------------------------------------------------------------------------- helpers

    @asynccontextmanager
    async def _pair(self, *, lend_bytes_per_second: float = 0.0) -> AsyncIterator[tuple[Transport, Transport]]:
        settings = TransportSettings(lend_bytes_per_second=lend_bytes_per_second, io_seconds=self.deadline / 3)
        source, joiner = self.open_source(settings), self.open_joiner(settings)
        try:
            with anyio.fail_after(4 * self.deadline):
                yield source, joiner
        finally:
            await joiner.aclose()
            await source.aclose()

    @asynccontextmanager
    async def _caught(
        self,
    ) -> AsyncIterator[tuple[Transport, Transport, Memory, Callable[[], Awaitable[Exception | None]]]]:
        """A pull that has begun and will take long; the last item waits for how it ends."""
        self._needs_pace()
        layout = layout_of(64 * MIB)
        outcome: list[Exception | None] = []
        async with self._pair(lend_bytes_per_second=SLOW) as (source, joiner):
            held, target, landed = self.memory(layout, seed=12), self.memory(layout), Landings()
            ticket = await source.offer(grant("t"), held)

            async def pull() -> None:
                try:
                    await joiner.pull(ticket, [whole(layout)], target, landed)
                    outcome.append(None)
                except Exception as error:
                    outcome.append(error)

            async def ended() -> Exception | None:
                await eventually(lambda: bool(outcome), self.deadline)
                return outcome[0]

            async with anyio.create_task_group() as group:
                group.start_soon(pull)
                await landed.first()
                yield source, joiner, held, ended
                group.cancel_scope.cancel()

    async def _fails(self, joiner: Transport, ticket: bytes, target: Memory) -> None:
        with anyio.fail_after(self.deadline):
            with pytest.raises(TransportError) as caught:
                await joiner.pull(ticket, [whole(target.layout)], target, Landings())
        assert caught.value.reason
        assert "\n" not in str(caught.value)

    async def _still_works(self, source: Transport, joiner: Transport) -> None:
        layout = layout_of(2 * MIB + 1)
        held, target = self.memory(layout, seed=13), self.memory(layout)
        await joiner.pull(await source.offer(grant("again"), held), [whole(layout)], target, Landings())
        assert payload(target, layout) == payload(held, layout)

    def _needs_pace(self) -> None:
        if not self.paces:
            pytest.skip("this transport cannot be slowed down")
