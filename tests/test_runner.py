"""The loop in virtual time: timers, effects, order, and a clean end."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from coldstart import events
from coldstart.effects import Arm, Disarm, Effect, Resign, StartLending, StopLending
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Expired, Timer
from coldstart.runner import Entry, Runner
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

END = events.Drained()
GO = events.AdvertFailed("")
OTHER = events.Advertised()


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


class Machine:
    """A machine whose state is what has happened; ``asks`` says what each event leads to."""

    def __init__(self, asks: dict[Event, tuple[Effect, ...]] | None = None) -> None:
        self.asks = asks or {}
        self.began = anyio.current_time()
        self.answers: dict[type[Effect], Event] = {}
        self.log: list[str] = []
        self.entries: list[Entry[tuple[Event, ...]]] = []
        nothing: tuple[Event, ...] = ()
        self.runner = Runner(nothing, self.step, self.ended, self.perform, (self.entries.append, self.observe))

    def step(self, state: tuple[Event, ...], event: Event, at: float) -> tuple[tuple[Event, ...], tuple[Effect, ...]]:
        if isinstance(event, events.CheckPassed):
            raise IllegalTransition("CheckPassed in a test")
        return (*state, event), self.asks.get(event, ())

    @staticmethod
    def ended(state: tuple[Event, ...]) -> bool:
        return END in state

    async def perform(self, effect: Effect) -> None:
        self.log.append(f"perform {type(effect).__name__}")
        if type(effect) in self.answers:
            self.runner.post(self.answers[type(effect)])

    def observe(self, entry: Entry[tuple[Event, ...]]) -> None:
        self.log.append(f"observe {type(entry.event).__name__}")

    def happened(self) -> list[tuple[Event, float]]:
        """Every event and the seconds at which it was taken."""
        return [(entry.event, round(entry.at - self.began, 6)) for entry in self.entries]

    async def run(self, seconds: float = 1000.0) -> None:
        """Run until the end, which comes by itself after so long."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.runner.run)
            await anyio.sleep(seconds)
            self.runner.post(END)


# ------------------------------------------------------------------------------------------ timers


async def test_an_armed_timer_expires_once_at_its_time() -> None:
    machine = Machine({GO: (Arm(Timer.STALL, 2.0),)})
    machine.runner.post(GO)
    await machine.run(10.0)
    assert machine.happened() == [(GO, 0.0), (Expired(Timer.STALL), 2.0), (END, 10.0)]


async def test_arming_again_starts_the_timer_anew() -> None:
    machine = Machine({GO: (Arm(Timer.STALL, 2.0),)})
    machine.runner.post(GO)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.run, 10.0)
        await anyio.sleep(1.5)
        machine.runner.post(GO)
    assert machine.happened()[2] == (Expired(Timer.STALL), 3.5)


async def test_a_disarmed_timer_is_silent_and_disarming_twice_is_nothing() -> None:
    machine = Machine({GO: (Arm(Timer.STALL, 2.0),), OTHER: (Disarm(Timer.STALL), Disarm(Timer.STALL))})
    machine.runner.post(GO)
    machine.runner.post(OTHER)
    await machine.run(10.0)
    assert machine.happened() == [(GO, 0.0), (OTHER, 0.0), (END, 10.0)]


async def test_timers_expire_in_the_order_of_their_times_whatever_the_order_of_arming() -> None:
    timers = {Timer.PATIENCE: 5.0, Timer.ANSWER: 2.0, Timer.QUIET: 3.0}
    machine = Machine({GO: tuple(Arm(timer, seconds) for timer, seconds in timers.items())})
    machine.runner.post(GO)
    await machine.run(10.0)
    assert machine.happened()[1:-1] == [
        (Expired(Timer.ANSWER), 2.0),
        (Expired(Timer.QUIET), 3.0),
        (Expired(Timer.PATIENCE), 5.0),
    ]


async def test_timers_of_one_kind_are_told_apart_by_their_subject() -> None:
    machine = Machine(
        {
            GO: (Arm(Timer.GRANT, 2.0, "t1"), Arm(Timer.GRANT, 3.0, "t2"), Arm(Timer.GRANT, 4.0, "t3")),
            OTHER: (Disarm(Timer.GRANT, "t2"),),
        }
    )
    machine.runner.post(GO)
    machine.runner.post(OTHER)
    await machine.run(10.0)
    assert machine.happened()[2:-1] == [(Expired(Timer.GRANT, "t1"), 2.0), (Expired(Timer.GRANT, "t3"), 4.0)]


async def test_a_timer_that_is_due_comes_before_events_that_wait() -> None:
    """A flood of events cannot hold up the end of somebody's patience."""
    machine = Machine({GO: (Arm(Timer.PATIENCE, 0.0),)})
    for event in (GO, OTHER, OTHER):
        machine.runner.post(event)
    await machine.run(10.0)
    assert [event for event, _ in machine.happened()] == [GO, Expired(Timer.PATIENCE), OTHER, OTHER, END]


@pytest.mark.parametrize("turns", range(6))
async def test_an_event_posted_at_the_very_moment_a_timer_expires_is_not_lost(turns: int) -> None:
    machine = Machine({GO: (Arm(Timer.STALL, 2.0),)})
    machine.runner.post(GO)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.run, 10.0)
        await anyio.sleep(2.0)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        machine.runner.post(OTHER)
    assert {event for event, _ in machine.happened()} == {GO, OTHER, Expired(Timer.STALL), END}


# ---------------------------------------------------------------------------------- order and entries


async def test_observers_hear_of_a_step_before_its_effects_are_performed() -> None:
    machine = Machine({GO: (Resign(), StartLending())})
    machine.runner.post(GO)
    await machine.run()
    assert machine.log == ["observe AdvertFailed", "perform Resign", "perform StartLending", "observe Drained"]


async def test_timers_are_not_performed_and_effects_start_in_order() -> None:
    machine = Machine({GO: (StopLending(), Arm(Timer.STALL, 5000.0), Resign(), Disarm(Timer.STALL), StartLending())})
    machine.runner.post(GO)
    await machine.run()
    assert [line for line in machine.log if line.startswith("perform")] == [
        "perform StopLending",
        "perform Resign",
        "perform StartLending",
    ]


async def test_entries_are_numbered_and_hold_the_whole_step() -> None:
    machine = Machine({GO: (Resign(),)})
    machine.runner.post(GO)
    machine.runner.post(OTHER)
    await machine.run()
    assert [entry.number for entry in machine.entries] == [1, 2, 3]
    first = machine.entries[0]
    assert (first.event, first.before, first.after, first.effects) == (GO, (), (GO,), (Resign(),))
    assert all(left.after == right.before for left, right in zip(machine.entries, machine.entries[1:], strict=False))


async def test_events_posted_before_the_start_are_kept_in_order() -> None:
    machine = Machine()
    for event in (GO, OTHER, GO, END):
        machine.runner.post(event)
    await machine.runner.run()
    assert machine.runner.state == (GO, OTHER, GO, END)


# ------------------------------------------------------------------------------------------- the end


async def test_after_the_end_events_are_dropped() -> None:
    machine = Machine()
    machine.runner.post(END)
    await machine.runner.run()
    assert machine.runner.done.is_set()
    machine.runner.post(GO)
    await anyio.sleep(1.0)
    assert machine.runner.state == (END,)


async def test_what_effects_are_answered_with_after_the_end_is_still_heard() -> None:
    """A slot that is granted to a joiner that has just ended must be given back."""
    machine = Machine({END: (Resign(),)})
    machine.answers[Resign] = GO
    machine.runner.post(END)
    await machine.runner.run()
    assert machine.runner.state == (END, GO)


async def test_the_end_waits_for_effects_under_way() -> None:
    class Slow(Machine):
        async def perform(self, effect: Effect) -> None:
            await anyio.sleep(7.0)
            self.log.append("done")

    machine = Slow({END: (Resign(),)})
    machine.runner.post(END)
    await machine.runner.run()
    assert machine.log[-1] == "done"
    assert anyio.current_time() - machine.began == 7.0


async def test_cancelling_ends_everything_that_was_started() -> None:
    ended: list[str] = []

    class Endless(Machine):
        async def perform(self, effect: Effect) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(type(effect).__name__)

    machine = Endless({GO: (Resign(), StartLending())})
    machine.runner.post(GO)
    with anyio.move_on_after(5.0):
        await machine.runner.run()
    assert sorted(ended) == ["Resign", "StartLending"]
    machine.runner.post(GO)
    assert machine.runner.state == (GO,)


async def test_an_illegal_transition_is_raised_as_it_is_and_ends_everything() -> None:
    ended: list[str] = []

    class Endless(Machine):
        async def perform(self, effect: Effect) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("effect")

    machine = Endless({GO: (Resign(),)})
    async with anyio.create_task_group() as tasks:
        machine.runner.post(GO)

        async def fail() -> None:
            await anyio.sleep(1.0)
            machine.runner.post(events.CheckPassed(1))

        tasks.start_soon(fail)
        with pytest.raises(IllegalTransition, match="in a test"):
            await machine.runner.run()
    assert ended == ["effect"]


# ----------------------------------------------------------------------------------------- threads
