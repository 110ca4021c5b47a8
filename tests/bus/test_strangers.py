"""Whatever stands in a store, written by whom it may: nothing of it becomes a key, and nobody is sent there."""

from __future__ import annotations

import msgspec
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.redis import RedisBus
from coldstart.errors import BusError
from coldstart.ports import Advert, Elected
from coldstart.testing.bus_contract import SHARD, advert, claim
from tests.bus.conftest import Server

NAMES = ("", "a b", "a\r\nSET k v", "../../etc/passwd", "a}:{b", "a" * 97, "ä", "a\0b", "*")
CHANGES = [
    *({"inbox": name} for name in NAMES),
    *({"incarnation": name} for name in NAMES),
    *({"worker": name} for name in ("other", *NAMES)),
    {"host": "h" * 257},
    {"device": "d" * 257},
    {"transports": ("tcp",) * 17},
]


async def test_adverts_that_cannot_be_are_told_to_nobody_and_granted_to_nobody(shared_server: Server) -> None:
    namespace = shared_server.namespace()
    prefix = f"{namespace}:{{{SHARD}}}:"
    bus = await RedisBus.open(shared_server.url, namespace)
    try:
        for number, change in enumerate(CHANGES):
            usual = advert(f"w{number}")
            shared_server.ask("HSET", f"{prefix}adverts", f"w{number}", msgspec.json.encode({**_of(usual), **change}))
            shared_server.ask("ZADD", f"{prefix}leases", 9e15, f"w{number}")
        assert {each.worker for each in await bus.adverts(SHARD)} <= {"other"}, "it is told, and never granted"
        outcome = await bus.claim(claim(luck=3))
        assert isinstance(outcome, Elected)
        assert {skip.reason for skip in outcome.skipped} == {"malformed"}
    finally:
        await bus.aclose()


def _of(usual: Advert) -> dict[str, object]:
    return msgspec.structs.asdict(usual)


UNSOUND = [change for change in CHANGES if change != {"worker": "other"}]


@pytest.mark.parametrize("change", UNSOUND, ids=lambda change: repr(change)[:40])
async def test_nobody_advertises_what_cannot_be(change: dict[str, object]) -> None:
    bus = MemoryBus(MemoryStore())
    with pytest.raises(BusError):
        await bus.advertise(SHARD, msgspec.structs.replace(advert("w"), **change), 9)
