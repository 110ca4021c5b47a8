"""What nobody of ours has written to a real store harms nobody: letters, adverts, claims, answers."""

import msgspec
import pytest

from coldstart.bus.limits import LOOKS, MAX_WAITING
from coldstart.errors import BusError
from coldstart.ports import Cursor, Deferred, Elected, Granted, Queue
from coldstart.testing.bus_contract import LAYOUT, SHARD, advert, claim
from tests.bus.conftest import Server
from tests.bus.opened import opened

# ------------------------------------------------------------------------------ hostile content


async def test_letters_nobody_could_have_sent_are_dropped_and_counted(server: Server) -> None:
    inbox = f"cs:{{{SHARD}}}:inbox:in"
    server.ask("XADD", inbox, "*", "body", bytes(65 * 1024), "fence", 0)
    server.ask("XADD", inbox, "*", "nobody", "x")
    server.ask("XADD", inbox, "*", "body", "x", "fence", "-1")
    for told in ("{", "[]", '["e","r","no advert",1,1]'):
        server.ask("XADD", inbox, "*", "body", "", "fence", 0, "transfer", "t", "granted", told)
    async with opened(server.url) as bus:
        await bus.send(SHARD, "in", b"good", "n1")
        heard = await bus.listen(SHARD, "in", Cursor(), 5)
        assert [letter.body for letter in heard.letters] == [b"good"]
        assert bus.dropped == 6


_HALF_AN_ADVERT = f'{{"inbox": "i", "layout": "{LAYOUT}"}}'


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "7", '"x"', "{}", _HALF_AN_ADVERT, "[" * 5000])
async def test_a_malformed_advert_harms_nobody_else(server: Server, rubbish: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        server.ask("HSET", f"cs:{{{SHARD}}}:adverts", "evil", rubbish)
        server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, "evil")
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        assert [each.worker for each in await bus.adverts(SHARD)] == ["source"]


@pytest.mark.parametrize("proof", ["1", "null", "[]", "false", "{}"])
async def test_a_malformed_proof_is_no_proof(server: Server, proof: str) -> None:
    """``null`` is what JSON has for a field that is not there, and no number either."""
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good"), 30)
        text = msgspec.json.encode(advert("evil")).decode()
        spoilt = text.replace('"proof":0', f'"proof":"{proof}"' if proof == "1" else f'"proof":{proof}')
        assert spoilt != text
        server.ask("HSET", f"cs:{{{SHARD}}}:adverts", "evil", spoilt)
        server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, "evil")
        await bus.strike(SHARD, "evil", "1", 0, b"doubt")
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        assert [each.worker for each in await bus.adverts(SHARD)] == ["good"]


@pytest.mark.parametrize("parts", ["null", "0", '"0"', "[2]", "[-1]", "[0.5]", "[[0]]", '{"a": 0}', "[0, null]"])
async def test_malformed_parts_harm_nobody_else(server: Server, parts: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good"), 30)
        await _advertised(server, "evil", msgspec.json.encode(advert("evil")).replace(b"[]", parts.encode()))
        granted = await bus.claim(claim(part=0))
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]


@pytest.mark.parametrize("rate", ["null", '"0"', "-1", "0.5", "1e16", "1e999", "[]", "{}"])
async def test_a_malformed_rate_harms_nobody_else(server: Server, rate: str) -> None:
    """Not the one who stands in line for others, either."""
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good", slots=1, rate=7), 30)
        evil = msgspec.json.encode(advert("evil", rate=5)).replace(b'"rate":5', b'"rate":%b' % rate.encode())
        await _advertised(server, "evil", evil)
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        waits = await bus.claim(claim(queue_seconds=30.0, lead_seconds=0.0))
        assert isinstance(waits, Deferred)
        assert waits.queue == Queue(0, 1, 1, 7, 0, ("127.0.0.1",))


async def test_parts_cannot_be_named_more_often_than_there_are(server: Server) -> None:
    async with opened(server.url) as bus:
        with pytest.raises(BusError, match="or too many"):
            await bus.advertise(SHARD, advert("source", parts=(1,) * 20_000), 30)


async def _advertised(server: Server, worker: str, json: bytes) -> None:
    server.ask("HSET", f"cs:{{{SHARD}}}:adverts", worker, json)
    server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, worker)


async def test_the_advert_of_an_older_version_lacks_what_came_later_and_can_be_struck(server: Server) -> None:
    async with opened(server.url) as bus:
        older = msgspec.json.decode(msgspec.json.encode(advert("older")), type=dict[str, object])
        del older["proof"], older["struck"], older["rack"], older["parts"], older["rate"]
        await _advertised(server, "older", msgspec.json.encode(older))
        asked = claim(rack="r1", part=1)
        assert isinstance(await bus.claim(asked), Granted)
        assert await bus.release(SHARD, "older", asked.transfer) == advert("older")
        await bus.strike(SHARD, "older", "1", 0, b"doubt")
        assert await bus.adverts(SHARD) == (advert("older", struck=True),)
        assert isinstance(await bus.claim(claim()), Elected)


def _line() -> str:
    return f"cs:{{{SHARD}}}:line:{LAYOUT}"


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "7", "{}", f'{{"slot_ms": 1, "inbox": "i", "layout": "{LAYOUT}"}}'])
async def test_a_malformed_claim_in_line_harms_nobody_else(server: Server, rubbish: str) -> None:
    async with opened(server.url) as bus:
        server.ask("ZADD", _line(), -1, "evil")
        server.ask("HSET", f"cs:{{{SHARD}}}:wait:evil", "layout", LAYOUT, "since", 1, "claim", rubbish, "hello", "")
        good = claim("good", queue_seconds=30.0, lead_seconds=0.0)
        assert isinstance(await bus.claim(good), Deferred)
        await bus.advertise(SHARD, advert("source", slots=1), 30)
        assert (await bus.adverts(SHARD))[0].used == 1
        assert isinstance(await bus.claim(good), Granted)


@pytest.mark.parametrize("crowd", [None, "1", 1e300, -1, 0.5, {}])
async def test_a_claim_in_line_that_asks_for_no_part_as_we_write_it_gets_everything(
    server: Server, crowd: object
) -> None:
    """As one of an older version does, which knows of neither part nor crowd."""
    async with opened(server.url) as bus:
        first, second = (claim(name, queue_seconds=30.0, lead_seconds=0.0) for name in ("first", "second"))
        for each in (first, second):
            assert isinstance(await bus.claim(each), Deferred)
        wait = f"cs:{{{SHARD}}}:wait:{first.transfer}"
        stored = msgspec.json.decode(str(server.ask("HGET", wait, "claim"), "utf-8"), type=dict[str, object])
        del stored["part"], stored["crowd"]
        server.ask("HSET", wait, "claim", msgspec.json.encode(stored if crowd is None else {**stored, "crowd": crowd}))
        await bus.advertise(SHARD, advert("source"), 30)
        answer = await bus.claim(first)
        assert isinstance(answer, Granted)
        assert answer.part == -1


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("role", [None, "", "x", "-1", "2", "0.5", "nan"])
async def test_a_claim_in_line_without_a_role_as_we_write_it_takes_the_first_part(
    server: Server, role: str | None, served: bool
) -> None:
    async with opened(server.url) as bus:
        other = claim(transports=("none",), queue_seconds=30.0, lead_seconds=0.0)
        asked = claim(exclude=() if served else ("source",), queue_seconds=30.0, lead_seconds=0.0, crowd=1)
        for each in (other, asked):
            assert isinstance(await bus.claim(each), Deferred)
        wait = f"cs:{{{SHARD}}}:wait:{asked.transfer}"
        server.ask(*(("HDEL", wait, "role") if role is None else ("HSET", wait, "role", role)))
        await bus.advertise(SHARD, advert("source"), 30)
        answer = await bus.claim(msgspec.structs.replace(asked, exclude=()))
        assert isinstance(answer, Granted)
        assert answer.part == 0


@pytest.mark.parametrize("moved", ["", "x", "1", "x 0", "9 x", "9 0 0", "9 -1"])
async def test_a_last_grant_that_names_no_part_as_we_write_it_makes_no_crowd(server: Server, moved: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        server.ask("SET", f"cs:{{{SHARD}}}:moved:{LAYOUT}", moved)
        answer = await bus.claim(claim(crowd=8, share_seconds=1e10))
        assert isinstance(answer, Granted)
        assert answer.part == -1


@pytest.mark.parametrize(("kept", "part"), [((), -1), ((1,), 1), ((2,), None), ((-2,), None)])
async def test_an_answer_names_a_part_that_there_is_or_none_at_all(
    server: Server, kept: tuple[int, ...], part: int | None
) -> None:
    """None is what an older version has kept; nobody reads a part that cannot be."""
    asked, json = claim(inbox="in"), msgspec.json.encode(advert("source"))
    server.ask("RPUSH", f"cs:{{{SHARD}}}:claim:{asked.transfer}", "e", "granted", "r", "[]", json, 1, 0, 7, *kept)
    told = msgspec.json.encode(["e", "r", json.decode(), 1, 7, *kept])
    server.ask("XADD", f"cs:{{{SHARD}}}:inbox:in", "*", "body", "", "fence", 0, "transfer", "t", "granted", told)
    async with opened(server.url) as bus:
        heard = await bus.listen(SHARD, "in", Cursor(), 0)
        assert [letter.granted.part for letter in heard.letters if letter.granted] == ([] if part is None else [part])
        if part is None:
            with pytest.raises(BusError, match="the part"):
                await bus.claim(asked)
        else:
            answer = await bus.claim(asked)
            assert isinstance(answer, Granted)
            assert answer.part == part


async def test_a_line_is_bounded_and_those_who_gave_up_make_room(server: Server) -> None:
    async with opened(server.url) as bus:
        gone = [word for number in range(MAX_WAITING) for word in (number, f"gone{number}")]
        server.ask("ZADD", _line(), *gone)
        for number in range(LOOKS):
            server.ask("HSET", f"cs:{{{SHARD}}}:wait:gone{number}", "layout", LAYOUT)
        waiting = claim(queue_seconds=30.0, lead_seconds=0.0)
        assert isinstance(await bus.claim(waiting), Deferred)
        assert server.ask("ZSCORE", _line(), waiting.transfer) is None
        server.ask("DEL", f"cs:{{{SHARD}}}:wait:gone0")
        assert isinstance(await bus.claim(waiting), Deferred)
        assert server.ask("ZSCORE", _line(), waiting.transfer) is not None


async def test_nonsense_from_the_store_is_a_bus_error(server: Server) -> None:
    server.ask("SET", f"cs:{{{SHARD}}}:life", "not a hash")
    async with opened(server.url) as bus:
        with pytest.raises(BusError, match="refuses"):
            await bus.claim(claim())
