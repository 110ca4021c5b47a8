"""Ranks of a group killed: the others have one answer."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from rig.case import Case
from rig.fleet import SLOW, Fleet, Worker

from coldstart.group import Group
from coldstart.report import GroupReport

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

SIZE = 4
VICTIM = 2
PRESENCE = 3.0
"""A rank that is not heard of for so long counts as a no; a setting of these cases."""
BEAT = PRESENCE / 10
STORAGE = 1.0
"""Four ranks read the checkpoint at one time."""


async def start(workers: Fleet, name: str, index: int, **options: object) -> Worker:
    options = {"presence": PRESENCE, **options}
    return await workers.start(f"{name}{index}", group=Group(name, SIZE, index), **options)  # type: ignore[arg-type]


async def group_of(workers: Fleet, name: str, **options: object) -> list[Worker]:
    return [await start(workers, name, index, **options) for index in range(SIZE)]


async def lending(workers: Fleet, **options: object) -> list[Worker]:
    """A group that serves and is advertised, a counterpart for every rank to come."""
    members = await group_of(workers, "old", **options)
    for member in members:
        await member.serving()
    await workers.advertised(*(member.name for member in members))
    return members


def left(members: Sequence[Worker]) -> list[Worker]:
    return [member for index, member in enumerate(members) if index != VICTIM]


async def told(member: Worker) -> GroupReport:
    report = await member.serving()
    assert report.group is not None
    return report.group


async def assert_none_serves(members: Sequence[Worker]) -> None:
    """All of them end with the same words, which name the one that is gone."""
    answers = {(code, error[error.index("group new") :]) for code, error in [await each.failed() for each in members]}
    assert len(answers) == 1, answers
    (_, words), *_ = answers
    assert words.startswith(f"group new does not serve: ready: no, rank {VICTIM}: not heard of any more")


async def assert_path(members: Sequence[Worker], path: str) -> None:
    """All of them serve and tell the same."""
    reports = [await told(member) for member in members]
    assert {(report.path, report.verdicts, report.alone) for report in reports} == {(path, reports[0].verdicts, "")}


@fault("rank of 4", "DISCOVER", "no rank serves; all say the same", PRESENCE + BEAT + STORAGE)
async def test_while_it_looks_for_a_source(workers: Fleet, case: Case) -> None:
    await lending(workers)
    proxy = await workers.proxy()
    proxy.down.trap = b"granted"
    members = [await start(workers, "new", index, url=proxy.url if index == VICTIM else "") for index in range(SIZE)]
    await proxy.down.trapped.wait()
    for member in left(members):
        await member.reached("HANDSHAKE")
    members[VICTIM].kill()
    with case.clock():
        await assert_none_serves(left(members))


@fault("rank of 4", "HANDSHAKE, waiting for the last rank", "no rank serves; all say the same", PRESENCE + STORAGE)
async def test_while_it_waits_for_the_others(workers: Fleet, case: Case) -> None:
    await lending(workers)
    members = [await start(workers, "new", index) for index in range(SIZE - 1)]
    for member in members:
        await member.reached("HANDSHAKE")
    members[VICTIM].kill()
    with case.clock():
        members.append(await start(workers, "new", SIZE - 1))
        await assert_none_serves(left(members))


@fault("rank of 4", "TRANSFER", "no rank serves; all say the same", PRESENCE + BEAT)
async def test_while_it_receives(workers: Fleet, case: Case) -> None:
    await lending(workers, lend_gbps=SLOW)
    members = await group_of(workers, "new")
    for member in members:
        await member.reached("TRANSFER", nbytes=1)
    members[VICTIM].kill()
    with case.clock():
        await assert_none_serves(left(members))


@fault("rank of 4", "FALLBACK", "no rank serves; all say the same", PRESENCE + BEAT)
async def test_while_it_reads_storage(workers: Fleet, case: Case) -> None:
    members = [await start(workers, "new", index, disk="hold:1" if index == VICTIM else "") for index in range(SIZE)]
    await workers.stuck(f"new{VICTIM}")
    for member in left(members):
        await member.reached("VERIFY")
    members[VICTIM].kill()
    with case.clock():
        await assert_none_serves(left(members))


@fault("rank of 4", "VERIFY", "no rank serves; all say the same", PRESENCE + BEAT)
async def test_while_it_checks(workers: Fleet, case: Case) -> None:
    members = await group_of(workers, "new", gated=True)
    for member in members:
        await member.reached("VERIFY")
    members[VICTIM].kill()
    workers.open_gate()
    with case.clock():
        await assert_none_serves(left(members))


@fault("rank of 4", "SERVE", "the others serve on", 0.0)
async def test_after_the_verdict(workers: Fleet, case: Case) -> None:
    members = await lending(workers)
    members[VICTIM].kill()
    with case.clock():
        await workers.check(*left(members))
    await assert_path(left(members), "storage")


@fault("rank of 4", "HANDSHAKE, and started anew at once", "all serve, over one path", BEAT + 2.0)
async def test_one_that_is_back_in_time_has_its_place(workers: Fleet, case: Case) -> None:
    await lending(workers)
    members = [await start(workers, "new", index) for index in range(SIZE - 1)]
    for member in members:
        await member.reached("HANDSHAKE")
    members[VICTIM].kill()
    await members[VICTIM].ended()
    with case.clock():
        members[VICTIM] = await start(workers, "new", VICTIM)
        members.append(await start(workers, "new", SIZE - 1))
        await assert_path(members, "peer")
        await workers.check(*members)


@fault("counterpart of a rank", "TRANSFER", "that rank reads storage; one path for all", STORAGE + 2.0)
async def test_a_counterpart_that_dies(workers: Fleet, case: Case) -> None:
    old = await lending(workers, lend_gbps=SLOW)
    members = await group_of(workers, "new")
    await members[VICTIM].reached("TRANSFER", nbytes=1)
    old[VICTIM].kill()
    with case.clock(), anyio.fail_after(60):
        await assert_path(members, "storage")
    assert [(await member.serving()).path for member in left(members)] == ["peer"] * (SIZE - 1)
    await workers.check(*members)


@fault("store", "all ranks in FALLBACK, for good", "each goes on alone, and says so", PRESENCE + BEAT + 2.0)
async def test_a_store_that_dies(workers: Fleet, case: Case) -> None:
    members = await group_of(workers, "new", disk="hold:1")
    for member in members:
        await workers.stuck(member.name)
    workers.store.kill()
    workers.open_gate()
    with case.clock():
        reports = [await told(member) for member in members]
    assert all(report.alone for report in reports)
    await workers.check(*members)
