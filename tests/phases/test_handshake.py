"""HANDSHAKE with a transport that connects first: no byte before it has, and who is to blame if it cannot."""

from __future__ import annotations

import pytest

from coldstart import effects, events
from coldstart.effects import Arm, Effect
from coldstart.events import Event, Timer
from coldstart.machine import initial, step
from coldstart.phases.states import Discovering, Handshaking, State, Transferring
from coldstart.plan import Limits
from coldstart.ports import Advert

LIMITS = Limits()
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, 2, 2, ("fast", "tcp"), "127.0.0.1", "cpu")
CLAIMED = events.SourceClaimed(1, SOURCE, "root")
TRUTH = events.TruthReceived(1)
CONNECT = effects.Connect(1, SOURCE, "fast", b"t")


def offer(transport: str = "fast") -> events.OfferReceived:
    return events.OfferReceived(1, transport, b"t", 7)


def after(*happened: Event, ours: tuple[str, ...] = ("fast", "tcp")) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, a tenth of a second apart, and the effects of the last event."""
    state, asked = step(initial(LIMITS), events.Started(2, transports=ours, connecting=("fast",)), 0.0)
    for number, event in enumerate(happened, 1):
        state, asked = step(state, event, number / 10)
    return state, asked


def test_connecting_begins_with_the_offer_whatever_else_is_waited_for() -> None:
    state, asked = after(CLAIMED, offer())
    assert isinstance(state, Handshaking)
    assert asked == (CONNECT, Arm(Timer.ANSWER, LIMITS.connect))


@pytest.mark.parametrize("last", [TRUTH, events.Connected(1)], ids=["truth", "connection"])
def test_no_byte_is_asked_for_before_truth_and_connection_are_here(last: Event) -> None:
    first = events.Connected(1) if last is TRUTH else TRUTH
    state, asked = after(CLAIMED, offer(), first)
    assert isinstance(state, Handshaking)
    assert not any(isinstance(effect, effects.Pull) for effect in asked)
    state, asked = step(state, last, 0.5)
    assert isinstance(state, Transferring)
    assert any(isinstance(effect, effects.Pull) for effect in asked)


def test_a_transport_that_does_not_connect_first_is_not_asked_to() -> None:
    state, asked = after(CLAIMED, TRUTH, offer("tcp"))
    assert isinstance(state, Transferring)
    assert not any(isinstance(effect, effects.Connect) for effect in asked)


def test_a_second_offer_changes_nothing() -> None:
    state, _ = after(CLAIMED, offer())
    assert step(state, events.OfferReceived(1, "fast", b"other", 8), 0.5) == (state, ())


FAILURES = {
    "fails": (events.ConnectFailed(1, "unreachable"), "unreachable"),
    "takes too long": (events.Expired(Timer.ANSWER), "no connection"),
}


@pytest.mark.parametrize(("event", "reason"), FAILURES.values(), ids=FAILURES.keys())
def test_a_connection_that_cannot_be_had_is_held_against_the_transport(event: Event, reason: str) -> None:
    state, asked = after(CLAIMED, TRUTH, offer(), event)
    assert isinstance(state, Discovering)
    assert effects.Release(1, "a", reason) in asked, "which gives up what is being set up, too"
    assert effects.ClaimSource(2, (), ("fast",), share=LIMITS.share, crowd=LIMITS.crowd) in asked
    assert state.journey.detours == (f"a: {reason} over fast",)
    assert state.journey.patience == pytest.approx(LIMITS.patience - 0.4), "its time was lost"


@pytest.mark.parametrize(("event", "reason"), FAILURES.values(), ids=FAILURES.keys())
def test_where_there_is_no_other_transport_the_source_is_left(event: Event, reason: str) -> None:
    state, asked = after(CLAIMED, TRUTH, offer(), event, ours=("fast",))
    assert isinstance(state, Discovering)
    assert effects.ClaimSource(2, ("a",), share=LIMITS.share, crowd=LIMITS.crowd) in asked


def test_a_source_that_takes_its_offer_back_meanwhile_is_left() -> None:
    state, asked = after(CLAIMED, TRUTH, offer(), events.OfferRefused(1, "draining"))
    assert isinstance(state, Discovering)
    assert effects.Release(1, "a", "refused (draining)") in asked
    assert step(state, events.Connected(1), 0.9) == (state, ()), "that attempt is over"
