"""A truth is verified against only where it is ours: of our shard, layout and digests, and of the announced name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.errors import IntegrityError
from coldstart.identity import DIGEST_BYTES, Truth
from coldstart.station import Station, Worker
from coldstart.testing.harness import LAYOUT, LINEAGE, SHARD
from coldstart.testing.memories import layout_of
from coldstart.truths import Truths

OURS = Truth(SHARD.key, LAYOUT, "blake2b", bytes(range(LAYOUT.chunks)) * DIGEST_BYTES)
OTHERS = {
    "shard": msgspec.structs.replace(OURS, shard="0" * 32),
    "layout": msgspec.structs.replace(OURS, layout=layout_of(*LAYOUT.storages[:-1], 2, chunk_bytes=LAYOUT.chunk_bytes)),
    "algorithm": msgspec.structs.replace(OURS, algorithm="csfp1"),
}
"""What a store may hold under our names that is not ours; each as many digests as ours."""

Ask = Callable[[Truths, str], Awaitable[object]]
ASKED: dict[str, Ask] = {
    "named": lambda truths, root: truths.named(root),
    "learned": lambda truths, root: truths.learn([0]),
    "published": lambda truths, root: truths.published_now(),
}
"""Every way in which one comes from the store."""


async def asking(published: Truth, root: str = "") -> Truths:
    """A worker at a store that has ``published`` under the worker's own shard and layout."""
    bus = MemoryBus(MemoryStore())
    await bus.publish_truth(SHARD.key, LINEAGE, root or published.root, published.encode())
    return Truths(Station(SHARD, LINEAGE, Worker("w", "0"), bus), LAYOUT, "blake2b")


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_ours_is_taken(ask: Ask) -> None:
    truths = await asking(OURS)
    await ask(truths, OURS.root)
    assert (truths.known, truths.expected(1)) == (OURS, OURS.digest(1))


@pytest.mark.parametrize("field", OTHERS)
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_what_is_not_ours_is_not_believed_in_anything(ask: Ask, field: str) -> None:
    truths = await asking(OTHERS[field])
    with pytest.raises(IntegrityError):
        await ask(truths, OTHERS[field].root)
    assert (truths.known, truths.published, truths.expected(0)) == (None, False, None)


@pytest.mark.parametrize("ask", [ASKED["named"], ASKED["learned"]], ids=["named", "learned"])
async def test_another_record_than_the_one_that_was_announced_is_not_believed(ask: Ask) -> None:
    other = msgspec.structs.replace(OURS, digests=OURS.digests[::-1])
    truths = await asking(other, OURS.root)
    with pytest.raises(IntegrityError, match="announced root"):
        await ask(truths, OURS.root)
    assert truths.known is None
