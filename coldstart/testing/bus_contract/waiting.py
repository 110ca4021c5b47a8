"""What the tests of waiting claims share: a source without room, and those in line for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coldstart.ports import Bus, Claim, Cursor, Deferred, Letter
from coldstart.testing.bus_contract.base import SHARD, BusSuite, advert, claim, granted


def waiting(worker: str, **changes: object) -> Claim:
    """A claim that stands in line if there is no source for it now."""
    hello, inbox = f"hello of {worker}".encode(), f"{worker}.mail"
    usual = claim(worker, hello=hello, inbox=inbox, queue_seconds=30.0, lead_seconds=0.0)
    return msgspec.structs.replace(usual, **changes)


async def letters(bus: Bus, inbox: str) -> Sequence[Letter]:
    """All letters that an inbox has by now."""
    return (await bus.listen(SHARD, inbox, Cursor(), 0)).letters


class WaitingSuite(BusSuite):
    """A part of the contract in which claims wait."""

    async def line(self, bus: Bus, *claims: Claim, **source: object) -> Claim:
        """Put ``claims`` in line for a source whose only slot is taken; returns who took it."""
        await bus.advertise(SHARD, advert("source", slots=1, **source), 30)
        first = claim("first")
        granted(await bus.claim(first))
        for each in claims:
            assert isinstance(await bus.claim(each), Deferred)
        return first

    async def served(self, bus: Bus, *claims: Claim) -> list[str]:
        """Which of ``claims`` have been told of a grant."""
        return [each.worker for each in claims if await letters(bus, each.inbox)]
