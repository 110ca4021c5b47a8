"""The ACL for workers names what the scripts and connections use, no less and no more; all real tests run under it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coldstart.bus import acl, polls, scripts
from coldstart.bus.redis import RedisBus
from coldstart.cli.checks.store import StoreChecks
from coldstart.config import Settings
from coldstart.errors import BusError
from coldstart.testing.bus_contract import SHARD, advert
from tests.bus.conftest import Server

CALL = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")


def test_every_command_of_the_scripts_is_named_and_no_other() -> None:
    texts = [getattr(scripts, name).text for name in scripts.__all__ if name != "Script"]
    used = {
        f"{command}|{sub}".lower() if command == "XINFO" else command.lower()
        for text in (*texts, polls.VOTE.text)
        for command, sub in CALL.findall(text)
    }
    assert used == set(acl.SCRIPTED)


@pytest.mark.parametrize(
    "words",
    [
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("INFO",),
        ("SCRIPT", "FLUSH"),
        ("CLIENT", "LIST"),
        ("PUBLISH", "channel", "text"),
        ("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "another:key"),
        ("EVAL", "return redis.call('FLUSHALL')", 0),
        ("EVAL", "return redis.call('KEYS', 'cs:*')", 0),
        ("XREAD", "STREAMS", "another:stream", "0"),
    ],
    ids=lambda words: " ".join(map(str, words))[:40],
)
async def test_what_is_not_named_is_refused(words: tuple[str | int, ...], shared_server: Server) -> None:
    bus = await RedisBus.open(shared_server.url)
    try:
        await bus.advertise(SHARD, advert("source"), 1)
        with pytest.raises(BusError, match=r"extend its ACL|denied|permission|can't run"):
            async with bus._calls.link("try") as link:
                await link.call(*words)
    finally:
        await bus.aclose()


async def test_a_namespace_of_others_is_out_of_reach(shared_server: Server) -> None:
    bus = await RedisBus.open(shared_server.url, "another", probe=False)
    try:
        with pytest.raises(BusError, match="denies this user"):
            await bus.advertise(SHARD, advert("source"), 1)
    finally:
        await bus.aclose()


async def test_doctor_says_what_it_may_not_ask(shared_server: Server) -> None:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        (check,) = await StoreChecks(Settings(redis=shared_server.url), stack).reach()
    assert (check.status, "grant INFO" in check.advice) == ("warn", True)


def test_the_documented_rule_is_the_one_that_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text()
    (block,) = (each for each in page.split("```") if "ACL SETUSER" in each)
    assert block.split() == ["ACL", "SETUSER", "coldstart", "on", ">PASSWORD", *acl.rule("cs")]
