"""The joiner's machine: total, closed, bounded, and idempotent."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from coldstart import effects, events
from coldstart.effects import Arm, Effect
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Timer
from coldstart.group import QUESTIONS, Group, Verdict
from coldstart.machine import EDGES, PAGES, ended, initial, phase_of, step
from coldstart.phases import groups
from coldstart.phases.states import (
    PHASE_OF,
    Abandoning,
    Agreeing,
    Checking,
    Confirming,
    Discovering,
    Failed,
    Failure,
    Gone,
    Handshaking,
    Idle,
    Loading,
    Phase,
    Replacing,
    Serving,
    State,
    Transferring,
    Waiting,
    further_of,
)
from coldstart.plan import Chunks, Limits, Pace
from coldstart.portions import Brought
from coldstart.ports import Advert, Queue

LIMITS = Limits(patience=5.0, answer=2.0, stall=2.0, sources=2, share=0.0, crowd=0)
CROWD = replace(LIMITS, sources=1, crowd=1)
"""Every source gives a part, and there is a second one; fewer tries keep the exploration small."""
CHUNKS = 2


def advert(worker: str, have: int = CHUNKS) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, have, CHUNKS, ("tcp",), "127.0.0.1", "cpu")


def answers(state: State, effect: Effect) -> Iterator[Event]:
    """Everything the world may answer to an effect, good and bad."""
    match effect:
        case effects.ClaimSource(attempt=n) if n > 0 and state.journey.storage_rate:
            yield events.SourceClaimed(n, advert("a"), "root", rate=1.0)
            yield events.SourceClaimed(n, advert("d", have=1), "", rate=1.0)
            yield events.ClaimDeferred(n, "", queue=Queue(1, 2, 2), rate=1.0)
            yield events.LoaderElected(n)
        case effects.Admit(attempt=n):
            yield events.StorageOpened(n, 0)
            yield events.StorageRefused(n, 1)
        case effects.ClaimSource(attempt=n) if n < 0:
            yield events.SourceClaimed(n, advert("s"), "root", part=1)
            yield events.ClaimDeferred(n, "")
            yield events.ClaimFailed(n, "bus down")
            yield events.OfferReceived(n, "tcp", b"t", 1)
            yield events.OfferReceived(n, "tcp", b"t", 1, Chunks.of([1]))
            yield events.OfferRefused(n, "busy")
            yield events.SourceProgressed(n, None)
        case effects.ClaimSource(attempt=n, crowd=crowd) if crowd:
            yield events.SourceClaimed(n, advert("p"), "root", part=0)
            yield events.SourceClaimed(n, advert("p", have=1), "", part=0)
            yield events.ClaimFailed(n, "bus down")
        case effects.ClaimSource(attempt=n, exclude=exclude):
            for worker in ("a", "b", "c"):
                if worker not in exclude:
                    yield events.SourceClaimed(n, advert(worker), "root")
                    yield events.SourceClaimed(n, advert(worker), "")
            yield events.SourceClaimed(n, advert("d", have=1), "")
            yield events.LoaderElected(n)
            yield events.LoaderElected(n, "root")
            yield events.ClaimDeferred(n, "leader")
            yield events.ClaimDeferred(n, "")
            yield events.ClaimFailed(n, "bus down")
            yield events.TruthDisputed(n, ("x", "y"))
        case effects.FetchTruth(attempt=n):
            yield events.TruthReceived(n)
            yield events.TruthMissed(n, "gone")
        case effects.Connect(attempt=n):
            yield events.Connected(n)
            yield events.ConnectFailed(n, "unreachable")
        case effects.Pull(attempt=n, chunks=chunks) | effects.ReadStorage(attempt=n, chunks=chunks):
            yield events.BytesLanded(n, 1)
            for chunk in chunks:
                yield events.ChunkVerified(n, chunk)
                yield events.ChunkCorrupted(n, chunk)
            yield events.PullEnded(n)
            yield events.PullEnded(n, "broken")
            yield events.PullEnded(n, "broken", quiet=False)
            if isinstance(effect, effects.Pull) and state.journey.growing:
                yield events.PullEnded(n, chunks=chunks)
                yield events.PullEnded(n, "broken", chunks=chunks)
            if isinstance(effect, effects.ReadStorage):
                yield events.TruthMissed(n, "gone")
                yield events.TruthReceived(n, "root")
        case effects.StateDigests(attempt=n, chunks=chunks):
            yield events.DigestsStated(n, chunks)
            yield events.StatementRefused(n, "another reader has stated others")
        case effects.ReplaceMemory(attempt=n, keep=keep):
            yield events.MemoryReplaced(n)
            yield events.MemoryRefused(n, "no room")
            yield events.MemoryReplaced(n, keep)
        case effects.PublishTruth(attempt=n):
            yield events.TruthPublished(n, "root")
            yield events.TruthUnpublished(n, "bus down")
            yield events.TruthConflicted(n, ("x", "y"))
        case effects.Check(attempt=n, source=source):
            yield events.CheckPassed(n)
            yield events.CheckFailed(n, "tie broken")
            if source is not None:
                yield events.SourceChanged(n, source.worker, "generation")
        case effects.Vote(question=question, yes=yes):
            yield events.GroupHeard((Verdict(question, yes),))
            yield events.GroupHeard((Verdict(question, False, "1", "no source"),))
            yield events.GroupLost("bus down")
        case effects.StopLending():
            yield events.Drained()
        case _:
            return


def ambient(state: State) -> Iterator[Event]:
    n = state.journey.attempt
    yield events.DrainRequested()
    if state.journey.accord is not None and not isinstance(state, Idle):
        for question in QUESTIONS:
            yield events.GroupHeard((Verdict(question, False, "1", "gone"),))
    for timer in (Timer.PATIENCE, Timer.ANSWER, Timer.RETRY, Timer.STALL, Timer.QUIET, Timer.CHECK, Timer.GROUP):
        yield events.Expired(timer)
    for each in state.further if isinstance(state, Transferring) else ():
        for timer in (Timer.ANSWER, Timer.RETRY, Timer.STALL, Timer.QUIET):
            yield events.Expired(timer, str(each.attempt))
    if isinstance(state, Handshaking):
        yield events.OfferReceived(n, "tcp", b"t", 1)
        yield events.OfferReceived(n, "tcp", b"t", 1, Chunks.first(1))
    if isinstance(state, Waiting):
        yield events.OfferReceived(n, "tcp", b"t", 1)  # of a source whose truth was lost
    if isinstance(state, Waiting | Handshaking | Transferring | Checking):
        for have in (None, Chunks(), Chunks.first(1)):
            yield events.SourceProgressed(n, have)
    if isinstance(state, Transferring):
        yield events.TruthReceived(n, "root")
    if isinstance(state, Waiting | Handshaking | Agreeing | Transferring | Checking):
        yield events.OfferRefused(n, "busy")


def normal(state: State) -> State:
    """The state without what only grows, so that exploration closes."""
    journey = replace(
        state.journey, attempt=0, asides=0, followed=0.0, detours=(), patience=min(state.journey.patience, 5.0)
    )
    if journey.choice is not None:
        journey = replace(journey, asked=int(state.journey.asked == state.journey.attempt))
        journey = replace(journey, choice=replace(journey.choice, at=0.0))
    if journey.accord is not None:
        verdicts = tuple(Verdict(verdict.question, verdict.yes) for verdict in journey.accord.verdicts)
        said = tuple(sorted(journey.accord.said))
        journey = replace(journey, accord=replace(journey.accord, said=said, verdicts=verdicts, waited=0.0))
    state = replace(state, journey=journey)
    if isinstance(state, Transferring | Abandoning):
        state = replace(state, further=tuple([replace(each, attempt=-1, brought=None) for each in state.further]))
    if isinstance(state, Transferring):
        state = replace(state, seen=0.0, brought=Brought(0.0, 0.0), since=0.0, mark=0)
    if isinstance(state, Abandoning):
        state = replace(state, waits=tuple((0 if attempt > 0 else -1, chunks) for attempt, chunks in state.waits))
    if isinstance(state, Discovering | Waiting | Handshaking | Agreeing | Confirming):
        state = replace(state, since=0.0)
    if isinstance(state, Transferring | Abandoning):
        state = replace(state, pace=Pace.begun(0.0))
    if isinstance(state, Replacing):
        state = replace(state, since=0.0)
    if isinstance(state, Handshaking | Agreeing) and state.offer is not None:
        state = replace(state, offer=replace(state.offer, attempt=0))
    return state


def attempts(state: State) -> set[int]:
    """Whose events are news."""
    return {state.journey.attempt, *[each.attempt for each in further_of(state)]}


class Explored:
    """Breadth-first closure of the machine under an adversarial world; in a group, of less of it."""

    def __init__(
        self,
        group: Group | None = None,
        limits: Limits = LIMITS,
        connecting: tuple[str, ...] = (),
        storage_rate: float = 0.0,
        growing: tuple[str, ...] = (),
    ) -> None:
        limits, chunks = (limits, CHUNKS) if group is None else (replace(limits, sources=1), 1)
        self.states: set[State] = set()
        self.phases: set[tuple[Phase, Phase]] = set()
        self.steps = 0
        start = initial(limits, group)
        queue: deque[tuple[State, tuple[Effect, ...]]] = deque([(start, ())])
        seen: set[tuple[State, frozenset[str]]] = set()
        while queue:
            state, pending = queue.popleft()
            world: list[Event] = [answer for effect in pending for answer in answers(state, effect)]
            if phase_of(state) is Phase.IDLE:
                started = events.Started(
                    chunks, chunk_bytes=10, connecting=connecting, growing=growing, storage_rate=storage_rate
                )
                world += [started, replace(started, loaded=True)]
            for event in (*world, *ambient(state)):
                after, asked = step(state, event, at=1.0)
                self.steps += 1
                before_phase, after_phase = phase_of(state), phase_of(after)
                if before_phase is not after_phase:
                    self.phases.add((before_phase, after_phase))
                live = tuple(
                    effect
                    for effect in (*pending, *asked)
                    if getattr(effect, "attempt", after.journey.attempt) in attempts(after)
                )
                live = tuple(dict.fromkeys(live))
                if isinstance(event, events.PullEnded):  # until then it may tell of bytes, whatever state that is
                    live = tuple(
                        e
                        for e in live
                        if e in asked
                        or not isinstance(e, effects.Pull | effects.ReadStorage)
                        or e.attempt != event.attempt
                        or (event.chunks is not None and event.chunks != e.chunks)
                    )
                if type(after) is not type(state) or after.journey.attempt != state.journey.attempt:
                    live = tuple(
                        effect
                        for effect in live
                        if effect in asked
                        or isinstance(effect, effects.Pull | effects.ReadStorage | effects.Admit)
                        or (isinstance(effect, effects.ClaimSource) and effect.attempt < 0)
                    )
                key = (normal(after), frozenset(type(effect).__name__ for effect in live))
                if key not in seen:
                    seen.add(key)
                    self.states.add(normal(after))
                    queue.append((after, live))


@pytest.fixture(scope="module")
def explored() -> Explored:
    return Explored()


@pytest.fixture(scope="module")
def crowded() -> Explored:
    return Explored(limits=CROWD, growing=("tcp",))


@pytest.fixture(scope="module")
def growing() -> Explored:
    return Explored(limits=replace(LIMITS, sources=1), growing=("tcp",))


@pytest.fixture(scope="module")
def weighing() -> Explored:
    return Explored(limits=replace(LIMITS, sources=1), storage_rate=10.0)


@pytest.fixture(scope="module")
def grouped() -> Explored:
    return Explored(Group("run", 2, 0))


@pytest.fixture(scope="module")
def connecting() -> Explored:
    return Explored(Group("run", 2, 0), connecting=("tcp",))


def test_the_table_is_total_and_its_sets_are_disjoint() -> None:
    assert set(PAGES) == set(PHASE_OF)
    for page in PAGES.values():
        handled = set(page.handled)
        assert handled | page.ignored | page.illegal == groups.ALL, page.state
        assert not handled & page.ignored, page.state
        assert not handled & page.illegal, page.state
        assert not page.ignored & page.illegal, page.state


def test_every_joiner_event_is_in_exactly_one_group() -> None:
    parts = [
        groups.CLAIM_ANSWERS,
        groups.ADMISSION,
        groups.TRUTH_ANSWERS,
        groups.OFFER_ANSWERS,
        groups.CONNECT_ANSWERS,
        groups.PULL_REPORTS,
        groups.STATE_ANSWERS,
        groups.MEMORY_ANSWERS,
        groups.PUBLISH_ANSWERS,
        groups.CHECK_ANSWERS,
        groups.START,
        groups.DRAINED,
        groups.HOST,
        groups.AMBIENT,
    ]
    assert sum(map(len, parts)) == len(groups.ALL)


def test_exploration_closes_and_reaches_every_state(explored: Explored, grouped: Explored) -> None:
    """No illegal transition is reachable: step() would have raised."""
    alone = {type(state) for state in explored.states} | {Idle}
    assert alone == set(PHASE_OF) - {Agreeing, Confirming}, "without a group there is nothing to agree on"
    assert {type(state) for state in grouped.states} | {Idle} == set(PHASE_OF)
    assert explored.steps > 1000


def test_the_published_edges_are_exactly_the_reachable_ones(explored: Explored, grouped: Explored) -> None:
    reached = explored.phases | grouped.phases
    leaving = {(before, after) for before, after in reached if after is Phase.GONE}
    assert reached - leaving == set(EDGES) - {(Phase.SERVE, Phase.GONE)}
    assert (Phase.SERVE, Phase.GONE) in leaving


def test_serving_always_means_every_chunk_verified(explored: Explored, grouped: Explored) -> None:
    for state in explored.states | grouped.states:
        if isinstance(state, Serving | Checking | Confirming):
            assert state.journey.complete, state


def test_exploration_closes_with_a_second_source_too(crowded: Explored) -> None:
    seconds = [each for state in crowded.states if isinstance(state, Transferring) for each in state.further]
    assert any(second.pulling for second in seconds)
    assert any(second.ending for second in seconds)
    assert all(len(further_of(state)) <= 1 for state in crowded.states), "in a crowd there are two sources"
    assert {Serving, Failed, Gone, Replacing, Abandoning} < {type(state) for state in crowded.states}


def test_exploration_closes_with_a_transport_that_connects(connecting: Explored) -> None:
    shaking = [state for state in connecting.states if isinstance(state, Handshaking)]
    assert {(state.connected, state.truth) for state in shaking if state.offer} >= {(False, False), (False, True)}
    assert {Serving, Failed, Gone, Transferring, Agreeing} < {type(state) for state in connecting.states}


def test_exploration_closes_with_pulls_that_grow(growing: Explored, explored: Explored) -> None:
    assert {type(state) for state in growing.states} == {type(state) for state in explored.states}


def test_two_sources_never_bring_the_same_chunk(crowded: Explored) -> None:
    for state in crowded.states:
        if isinstance(state, Transferring):
            assert not any(state.pulling & each.pulling for each in state.further), state
        if isinstance(state, Serving | Checking):
            assert state.journey.complete, state


def test_exploration_closes_where_peers_are_weighed_against_storage(weighing: Explored) -> None:
    decided = {
        (type(state), state.journey.choice.decision) for state in weighing.states if state.journey.choice is not None
    }
    waiting = {(kind, word) for kind in (Waiting, Handshaking, Transferring) for word in ("ask", "full")}
    assert waiting | {(Loading, "storage"), (Abandoning, "storage"), (Serving, "storage")} <= decided
    for state in weighing.states:
        if isinstance(state, Serving):
            assert state.journey.complete, state


def test_illegal_events_raise_and_name_both() -> None:
    with pytest.raises(IllegalTransition, match="CheckPassed in state Idle"):
        step(initial(LIMITS), events.CheckPassed(0), 0.0)


def drive(seed: int) -> tuple[State, int]:
    """Answer effects at random until the machine ends or serves; returns the number of steps."""
    random_ = random.Random(seed)
    state, asked = step(initial(CROWD if seed % 2 else LIMITS), events.Started(CHUNKS), 0.0)
    pending, at, steps = list(asked), 0.0, 0
    while not ended(state) and not isinstance(state, Serving):
        steps += 1
        at += random_.random()
        choices: list[Event] = [answer for effect in pending for answer in answers(state, effect)]
        choices = [c for c in choices if getattr(c, "attempt", state.journey.attempt) in attempts(state)]
        armed = [events.Expired(e.timer, e.subject) for e in pending if isinstance(e, effects.Arm)]
        if isinstance(state, Handshaking):
            choices.append(events.OfferReceived(state.journey.attempt, "tcp", b"t", 1))
        event = random_.choice(choices or armed)
        if random_.random() < 0.2 and armed:
            event = random_.choice(armed)
        try:
            state, asked = step(state, event, at)
        except IllegalTransition:
            continue  # the random world answers twice; the explorer above shows what is legal
        news = [effect for effect in asked if not isinstance(effect, effects.Share)]
        kept = [each for each in pending if isinstance(each, effects.Pull | effects.ReadStorage | Arm)]
        pending = (pending if not news else kept[-24:]) + news
        assert steps < 500, "does not end"
    return state, steps


@pytest.mark.parametrize("seed", range(300))
def test_every_random_world_ends(seed: int) -> None:
    state, _ = drive(seed)
    assert isinstance(state, Serving | Failed | Gone)
    if isinstance(state, Serving):
        assert state.journey.complete


def handshaking(worker: str = "a") -> State:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.SourceClaimed(1, advert(worker), "root"), 0.1)
    return state


def transferring() -> State:
    state, _ = step(handshaking(), events.TruthReceived(1), 0.2)
    state, asked = step(state, events.OfferReceived(1, "tcp", b"ticket", 7), 0.3)
    assert isinstance(state, Transferring)
    assert effects.Pull(1, advert("a"), "tcp", b"ticket", Chunks.first(CHUNKS)) in asked
    return state


def test_a_source_that_dies_costs_nothing_that_was_verified() -> None:
    state, _ = step(transferring(), events.ChunkVerified(1, 0), 0.4)
    state, asked = step(state, events.PullEnded(1, "closed"), 0.5)
    assert isinstance(state, Discovering)
    assert effects.ClaimSource(2, ("a",), have=1) in asked
    assert effects.Release(1, "a", "closed") in asked
    state, _ = step(state, events.SourceClaimed(2, advert("b"), "root"), 0.6)
    state, asked = step(state, events.OfferReceived(2, "tcp", b"other", 8), 0.7)
    assert effects.Pull(2, advert("b"), "tcp", b"other", Chunks.of([1])) in asked, "the known truth is enough"


def test_wrong_bytes_exclude_the_source_and_wait_for_quiet() -> None:
    state, asked = step(transferring(), events.ChunkCorrupted(1, 1), 0.4)
    assert effects.Abandon(1) in asked
    assert phase_of(state) is Phase.TRANSFER
    state, asked = step(state, events.PullEnded(1, "abandoned"), 0.5)
    assert effects.ClaimSource(2, ("a",)) in asked


def test_a_stall_costs_patience_and_the_next_source_is_tried() -> None:
    state, asked = step(transferring(), events.Expired(Timer.STALL), 2.4)
    assert effects.Abandon(1) in asked
    state, _ = step(state, events.PullEnded(1, "abandoned"), 2.5)
    assert isinstance(state, Discovering)
    assert state.journey.patience == pytest.approx(5.0 - 2.5), "handshake, transfer, and the wait for quiet"


def test_a_truth_that_never_came_is_asked_for_again_at_the_next_source() -> None:
    for event in (events.Expired(Timer.ANSWER), events.OfferRefused(1, "busy")):
        state, _ = step(handshaking(), event, 1.0)
        state, asked = step(state, events.SourceClaimed(2, advert("b"), "root"), 1.1)
        assert effects.FetchTruth(2, "root") in asked
        state, _ = step(state, events.OfferReceived(2, "tcp", b"ticket", 7), 1.2)
        assert isinstance(state, Handshaking), "without the truth no byte is asked for"


def over(transport: str, *ours: str, sources: int = 3) -> State:
    """Transferring over ``transport`` from a source that has ``fast`` and ``tcp``."""
    state, _ = step(initial(replace(LIMITS, sources=sources)), events.Started(CHUNKS, transports=ours), 0.0)
    both = replace(advert("a"), transports=("fast", "tcp"))
    state, _ = step(state, events.SourceClaimed(1, both, "root"), 0.1)
    state, _ = step(state, events.TruthReceived(1), 0.2)
    state, _ = step(state, events.OfferReceived(1, transport, b"ticket", 7), 0.3)
    return state


def test_a_transport_over_which_nothing_landed_is_left_and_the_source_is_asked_over_another() -> None:
    state, asked = step(over("fast", "fast", "tcp"), events.PullEnded(1, "unsupported"), 0.4)
    assert effects.ClaimSource(2, (), ("fast",)) in asked
    assert effects.Release(1, "a", "unsupported") in asked
    assert state.journey.detours == ("a: unsupported over fast",)


@pytest.mark.parametrize(
    ("ours", "transport", "landed"),
    [
        (("fast", "tcp"), "fast", 1),
        (("fast",), "fast", 0),
        (("fast", "other"), "fast", 0),
        (("fast", "tcp"), "never announced", 0),
    ],
    ids=["something landed", "no other of ours", "no other of its", "not ours at all"],
)
def test_otherwise_it_is_the_source_that_is_left(ours: tuple[str, ...], transport: str, landed: int) -> None:
    state = over(transport, *ours)
    if landed:
        state, _ = step(state, events.BytesLanded(1, landed), 0.35)
    _, asked = step(state, events.PullEnded(1, "closed"), 0.4)
    assert effects.ClaimSource(2, ("a",)) in asked


def test_a_source_that_stands_still_is_left_whatever_it_offers() -> None:
    state, _ = step(over("fast", "fast", "tcp"), events.Expired(Timer.STALL), 2.3)
    _, asked = step(state, events.PullEnded(1, "abandoned"), 2.4)
    assert effects.ClaimSource(2, ("a",)) in asked


def test_a_transport_that_failed_with_a_dead_source_may_serve_with_the_next_one() -> None:
    state, _ = step(over("fast", "fast", "tcp"), events.PullEnded(1, "nobody there"), 0.4)
    again = replace(advert("a"), transports=("fast", "tcp"))
    state, _ = step(state, events.SourceClaimed(2, again, "root"), 0.5)
    state, _ = step(state, events.OfferReceived(2, "tcp", b"ticket", 8), 0.6)
    _, asked = step(state, events.PullEnded(2, "nobody there"), 0.7)
    assert effects.ClaimSource(3, ("a",)) in asked


def test_other_transports_do_not_stretch_the_number_of_tries() -> None:
    state, _ = step(over("fast", "fast", "tcp", sources=1), events.PullEnded(1, "unsupported"), 0.4)
    assert isinstance(state, Loading)


def paced(patience: float = 5.0, floor: float = 100.0) -> State:
    """Transferring two chunks of 1000 bytes since 0.3, with a floor of 100 bytes per second."""
    limits = replace(LIMITS, patience=patience + 0.3, floor=floor)
    state, _ = step(initial(limits), events.Started(CHUNKS, chunk_bytes=1000), 0.0)
    state, _ = step(state, events.SourceClaimed(1, advert("a"), "root"), 0.1)
    state, _ = step(state, events.TruthReceived(1), 0.2)
    state, _ = step(state, events.OfferReceived(1, "tcp", b"ticket", 7), 0.3)
    assert isinstance(state, Transferring)
    return state


def trickle(state: State, nbytes: int, seconds: float, until: float) -> tuple[State, float]:
    """``nbytes`` every ``seconds``, until the source is left or it is ``until``."""
    at = 0.3
    while at < until and isinstance(state, Transferring):
        at += seconds
        state, _ = step(state, events.BytesLanded(1, nbytes), at)
    return state, at


def test_a_source_below_the_floor_is_left_when_what_it_loses_is_patience() -> None:
    state, at = trickle(paced(), nbytes=50, seconds=1.0, until=1000.0)
    assert isinstance(state, Abandoning)
    assert state.reason.startswith("too slow")
    assert at == pytest.approx(0.3 + 5.0 / 0.5), "half the floor loses half of each second"
    state, _ = step(state, events.PullEnded(1, "abandoned"), at)
    assert isinstance(state, Loading)
    assert state.journey.detours[0].startswith("a: too slow")


def test_a_source_at_the_floor_is_followed_and_speed_earns_nothing_for_later() -> None:
    state, at = trickle(paced(), nbytes=100, seconds=1.0, until=1000.0)
    assert isinstance(state, Transferring)
    state, _ = step(state, events.BytesLanded(1, 1_000_000), at)
    state, _ = trickle(state, nbytes=1, seconds=1.0, until=1000.0)
    assert isinstance(state, Abandoning)


def test_without_a_floor_any_rate_will_do() -> None:
    state, _ = trickle(paced(floor=0.0), nbytes=1, seconds=1.9, until=1000.0)
    assert isinstance(state, Transferring)


def test_verified_chunks_are_time_well_spent() -> None:
    state, _ = step(paced(), events.BytesLanded(1, 1000), 8.0)
    state, _ = step(state, events.ChunkVerified(1, 0), 8.1)
    state, _ = step(state, events.PullEnded(1, "closed"), 8.3)
    assert isinstance(state, Discovering)
    assert state.journey.patience == pytest.approx(5.0), "1000 bytes at the floor take longer than that"


def test_bytes_that_were_not_verified_are_time_lost() -> None:
    state, _ = step(paced(), events.BytesLanded(1, 999), 2.3)
    state, _ = step(state, events.PullEnded(1, "closed"), 2.3)
    assert state.journey.patience == pytest.approx(3.0)


def test_the_stall_clock_never_outlasts_the_patience_that_is_left() -> None:
    _, asked = step(paced(patience=1.0), events.BytesLanded(1, 1), 0.8)
    assert effects.Arm(Timer.STALL, pytest.approx(1.0 - 0.49)) in asked  # type: ignore[arg-type]
    assert isinstance(paced(patience=0.0), Transferring), "some grace is left even then"


def test_verified_chunks_go_along_into_new_memory_and_the_next_source_brings_the_rest() -> None:
    state, _ = step(transferring(), events.ChunkVerified(1, 0), 0.4)
    state, asked = step(state, events.PullEnded(1, "broken", quiet=False), 0.5)
    assert isinstance(state, Replacing)
    assert effects.ReplaceMemory(1, Chunks.of([0])) in asked
    kept, asked = step(state, events.MemoryReplaced(1, Chunks.of([0])), 0.6)
    assert isinstance(kept, Discovering)
    assert kept.journey.verified == Chunks.of([0])
    assert effects.ClaimSource(2, ("a",), have=1) in asked
    lost, _ = step(state, events.MemoryReplaced(1), 0.6)
    assert lost.journey.verified == Chunks()
    assert lost.journey.origins == ()


def test_a_pull_that_ends_after_its_memory_was_replaced_is_no_news() -> None:
    state, at = transferring(), 1.0
    for chunk in range(CHUNKS):
        state, _ = step(state, events.ChunkVerified(state.journey.attempt, chunk), at)
    attempt = state.journey.attempt
    for event in (
        events.Expired(Timer.STALL),
        events.Expired(Timer.QUIET),
        events.MemoryReplaced(attempt, Chunks.first(CHUNKS)),
    ):
        state, _ = step(state, event, at)
    for late in (events.ChunkVerified(attempt, 0), events.PullEnded(attempt, "abandoned", quiet=False)):
        assert step(state, late, at) == (state, ())
    state, _ = step(state, events.CheckPassed(state.journey.attempt), at)
    assert isinstance(state, Serving)
    assert step(state, events.PullEnded(attempt, "abandoned"), at) == (state, ())


def test_wrong_bytes_are_told_to_the_store_and_to_the_source() -> None:
    _, asked = step(transferring(), events.ChunkCorrupted(1, 1), 0.4)
    assert effects.Strike(1, advert("a"), 1) in asked


def test_after_enough_sources_storage_reads_only_what_is_missing() -> None:
    state, _ = step(transferring(), events.ChunkVerified(1, 0), 0.4)
    state, _ = step(state, events.PullEnded(1, "closed"), 0.5)
    state, _ = step(state, events.SourceClaimed(2, advert("b"), "root"), 0.6)
    state, asked = step(state, events.OfferRefused(2, "busy"), 0.7)
    assert isinstance(state, Loading)
    assert effects.ReadStorage(3, Chunks.of([1]), "root", leading=False) in asked


def test_a_joiner_stands_in_line_with_the_claim_that_it_made_until_patience_is_spent() -> None:
    state, asked = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    assert Arm(Timer.PATIENCE, LIMITS.patience) in asked
    at = 0.0
    for _ in range(4):
        state, asked = step(state, events.ClaimDeferred(1, ""), at)
        assert isinstance(state, Waiting)
        assert not any(isinstance(effect, Arm) and effect.timer is Timer.PATIENCE for effect in asked)
        at += LIMITS.retry
        state, asked = step(state, events.Expired(Timer.RETRY), at)
        assert effects.ClaimSource(1, ()) in asked, "the same claim keeps its place"
    state, asked = step(state, events.Expired(Timer.PATIENCE), LIMITS.patience)
    assert isinstance(state, Loading)
    assert effects.Release(1, "", "every source stayed busy") in asked


def test_a_source_that_is_granted_in_line_is_greeted_at_once() -> None:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.ClaimDeferred(1, ""), 0.1)
    state, asked = step(state, events.SourceClaimed(1, advert("a"), "root"), 0.7)
    assert isinstance(state, Handshaking)
    assert {effects.FetchTruth(1, "root"), effects.Disarm(Timer.RETRY)} < set(asked)
    state, _ = step(state, events.TruthReceived(1), 0.8)
    state, _ = step(state, events.OfferReceived(1, "tcp", b"ticket", 7), 1.0)
    assert isinstance(state, Transferring)
    assert state.journey.patience == pytest.approx(LIMITS.patience - 1.0)


def test_following_a_loader_costs_no_patience_but_has_a_limit() -> None:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    at = 0.0
    while not isinstance(state, Loading):
        state, asked = step(state, events.ClaimDeferred(1, "leader"), at)
        assert effects.Disarm(Timer.PATIENCE) in asked
        at += 1.0
        state, _ = step(state, events.Expired(Timer.RETRY), at)
    assert state.journey.patience == LIMITS.patience
    assert at == LIMITS.follow
    assert state.journey.followed == pytest.approx(at)


def test_time_is_paid_for_by_whoever_was_waited_for() -> None:
    """A loader that came, and one that went: each span counts once."""
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.ClaimDeferred(1, ""), 0.1)
    state, asked = step(state, events.ClaimDeferred(1, "leader"), 1.0)
    assert effects.Disarm(Timer.PATIENCE) in asked
    state, asked = step(state, events.ClaimDeferred(1, ""), 3.0)
    assert Arm(Timer.PATIENCE, LIMITS.patience - 1.0) in asked
    assert state.journey.followed == pytest.approx(2.0)
    state, _ = step(state, events.LoaderElected(1), 3.5)
    assert state.journey.patience == pytest.approx(LIMITS.patience - 1.5)


def test_a_claim_of_a_leader_whose_time_is_over_is_followed_no_more() -> None:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.ClaimDeferred(1, "leader"), 1.5)
    state, _ = step(state, events.LoaderElected(1), 2.0)
    assert isinstance(state, Loading)
    assert state.leading
    assert state.journey.followed == pytest.approx(2.0)
    assert state.journey.patience == LIMITS.patience


def test_a_slot_granted_too_late_is_given_back() -> None:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.Expired(Timer.PATIENCE), 5.0)
    assert isinstance(state, Loading)
    after, asked = step(state, events.SourceClaimed(1, advert("a"), "root"), 5.1)
    assert after == state
    assert asked == (effects.Release(1, "a", "too late"),)


def test_storage_that_disagrees_with_the_truth_is_a_conflict() -> None:
    state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    state, _ = step(state, events.LoaderElected(1, "root"), 0.1)
    state, asked = step(state, events.ChunkCorrupted(2, 0), 0.2)
    assert effects.Abandon(2) in asked
    state, asked = step(state, events.PullEnded(2, "abandoned"), 0.3)
    assert isinstance(state, Failed)
    assert state.failure is Failure.CONFLICT
    assert effects.Resign() in asked


def test_repeated_events_change_nothing_more() -> None:
    state = transferring()
    once, _ = step(state, events.ChunkVerified(1, 0), 0.4)
    twice, _ = step(once, events.ChunkVerified(1, 0), 0.4)
    assert once == twice
    for late in (
        events.OfferReceived(1, "tcp", b"ticket", 7),
        events.TruthReceived(1),
        events.SourceClaimed(1, advert("a"), "root"),
    ):
        assert step(once, late, 0.5) == (once, ())


def test_changed_weights_at_the_source_leave_what_is_proven_as_it_is() -> None:
    state = transferring()
    for chunk in range(CHUNKS):
        state, _ = step(state, events.ChunkVerified(1, chunk), 0.4)
    state, asked = step(state, events.PullEnded(1), 0.5)
    assert effects.Check(1, advert("a")) in asked
    state, asked = step(state, events.SourceChanged(1, "a", "weights changed"), 0.6)
    assert effects.Check(1, None) in asked
    assert state.journey.complete
    assert state.journey.detours == ("a: weights changed",)
    state, asked = step(state, events.CheckPassed(1), 0.7)
    assert isinstance(state, Serving)
