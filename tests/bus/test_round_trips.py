"""What the bus costs on a real server: round trips by operation, and those of a whole cold start."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import pytest

from coldstart.bus import ear
from coldstart.bus.connections import Link, Word
from coldstart.bus.redis import RedisBus
from coldstart.ports import Cursor, Granted
from coldstart.testing.bus_contract import LAYOUT, SHARD, advert, claim
from tests.bus.conftest import Server
from tests.bus.test_redis import opened


class Wire:
    """Counts what is sent: each element is one round trip, and says how many commands went together."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        self.sent = found = []
        yield found


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    counted, send = Wire(), Link.send

    async def counting(link: Link, *commands: Sequence[Word]) -> None:
        counted.sent.append(len(commands))
        await send(link, *commands)

    monkeypatch.setattr(Link, "send", counting)
    return counted


def _operations(bus: RedisBus) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "advertise": lambda: bus.advertise(SHARD, advert("source", slots=99), 30),
        "claim": lambda: bus.claim(claim()),
        "waiting claim": lambda: bus.claim(claim(layout="other", queue_seconds=30.0, lead_seconds=0.0)),
        "release": lambda: bus.release(SHARD, "source", "t", b"done"),
        "lead": lambda: bus.lead(SHARD, LAYOUT, "leader", 3),
        "admit": lambda: bus.admit(SHARD, LAYOUT, "joiner", 2, 30),
        "strike": lambda: bus.strike(SHARD, "source", "1", 0, b"doubt"),
        "state": lambda: bus.state(SHARD, "other", {chunk: bytes(16) for chunk in range(100)}),
        "stated": lambda: bus.stated(SHARD, "other"),
        "publish_truth": lambda: bus.publish_truth(SHARD, LAYOUT, "root", b"truth"),
        "fetch_truth": lambda: bus.fetch_truth(SHARD, LAYOUT),
        "send": lambda: bus.send(SHARD, "in", b"x", "n"),
        "record": lambda: bus.record(SHARD, [b"x"] * 20),
        "recorded": lambda: bus.recorded(SHARD),
        "journals": lambda: bus.journals(),
        "advert": lambda: bus.advert(SHARD, "source"),
        "adverts": lambda: bus.adverts(SHARD),
        "shards": lambda: bus.shards(),
        "withdraw": lambda: bus.withdraw(SHARD, "source", "1"),
    }


async def test_each_operation_is_one_round_trip(server: Server, wire: Wire) -> None:
    async with opened(server.url) as bus:
        for name, call in _operations(bus).items():
            await call()  # from now on the server knows the script
            with wire.counting() as trips:
                await call()
            assert len(trips) == 1, name


async def test_a_cold_start_from_the_only_source_takes_eight(server: Server, wire: Wire) -> None:
    async with opened(server.url) as source, opened(server.url) as bus:
        for call in _operations(source).values():
            await call()
        await source.advertise(SHARD, advert("source", proof=1), 30)
        asked = claim("joiner")
        await source.send(SHARD, "joiner.in", b"offer", "1")
        with wire.counting() as trips:
            assert isinstance(await bus.claim(asked), Granted)
            assert await bus.fetch_truth(SHARD, LAYOUT) == b"truth"
            heard = await bus.listen(SHARD, "joiner.in", Cursor(), 5, fleet=False)
            await bus.send(SHARD, "source.in", b"accept", "2")
            await bus.listen(SHARD, "joiner.in", heard.cursor, 0, fleet=False)
            await bus.release(SHARD, "source", asked.transfer, b"done")
            await bus.advertise(SHARD, advert("joiner"), 30)
            await bus.record(SHARD, [b"entry"] * 10)
        assert len(trips) <= 8


async def test_a_listener_confirms_the_life_of_the_store_once_in_a_while(
    server: Server, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url) as bus:
        cursor = Cursor()
        with wire.counting() as trips:
            for _ in range(3):
                cursor = (await bus.listen(SHARD, "in", cursor, 0)).cursor
        assert trips == [2, 1, 1]
        monkeypatch.setattr(ear, "TOUCH_SECONDS", 0.0)
        with wire.counting() as trips:
            await bus.listen(SHARD, "in", cursor, 0)
        assert trips == [2]


@pytest.mark.parametrize("change", ["inbox", "cursor"])
async def test_a_listener_confirms_it_at_once_when_anything_is_new(server: Server, wire: Wire, change: str) -> None:
    async with opened(server.url) as bus:
        await bus.send(SHARD, "in", b"x", "n")
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        with wire.counting() as trips:
            if change == "inbox":
                await bus.listen(SHARD, "other", cursor, 0)
            else:
                await bus.listen(SHARD, "in", Cursor(), 0)
        assert trips == [2]


async def test_a_listener_teaches_a_server_that_forgot_its_scripts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ear, "TOUCH_SECONDS", 0.0)
    async with opened(server.url) as bus:
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        server.ask("SCRIPT", "FLUSH")
        await bus.send(SHARD, "in", b"news", "n")
        heard = await bus.listen(SHARD, "in", cursor, 5)
        assert [letter.body for letter in heard.letters] == [b"news"]


async def test_a_listener_of_letters_alone_sleeps_through_changes_of_the_fleet(server: Server, wire: Wire) -> None:
    async with opened(server.url) as source, opened(server.url) as bus:
        for call in _operations(source).values():
            await call()
        cursor = (await bus.listen(SHARD, "in", Cursor(), 5)).cursor
        with wire.counting() as trips:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_hears_news, bus, cursor)
                await anyio.wait_all_tasks_blocked()
                for number in range(10):
                    await source.advertise(SHARD, advert("source", have=number), 30)
                await source.send(SHARD, "in", b"news", "2")
        assert len(trips) == 1 + 10 + 1, "the listener reads once"


async def _hears_news(bus: RedisBus, cursor: Cursor) -> None:
    heard = await bus.listen(SHARD, "in", cursor, 60, fleet=False)
    assert [letter.body for letter in heard.letters] == [b"news"]


async def test_in_a_cluster_the_index_is_renewed_now_and_then(cluster_url: str, wire: Wire) -> None:
    async with opened(cluster_url) as bus:
        shards = [f"shard{number}" for number in range(8)]
        for _ in range(2):
            for shard in shards:
                await bus.advertise(shard, advert("source"), 30)
        assert await bus.shards() == tuple(shards)
        with wire.counting() as trips:
            for shard in shards:
                await bus.advertise(shard, advert("source"), 30)
        assert trips == [1] * len(shards)
