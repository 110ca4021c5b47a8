"""The fake bus answers as the real server does, call by call, also where many stand in line."""

import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.ports import Bus, Claim, Cursor, Letter
from coldstart.testing.bus_contract import SHARD, advert, claim
from tests.bus.conftest import Server
from tests.bus.opened import opened

# ------------------------------------------------------------------------------ the fake is true


def _random_call(rng: random.Random) -> Callable[[Bus], Awaitable[object]]:
    """One operation with random arguments from a small world, so that the calls meet each other."""
    worker = rng.choice("abcd")
    layout = rng.choice(["l1", "l2"])
    transfer = f"t{rng.randrange(12)}"
    match rng.randrange(12):
        case 0 | 1:
            source = advert(
                worker,
                incarnation=rng.choice(["1", "1", "2"]),
                layout=layout,
                slots=rng.randrange(4),
                have=rng.randrange(4),
                total=3,
                proof=rng.randrange(4),
                transports=tuple(rng.sample(["tcp", "nccl"], rng.randrange(3))),
                host=rng.choice(["", "h1", "h2"]),
                rack=rng.choice(["", "r1", "r2"]),
                parts=rng.choice([(), (), (0,), (1,), (1, 0), (1, 1)]),
            )
            held, ended = rng.choice([(), (transfer,)]), rng.choice([(), (), (f"t{rng.randrange(12)}",)])
            return lambda bus: bus.advertise(SHARD, source, 60, held, ended)
        case 2 | 3 | 4:
            asked = Claim(
                shard=SHARD,
                layout=layout,
                worker=rng.choice("abcdxyz"),
                transfer=transfer,
                hello=transfer.encode(),
                exclude=tuple(rng.sample("abcdxyz", rng.randrange(3))),
                transports=rng.choice([(), ("tcp",), ("nccl",)]),
                lead_seconds=rng.choice([0, 60]),
                luck=rng.randrange(100),
                have=rng.choice([0, 0, 1, 2]),
                prefer=tuple(rng.sample("abcdxyz", rng.choice([0, 0, 2]))),
                host=rng.choice(["", "h1"]),
                rack=rng.choice(["", "r1"]),
                inbox=rng.choice(["", "a.in", "d.in"]),
                queue_seconds=rng.choice([0, 60, 60]),
                share_seconds=rng.choice([0, 60]),
                part=rng.choice([-1, -1, 0, 1]),
                crowd=rng.choice([0, 1, 2, 3]),
            )
            return lambda bus: bus.claim(asked)
        case 5:
            source, letter = rng.choice([worker, worker, ""]), rng.choice([b"", b"done"])
            return lambda bus: bus.release(SHARD, source, transfer, letter)
        case 6:
            seconds = rng.choice([0, 60])
            return lambda bus: bus.lead(SHARD, layout, worker, seconds)
        case 7:
            root = "r1" if rng.random() < 0.9 else "r2"
            return lambda bus: bus.publish_truth(SHARD, layout, root, root.encode())
        case 8:
            incarnation, proof = rng.choice(["1", "1", "2"]), rng.randrange(4)
            return lambda bus: bus.strike(SHARD, worker, incarnation, proof, b"doubt")
        case 9:
            digests = {rng.randrange(5): bytes([rng.randrange(20) == 0]) * 16 for _ in range(rng.randrange(3))}
            return lambda bus: bus.state(SHARD, layout, digests)
        case 10:
            first = rng.randrange(4)
            return lambda bus: bus.stated(SHARD, layout, first)
        case _:
            return rng.choice(
                [
                    lambda bus: bus.withdraw(SHARD, worker, "1"),
                    lambda bus: bus.fetch_truth(SHARD, layout),
                    lambda bus: bus.adverts(SHARD),
                    lambda bus: bus.send(SHARD, f"{worker}.in", transfer.encode(), transfer),
                ]
            )


def _random_call_in_a_crowd(rng: random.Random) -> Callable[[Bus], Awaitable[object]]:
    """The like where nearly everybody waits for one of few sources, so that parts are granted."""
    worker, transfer = rng.choice("abcd"), f"t{rng.randrange(12)}"
    match rng.randrange(6):
        case 0 | 1:
            source = advert(
                worker,
                incarnation=rng.choice("1112"),
                slots=rng.randrange(1, 4),
                have=rng.choice([0, 1, 3]),
                total=3,
                parts=rng.choice([(), (0,), (1,), (0, 1)]),
            )
            held, ended = rng.choice([(), (transfer,)]), rng.choice([(), (), (f"t{rng.randrange(12)}",)])
            return lambda bus: bus.advertise(SHARD, source, 60, held, ended)
        case 2:
            source_of = rng.choice([worker, ""])
            return lambda bus: bus.release(SHARD, source_of, transfer)
        case _:
            asked = claim(
                f"w{transfer}",
                transfer=transfer,
                inbox=f"{worker}.in",
                luck=rng.randrange(100),
                have=rng.choice([0, 0, 1]),
                queue_seconds=rng.choice([0, 60, 60, 60]),
                share_seconds=rng.choice([0, 60, 60]),
                lead_seconds=rng.choice([0, 0, 0, 60]),
                part=rng.choice([-1, -1, 0, 1]),
                crowd=rng.choice([0, 1, 2, 3]),
            )
            return lambda bus: bus.claim(asked)


class _Follower:
    """Listens to every inbox after each call and says what changed, without ids and epochs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cursors = {worker: Cursor() for worker in "abcd"}

    async def heard(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for worker, cursor in self._cursors.items():
            heard = await self._bus.listen(SHARD, f"{worker}.in", cursor, 0)
            self._cursors[worker] = heard.cursor
            found.append((tuple(map(_plain, heard.letters)), heard.fleet_changed, heard.renewed))
        return found


def _plain(letter: Letter) -> Letter:
    return msgspec.structs.replace(letter, granted=_without_epoch(letter.granted))


def _without_epoch(answer: object) -> object:
    return msgspec.structs.replace(answer, epoch="") if hasattr(answer, "epoch") else answer


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("random_call", [_random_call, _random_call_in_a_crowd])
async def test_the_fake_answers_as_the_server_does(
    shared_server: Server, seed: int, random_call: Callable[[random.Random], Callable[[Bus], Awaitable[object]]]
) -> None:
    rng = random.Random(seed)
    fake = MemoryBus(MemoryStore())
    async with opened(shared_server.url, namespace=shared_server.namespace()) as real:
        epoch = (await real.advertise(SHARD, advert("a"), 60)).epoch
        assert epoch
        await fake.advertise(SHARD, advert("a"), 60)
        following_real, following_fake = _Follower(real), _Follower(fake)
        for step in range(150):
            call = random_call(rng)
            expected, answer = await call(fake), await call(real)
            if not isinstance(answer, str):  # the epoch itself
                assert _without_epoch(answer) == _without_epoch(expected), f"seed {seed}, step {step}"
            assert await following_real.heard() == await following_fake.heard(), f"seed {seed}, step {step}"
