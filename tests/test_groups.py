"""Groups of ranks over fakes in virtual time: one path, one decision to serve, one answer after a death."""

from __future__ import annotations

import anyio
import pytest

from coldstart import effects
from coldstart.bus.memory import MemoryStore
from coldstart.errors import CheckpointError, ColdStartFailed
from coldstart.events import Event, GroupHeard
from coldstart.group import PATH, PEERS, READY, Group, Verdict
from coldstart.phases.states import (
    Agreeing,
    Checking,
    Confirming,
    Discovering,
    Failed,
    Handshaking,
    Loading,
    Serving,
    State,
    Transferring,
)
from coldstart.plan import Limits
from coldstart.ports import Consensus
from coldstart.report import GroupReport
from coldstart.station import Station, Worker
from coldstart.testing.harness import (
    FLOOR,
    LINEAGE,
    SHARD,
    STORAGE_SECONDS,
    FakeStorage,
    Fleet,
    Member,
    TroubledBus,
    fleet,
)
from coldstart.testing.transports import Breaking
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime
from coldstart.voting import Voting

SIZE = 3
PRESENCE = 4.0
LIMITS = Limits(floor=FLOOR, presence=PRESENCE, follow=60.0)


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def start(workers: Fleet, name: str, index: int, **options: object) -> Member:
    """A rank of the group ``name``."""
    return workers.start(f"{name}{index}", group=Group(name, SIZE, index), limits=LIMITS, **options)  # type: ignore[arg-type]


def group_of(workers: Fleet, name: str) -> list[Member]:
    return [start(workers, name, index) for index in range(SIZE)]


async def lending(workers: Fleet, name: str = "old") -> list[Member]:
    """A group that lends."""
    members = group_of(workers, name)
    for member in members:
        await member.lends()
    return members


def told(member: Member) -> GroupReport:
    """What its report says of its group."""
    group = member.report.group
    assert group is not None
    return group


def answers(member: Member) -> dict[str, bool]:
    return {verdict.question: verdict.yes for verdict in told(member).verdicts}


async def ended(members: list[Member], seconds: float) -> list[type[State]]:
    """The states in which all of them end, in time."""
    with anyio.fail_after(seconds):
        for member in members:
            await member.reached(Serving, Failed)
    return [type(member.joiner.state) for member in members]


# ------------------------------------------------------------------------------------------ the path


async def test_each_rank_pulls_from_its_counterpart_and_all_say_so() -> None:
    async with fleet() as workers:
        await lending(workers)
        members = group_of(workers, "new")
        reports = [await member.ready() for member in members]
        assert [report.sources for report in reports] == [("old0",), ("old1",), ("old2",)]
        assert {told(member).path for member in members} == {"peer"}
        assert answers(members[0]) == {PATH: True, PEERS: True, READY: True}


async def test_when_one_rank_has_no_counterpart_all_read_storage() -> None:
    async with fleet() as workers:
        old = await lending(workers)
        await old[2].drain()
        began = anyio.current_time()
        members = group_of(workers, "new")
        reports = [await member.ready() for member in members]
        assert [report.path for report in reports] == ["storage"] * SIZE
        assert {told(member).path for member in members} == {"storage"}
        assert {told(member).verdicts[0].by for member in members} == {"2"}
        assert anyio.current_time() - began < STORAGE_SECONDS + 1.0, "nobody waits for a no"


async def test_nobody_pulls_before_everybody_has_a_source() -> None:
    async with fleet() as workers:
        await lending(workers)
        early = [start(workers, "new", index) for index in range(SIZE - 1)]
        for member in early:
            await member.reached(Agreeing)
        await anyio.sleep(20.0)
        assert [type(member.joiner.state) for member in early] == [Agreeing] * (SIZE - 1), "longer than a source waits"
        late = start(workers, "new", SIZE - 1)
        assert await ended([*early, late], 10.0) == [Serving] * SIZE
        assert {told(member).path for member in (*early, late)} == {"peer"}


async def test_a_rank_whose_source_dies_later_makes_it_storage_and_the_complete_read_nothing() -> None:
    async with fleet() as workers:
        old = await lending(workers)
        members = [
            start(workers, "new", 0),
            start(workers, "new", 1, transport=lambda inner: Breaking(inner, 1)),
            start(workers, "new", 2),
        ]
        await members[1].reached(Transferring)
        await old[1].kill()
        assert await ended(members, 30.0) == [Serving] * SIZE
        assert {told(member).path for member in members} == {"storage"}
        assert answers(members[0]) == {PATH: True, PEERS: False, READY: True}
        assert [len(member.storage.reads) for member in members] == [0, 1, 0]


async def test_groups_do_not_decide_for_each_other() -> None:
    async with fleet() as workers:
        old = await lending(workers)
        await old[0].drain()
        reading = group_of(workers, "new")
        pairs = [workers.start(f"pair{index}", group=Group("pair", 2, index), limits=LIMITS) for index in range(2)]
        assert await ended(reading, 30.0) == [Serving] * SIZE
        assert await ended(pairs, 30.0) == [Serving] * 2
        assert told(reading[1]).path == "storage"


# ------------------------------------------------------------------------------------------- a death


@pytest.mark.parametrize(
    "where",
    [Discovering, Handshaking, Agreeing, Transferring, Checking, Confirming],
    ids=lambda state: state.__name__,
)
@pytest.mark.parametrize("victim", range(SIZE))
async def test_after_a_death_on_the_way_the_others_have_one_answer_in_seconds(where: type[State], victim: int) -> None:
    async with fleet() as workers:
        await lending(workers)
        dying = anyio.Event()
        members = [
            start(
                workers,
                "new",
                index,
                on_enter={where: dying.set} if index == victim else None,
                # Somebody is always there to wait for, or to be waited for.
                peer_seconds=1.0 if index == victim else 2.0,
            )
            for index in range(SIZE)
        ]
        await dying.wait()
        await members[victim].kill()
        began = anyio.current_time()
        left = [member for member in members if member is not members[victim]]
        assert await ended(left, STORAGE_SECONDS + 3 * PRESENCE) == [Failed] * 2
        assert answers(left[0]) == answers(left[1])
        assert told(left[0]).path == told(left[1]).path
        assert {member.report.error for member in left} == {left[0].report.error}
        assert f"rank {victim}: not heard of any more" in (left[0].report.error or "")
        if told(left[0]).path != "storage":
            assert anyio.current_time() - began < 3 * PRESENCE


async def test_a_death_in_storage_is_noticed_as_soon() -> None:
    async with fleet() as workers:
        members = group_of(workers, "new")
        await members[1].reached(Loading)
        await anyio.sleep(STORAGE_SECONDS / 2)
        await members[1].kill()
        assert await ended([members[0], members[2]], STORAGE_SECONDS + 2 * PRESENCE) == [Failed] * 2
        assert members[0].report.error == members[2].report.error


async def test_a_death_after_the_verdict_changes_nothing() -> None:
    async with fleet() as workers:
        members = group_of(workers, "new")
        await ended(members, 30.0)
        await members[1].kill()
        await anyio.sleep(10 * PRESENCE)
        assert [type(members[index].joiner.state) for index in (0, 2)] == [Serving] * 2


async def test_a_rank_that_fails_takes_the_others_with_it_at_once_and_says_why() -> None:
    async with fleet() as workers:
        broken = FakeStorage(workers.weights(), limit=100_000, error=CheckpointError("disk is gone"))
        members = [start(workers, "new", 0, storage=broken), start(workers, "new", 1), start(workers, "new", 2)]
        with pytest.raises(ColdStartFailed, match="disk is gone"):
            await members[0].ready()
        with anyio.fail_after(1.0):
            for member in members[1:]:
                with pytest.raises(ColdStartFailed, match="group new does not serve: ready: no, rank 0: disk is gone"):
                    await member.ready()


async def test_a_slow_rank_is_waited_for_and_one_that_never_comes_is_not_for_ever() -> None:
    async with fleet() as workers:
        slow = FakeStorage(workers.weights(), 4 * STORAGE_SECONDS)
        members = [start(workers, "new", 0, storage=slow), start(workers, "new", 1), start(workers, "new", 2)]
        assert await ended(members, 5 * STORAGE_SECONDS) == [Serving] * SIZE
        assert told(members[1]).waited == pytest.approx(3 * STORAGE_SECONDS, abs=1.0)
        two = [start(workers, "lonely", index) for index in range(2)]
        assert await ended(two, LIMITS.follow * 2 + STORAGE_SECONDS + PRESENCE) == [Failed] * 2
        assert told(two[0]).verdicts == told(two[1]).verdicts
        assert "waited 60 s for the other ranks" in (two[0].report.error or "")


# ---------------------------------------------------------------------------------------- the store


async def test_without_a_store_each_rank_goes_on_alone_and_says_so() -> None:
    async with fleet() as workers:
        members = [start(workers, "new", index, no_bus="switched off") for index in range(SIZE)]
        assert await ended(members, STORAGE_SECONDS + 1.0) == [Serving] * SIZE
        assert {(told(member).path, told(member).alone) for member in members} == {("", "switched off")}


@pytest.mark.parametrize("empty", [False, True], ids=["with its memory", "empty"])
@pytest.mark.parametrize("away", [1.0, PRESENCE + 3.0], ids=["shortly", "long"])
async def test_a_store_that_was_away_costs_nobody_his_place(empty: bool, away: float) -> None:
    async with fleet() as workers:
        members = group_of(workers, "new")
        for member in members:
            await member.reached(Loading)
        await anyio.sleep(1.0)
        workers.store.stop()
        await anyio.sleep(away)
        workers.store.start(empty=empty)
        assert await ended(members, 30.0) == [Serving] * SIZE
        assert {told(member).path for member in members} == {"storage"}
        assert not told(members[0]).alone


async def test_a_store_that_stays_away_is_waited_for_as_long_as_a_rank_counts_as_here() -> None:
    async with fleet() as workers:
        members = group_of(workers, "new")
        for member in members:
            await member.reached(Loading)
        workers.store.stop()
        assert await ended(members, STORAGE_SECONDS + 2 * PRESENCE) == [Serving] * SIZE
        assert all("stopped" in told(member).alone for member in members)


async def test_a_rank_that_the_store_does_not_answer_is_gone_for_the_others() -> None:
    async with fleet() as workers:
        await lending(workers)
        cut = TroubledBus(workers.store)
        members = [start(workers, "new", 0, bus=cut, peer_seconds=3.0), *(start(workers, "new", n) for n in (1, 2))]
        await members[0].reached(Transferring)
        cut.down.add("vote")
        assert await ended(members[1:], 3 * PRESENCE) == [Failed] * 2
        assert members[1].report.error == members[2].report.error
        await ended(members[:1], 3 * PRESENCE)
        assert "vote fails here" in told(members[0]).alone


async def test_a_group_asks_the_store_little() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        members = [start(workers, "new", 0, bus=bus), start(workers, "new", 1), start(workers, "new", 2)]
        await ended(members, 30.0)
        await anyio.sleep(10 * PRESENCE)
        assert bus.calls.count("vote") < 50, "a sign of life now and then, and quick looks only while it waits"
        lone = TroubledBus(workers.store)
        await workers.start("lone", bus=lone).ready()
        assert "vote" not in lone.calls


async def test_a_no_is_not_taken_back_even_if_the_store_has_not_heard_it_yet() -> None:
    bus = TroubledBus(MemoryStore())
    bus.down.add("vote")
    voting = Voting(Group("new", SIZE, 0), Station(SHARD, LINEAGE, Worker("w", "0"), bus), LIMITS)
    heard: list[Event] = []
    voting.post = heard.append
    await voting.vote(effects.Vote(PATH, False, "no source"))
    assert not any(isinstance(event, GroupHeard) for event in heard)
    bus.down.clear()
    await voting.vote(effects.Vote(PATH, True))
    assert heard[-1] == GroupHeard((Verdict(PATH, False, "0", "no source"),))


# ------------------------------------------------------------------------------- the host's consensus


class AllOf:
    """An all-reduce: it waits for all ranks; ``split`` ranks see it fail, as after a death in it."""

    def __init__(self) -> None:
        self.said: dict[str, list[bool]] = {}
        self.split: dict[str, set[int]] = {}
        self.complete: dict[str, anyio.Event] = {}

    def rank(self, index: int) -> Consensus:
        return _Rank(self, index)


class _Rank:
    def __init__(self, all_of: AllOf, index: int) -> None:
        self._all, self._index = all_of, index

    async def all_agree(self, question: str, yes: bool, seconds: float) -> bool:
        said = self._all.said.setdefault(question, [])
        complete = self._all.complete.setdefault(question, anyio.Event())
        said.append(yes)
        if len(said) == SIZE:
            complete.set()
        await complete.wait()
        if self._index in self._all.split.get(question, ()):
            raise RuntimeError("connection closed by peer")
        return all(said)


@pytest.mark.parametrize("no_bus", ["", "switched off"], ids=["with a store", "without"])
async def test_the_hosts_consensus_is_asked_by_every_rank_once(no_bus: str) -> None:
    async with fleet() as workers:
        if not no_bus:
            await lending(workers)
        all_of = AllOf()
        members = [
            start(workers, "new", index, no_bus=no_bus, consensus=all_of.rank(index)) for index in range(SIZE)
        ]
        assert await ended(members, 30.0) == [Serving] * SIZE
        assert all_of.said == {PATH: [not no_bus] * SIZE, READY: [True] * SIZE}
        assert {told(member).path for member in members} == {"storage" if no_bus else "peer"}
        assert not any(told(member).alone for member in members)


@pytest.mark.parametrize("question", [PATH, READY])
async def test_where_it_ended_differently_the_record_says_no_to_all(question: str) -> None:
    async with fleet() as workers:
        await lending(workers)
        all_of = AllOf()
        all_of.split[question] = {1}
        members = [start(workers, "new", index, consensus=all_of.rank(index)) for index in range(SIZE)]
        await ended(members, 30.0)
        assert answers(members[0]) == answers(members[1]) == answers(members[2])
        assert answers(members[0])[question] is False
        assert [type(member.joiner.state) for member in members] == [Failed] * SIZE, "a broken group is not asked again"


async def test_a_rank_that_reads_storage_does_not_leave_the_others_waiting_in_it() -> None:
    async with fleet() as workers:
        old = await lending(workers)
        await old[2].drain()
        all_of = AllOf()
        members = [start(workers, "new", index, consensus=all_of.rank(index)) for index in range(SIZE)]
        assert await ended(members, 30.0) == [Serving] * SIZE
        assert False in all_of.said[PATH]
        assert len(all_of.said[PATH]) == len(all_of.said[READY]) == SIZE
        assert {told(member).path for member in members} == {"storage"}

