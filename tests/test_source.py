"""The source's machine: total, closed, within its slots, and rid of every grant in bounded time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import msgspec
import pytest

from coldstart import effects, events
from coldstart.effects import Arm, Disarm
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Timer
from coldstart.phases import groups
from coldstart.plan import Chunks
from coldstart.scrubbing import Pass
from coldstart.source import HANDLED, IGNORED, ILLEGAL, Mode, Source, Terms, step
from tests.sourcing import OPEN, TERMS, TRANSFERS, after, hello, opened


def leaves(kind: type[Event]) -> Iterator[type[Event]]:
    subclasses = kind.__subclasses__()
    if not subclasses:
        yield kind
    for subclass in subclasses:
        yield from leaves(subclass)


OURS = set(leaves(Event)) - set(leaves(events.GroupEvent)) - (groups.ALL - {events.Expired, events.DrainRequested})


# ----------------------------------------------------------------------------------- the whole table


def test_the_table_is_total_and_its_sets_are_disjoint() -> None:
    assert set(HANDLED) == set(IGNORED) == set(ILLEGAL) == set(Mode)
    for mode in Mode:
        handled = set(HANDLED[mode])
        assert handled | IGNORED[mode] | ILLEGAL[mode] == OURS, mode
        assert not handled & IGNORED[mode], mode
        assert not handled & ILLEGAL[mode], mode
        assert not IGNORED[mode] & ILLEGAL[mode], mode


def test_every_event_belongs_to_one_side_or_to_both() -> None:
    assert set(leaves(Event)) == OURS | groups.ALL | set(leaves(events.GroupEvent))


def world(source: Source) -> Iterator[Event]:
    """Everything that can happen: peers may say anything at any time."""
    yield events.Advertised()
    yield events.Advertised(struck=True)
    yield events.AdvertFailed("bus down")
    yield events.StoreRenewed()
    yield events.WeightsChanged()
    yield events.WeightsSettled()
    for generation in (source.generation, source.generation - 1):
        yield events.WeightsProven(generation)
        yield events.WeightsDamaged(generation, 1)
        yield events.WeightsMoved(generation, "a.weight was freed")
        yield events.Scrubbed(generation, Chunks.first(1), 0.0)
        yield events.Scrubbed(generation, Chunks(), 0.0)
        yield events.ScrubFailed(generation, "out of memory")
    yield events.DrainRequested()
    if source.mode in (Mode.SILENT, Mode.OPEN):
        yield events.LendingStarted()
    for have in (Chunks.first(1), Chunks.first(2)):
        yield events.ChunksShared(have)
    yield events.SharingEnded()
    for timer in (Timer.RENEW, Timer.DRAIN, Timer.TELL, Timer.SCRUB):
        yield events.Expired(timer)
    for transfer in TRANSFERS:
        yield hello(transfer)
        yield hello(transfer, layout="bb")
        yield hello(transfer, transports=("other",))
        yield events.OfferOpened(transfer, b"ticket")
        yield events.OfferFailed(transfer, "no room")
        yield events.AcceptReceived(transfer)
        yield events.DoneReceived(transfer, "ok")
        yield events.DoubtReceived(transfer, 0)
        yield events.DoubtReceived(transfer, 1)
        yield events.GrantClosed(transfer)
        yield events.Expired(Timer.GRANT, transfer)


def normal(source: Source) -> Source:
    grants = tuple(sorted(source.grants, key=lambda grant: grant.transfer))
    plain = msgspec.structs.replace(source, generation=1, proof=0, told=-1.0, ended=(), grants=grants)
    return msgspec.structs.replace(plain, why="", scrubbing=Pass())


@pytest.fixture(scope="module")
def reached() -> list[Source]:
    """The closure of the machine; nothing in it is illegal, or step() would have raised."""
    start = Source(TERMS)
    seen, queue = {start}, deque([start])
    while queue:
        source = queue.popleft()
        for event in world(source):
            following = normal(step(source, event, 0.0)[0])
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return list(seen)


def test_exploration_closes_and_reaches_every_mode(reached: list[Source]) -> None:
    assert {source.mode for source in reached} == set(Mode)
    assert len(reached) > 50


def test_slots_are_never_exceeded(reached: list[Source]) -> None:
    assert max(len(opened(source)) for source in reached) == TERMS.slots


def test_only_an_open_source_gives_grants(reached: list[Source]) -> None:
    for source in reached:
        for event in world(source):
            _, asked = step(source, event, 0.0)
            if any(isinstance(effect, effects.OpenOffer) for effect in asked):
                assert source.mode is Mode.OPEN


def test_a_closed_source_holds_nothing_and_never_opens_again(reached: list[Source]) -> None:
    for source in reached:
        if source.mode is Mode.CLOSED:
            assert source.grants == ()
            assert all(step(source, event, 0.0)[0] == source for event in world(source))


def test_every_grant_is_closed_at_its_transport_exactly_once(reached: list[Source]) -> None:
    """No grant disappears that was not closed, refused or never opened; none is closed twice."""
    for source in reached:
        for event in world(source):
            following, asked = step(source, event, 0.0)
            closing = [effect.transfer for effect in asked if isinstance(effect, effects.CloseGrant)]
            assert len(closing) == len(set(closing))
            for grant in source.grants:
                if grant.closing:
                    assert grant.transfer not in closing
                if following.grantee(grant.transfer) is None:
                    assert isinstance(event, events.GrantClosed | events.OfferFailed)


def test_every_open_grant_has_a_clock(reached: list[Source]) -> None:
    """Armed when given, and armed anew at every sign of life; disarmed only when it closes or is gone."""
    for source in reached:
        for event in world(source):
            following, asked = step(source, event, 0.0)
            for effect in asked:
                if isinstance(effect, Disarm) and effect.timer is Timer.GRANT:
                    grant = following.grantee(effect.subject)
                    assert grant is None or grant.closing
            new = {grant.transfer for grant in opened(following)} - {grant.transfer for grant in source.grants}
            armed = {effect.subject for effect in asked if isinstance(effect, Arm) and effect.timer is Timer.GRANT}
            assert new <= armed


@pytest.mark.parametrize("seed", range(100))
def test_a_drain_always_ends(seed: int) -> None:
    """Whatever peers say meanwhile, once the drain's time is over and the transports are quiet."""
    random_ = random.Random(seed)
    source = OPEN
    for _ in range(random_.randrange(30)):
        source, _ = step(source, random_.choice(list(world(source))), 0.0)
    source, asked = after(source, events.DrainRequested())
    if source.mode is Mode.CLOSED:
        assert effects.ReportDrained() in asked
        return
    source, asked = after(source, events.Expired(Timer.DRAIN))
    assert opened(source) == []
    reported = [effect for effect in asked if isinstance(effect, effects.ReportDrained)]
    for grant in source.grants:
        source, asked = step(source, events.GrantClosed(grant.transfer), 0.0)
        reported += [effect for effect in asked if isinstance(effect, effects.ReportDrained)]
    assert source.mode is Mode.CLOSED
    assert len(reported) == 1


# -------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("asked", "given"),
    [(("tcp", "fast"), "tcp"), (("fast", "tcp"), "fast"), (("unknown", "tcp"), "tcp"), (("fast",), "fast")],
)
def test_a_hello_is_answered_with_an_offer_over_what_the_joiner_wants_most(asked: tuple[str, ...], given: str) -> None:
    """The joiner knows how fast each was; but what the source does not lend over is not to be had."""
    source, follows = after(OPEN, hello(transports=asked))
    assert effects.OpenOffer("t1", "t1.joiner", 1, given, "", 1) in follows
    assert Arm(Timer.GRANT, TERMS.accept, "t1") in follows
    _, follows = after(source, events.OfferOpened("t1", b"ticket"))
    assert follows == (effects.SendOffer("t1", "t1.joiner", given, b"ticket", 7, 1),)


def test_a_repeated_hello_changes_nothing() -> None:
    source, _ = after(OPEN, hello())
    assert step(source, hello(), 0.0) == (source, ())


@pytest.mark.parametrize(
    ("source", "event", "reason"),
    [
        (OPEN, hello(layout="bb"), "layout"),
        (OPEN, hello(transports=("rdma",)), "no common transport"),
        (OPEN, hello(transports=()), "no common transport"),
        (after(OPEN, hello("t2"), hello("t3"))[0], hello(), "busy"),
        (Source(TERMS), hello(), "silent"),
        (after(OPEN, hello("t2"), events.DrainRequested())[0], hello(), "draining"),
        (after(OPEN, events.DrainRequested())[0], hello(), "closed"),
    ],
)
def test_a_refusal_says_why_and_proves_that_it_means_this_hello(source: Source, event: Event, reason: str) -> None:
    assert step(source, event, 0.0) == (source, (effects.SendRefusal("t1", "t1.joiner", 7, reason),))


def test_one_joiner_cannot_take_every_slot_of_a_source_with_many() -> None:
    many = Source(Terms("aa", 8, ("tcp",)), Mode.OPEN, have=None)
    same = [events.HelloReceived(f"t{number}", "greedy", 1, 7, "aa", ("tcp",)) for number in range(4)]
    source, asked = after(many, *same)
    assert asked == (effects.SendRefusal("t3", "greedy", 7, "grants enough"),)
    assert [grant.transfer for grant in source.grants] == ["t0", "t1"]
    source, asked = after(source, hello("other"))
    assert any(isinstance(effect, effects.OpenOffer) for effect in asked)
    source, asked = after(source, events.DoneReceived("t0", "ok"), same[3])
    assert any(isinstance(effect, effects.OpenOffer) for effect in asked), "what it has left does not count"


def test_a_grant_that_is_closing_takes_no_slot() -> None:
    """The bus has freed the slot already; whoever got it must not be refused."""
    source, _ = after(OPEN, hello("t2"), hello("t3"), events.DoneReceived("t2", "ok"))
    source, asked = after(source, hello())
    assert any(isinstance(effect, effects.OpenOffer) for effect in asked)
    _, asked = after(source, hello("t4"))
    assert asked == (effects.SendRefusal("t4", "t4.joiner", 7, "busy"),)


def test_an_accepted_grant_lives_as_long_as_its_joiner_shows_signs_of_life() -> None:
    source, asked = after(OPEN, hello(), events.OfferOpened("t1", b""), events.AcceptReceived("t1"))
    assert asked == (Arm(Timer.GRANT, TERMS.grant, "t1"),)
    source, asked = after(source, events.Expired(Timer.GRANT, "t1"))
    assert effects.CloseGrant("t1", "tcp", "no sign of life") in asked
    source, asked = after(source, events.AcceptReceived("t1"))
    assert asked == (), "too late"
    source, _ = after(source, events.GrantClosed("t1"))
    assert source.grants == ()


def test_a_renewed_advert_keeps_the_slots_of_all_grants_that_are_not_closing() -> None:
    source, _ = after(OPEN, hello("t1"), hello("t2"), events.AcceptReceived("t2"))
    _, asked = after(source, events.Expired(Timer.RENEW))
    assert asked == (effects.Advertise(1, 0, held=("t1", "t2")),)
    closing, _ = after(source, events.DoneReceived("t1", "ok"))
    _, asked = after(closing, events.Expired(Timer.RENEW))
    assert asked == (effects.Advertise(1, 0, held=("t2",)),)


def test_an_offer_that_cannot_be_opened_frees_the_slot_and_tells_the_joiner() -> None:
    source, _ = after(OPEN, hello())
    source, asked = after(source, events.OfferFailed("t1", "no room"))
    assert source.grants == ()
    assert effects.SendRefusal("t1", "t1.joiner", 7, "no room") in asked
    assert Disarm(Timer.GRANT, "t1") in asked


def test_an_offer_that_opens_after_the_end_is_not_sent() -> None:
    source, _ = after(OPEN, hello(), events.DoneReceived("t1", "cancelled"))
    assert step(source, events.OfferOpened("t1", b"late"), 0.0) == (source, ())


def test_the_store_hears_of_ended_transfers_until_it_has_answered() -> None:
    source, _ = after(OPEN, hello(), events.DoneReceived("t1", "ok"), events.GrantClosed("t1"))
    source, asked = after(source, events.Expired(Timer.RENEW))
    assert asked == (effects.Advertise(1, 0, ended=("t1",)),)
    failed, _ = after(source, events.AdvertFailed("down"))
    assert failed.ended == ("t1",)
    heard, _ = after(source, hello("t2"), events.GrantClosed("t2"), events.Advertised(ended=("t1",)))
    assert heard.ended == ("t2",), "it ended after the advert was sent"


def test_who_is_struck_and_does_not_know_why_inspects_everything() -> None:
    source, asked = after(OPEN, events.Advertised(struck=True))
    assert asked == (Arm(Timer.RENEW, TERMS.lease / 3),), "the letter may be on its way"
    source, asked = after(source, events.Advertised(struck=True))
    assert effects.Inspect(1, None) in asked
    source, asked = after(source, events.Advertised(struck=True))
    assert asked == (Arm(Timer.RENEW, TERMS.lease / 3),), "once"
    source, asked = after(source, events.WeightsProven(1))
    assert asked == (effects.Advertise(1, 1),)
    told, _ = after(OPEN, events.Advertised(struck=True), events.Advertised(), events.Advertised(struck=True))
    assert told.doubts == ()


def test_a_change_before_lending_has_begun_keeps_it_from_beginning() -> None:
    source, _ = after(Source(TERMS), events.WeightsChanged())
    source, asked = after(source, events.LendingStarted())
    assert source.mode is Mode.WITHHELD
    assert effects.Advertise(2, 0, lends=False) in asked


def test_a_first_verified_chunk_makes_a_source_and_the_last_one_a_full_one() -> None:
    source, asked = after(Source(TERMS), events.ChunksShared(Chunks.first(1)))
    assert asked == (effects.Advertise(1, 0, Chunks.first(1)),)
    source, asked = after(source, events.ChunksShared(Chunks.first(2)))
    assert asked == (), "the store hears of more with the next renewal"
    source, asked = after(source, events.LendingStarted())
    assert effects.Advertise(1, 0) in asked
    assert after(source, events.ChunksShared(Chunks.first(2))) == (source, ())


def test_joiners_are_told_of_what_arrives_and_that_we_live() -> None:
    source, asked = after(Source(TERMS), events.ChunksShared(Chunks.first(1)), hello("t1"))
    assert Arm(Timer.TELL, TERMS.tell) in asked
    _, asked = after(source, events.OfferOpened("t1", b"ticket"))
    assert asked == (effects.SendOffer("t1", "t1.joiner", "tcp", b"ticket", 7, 1, Chunks.first(1)),)
    source, asked = step(source, events.ChunksShared(Chunks.first(2)), 1.0)
    told = effects.SendProgress("t1", "t1.joiner", 7, Chunks.first(2))
    assert asked == (told, Disarm(Timer.TELL))
    source, asked = step(source, events.ChunksShared(Chunks.first(3)), 1.0)
    assert asked == (Arm(Timer.TELL, pytest.approx(TERMS.tell)),), "not too often"
    source, asked = step(source, events.Expired(Timer.TELL), 1.02)
    assert asked == (effects.SendProgress("t1", "t1.joiner", 7, Chunks.first(3)),)
    assert step(source, events.ChunksShared(Chunks.first(3)), 1.03) == (source, ()), "nothing new"
    source, asked = step(source, events.ChunksShared(Chunks.first(3)), 1.53)
    assert effects.SendProgress("t1", "t1.joiner", 7, Chunks.first(3)) in asked, "but we go on"
    source, asked = step(source, events.LendingStarted(), 2.0)
    assert effects.SendProgress("t1", "t1.joiner", 7, None) in asked
    assert step(source, events.Expired(Timer.TELL), 2.5) == (source, ())


def test_what_is_left_or_written_again_is_lent_no_more() -> None:
    source, _ = after(Source(TERMS), events.ChunksShared(Chunks.first(1)), hello("t1"))
    source, asked = after(source, events.SharingEnded())
    assert source.mode is Mode.SILENT
    assert {effects.CloseGrant("t1", "tcp", "left"), effects.Withdraw(), Disarm(Timer.RENEW)} < set(asked)
    source, asked = after(source, events.GrantClosed("t1"), events.ChunksShared(Chunks.first(1)))
    assert source.mode is Mode.OPEN
    assert effects.Advertise(1, 0, Chunks.first(1), ended=("t1",)) in asked
    assert after(OPEN, events.SharingEnded()) == (OPEN, ()), "what serves stays"


def test_a_drain_without_grants_ends_at_once() -> None:
    source, asked = after(OPEN, events.DrainRequested())
    assert source.mode is Mode.CLOSED
    assert asked.index(effects.Withdraw()) < asked.index(effects.ReportDrained())


def test_a_drain_lets_grants_end_in_their_time() -> None:
    source, _ = after(OPEN, hello(), events.AcceptReceived("t1"))
    source, asked = after(source, events.DrainRequested())
    assert source.mode is Mode.DRAINING
    assert Arm(Timer.DRAIN, TERMS.drain) in asked
    assert effects.ReportDrained() not in asked
    source, _ = after(source, events.DoneReceived("t1", "ok"))
    source, asked = after(source, events.GrantClosed("t1"))
    assert source.mode is Mode.CLOSED
    assert effects.ReportDrained() in asked


def test_a_drain_whose_time_is_over_revokes_and_says_so() -> None:
    source, _ = after(OPEN, hello(), events.AcceptReceived("t1"), events.DrainRequested())
    source, asked = after(source, events.Expired(Timer.DRAIN))
    assert effects.SendRefusal("t1", "t1.joiner", 7, "drained") in asked
    assert effects.CloseGrant("t1", "tcp", "drained") in asked


def test_an_advert_is_renewed_three_times_in_its_life_and_made_afresh_in_a_new_store() -> None:
    for answer in (events.Advertised(), events.AdvertFailed("down")):
        assert after(OPEN, answer)[1] == (Arm(Timer.RENEW, TERMS.lease / 3),)
    assert after(OPEN, events.StoreRenewed())[1] == (effects.Advertise(1, 0, afresh=True),)
    withheld, _ = after(OPEN, events.WeightsChanged())
    assert after(withheld, events.StoreRenewed())[1] == (effects.Advertise(2, 0, afresh=True, lends=False),)
    assert after(withheld, events.Expired(Timer.RENEW))[1] == (effects.Advertise(2, 0, lends=False),)


def test_nothing_is_renewed_after_the_end() -> None:
    for source in (after(OPEN, events.DrainRequested())[0], after(OPEN, hello(), events.DrainRequested())[0]):
        for event in (events.Advertised(), events.StoreRenewed(), events.Expired(Timer.RENEW)):
            assert step(source, event, 0.0) == (source, ())


def test_illegal_events_raise_and_name_both() -> None:
    with pytest.raises(IllegalTransition, match="LendingStarted while closed"):
        after(OPEN, events.DrainRequested(), events.LendingStarted())
    with pytest.raises(IllegalTransition, match="CheckPassed while open"):
        after(OPEN, events.CheckPassed(1))
