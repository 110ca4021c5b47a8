"""What is told of several sources of one joiner: each is an attempt with its bytes, and says how it ended."""

from __future__ import annotations

from coldstart import events
from coldstart.chronicle.lines import AnyLine, Pulled, Pulling
from coldstart.chronicle.noting import JoinerNotes
from coldstart.phases.states import State
from coldstart.plan import Limits
from coldstart.portions import NARROW
from coldstart.reasons import Cause, Causes
from coldstart.recorder import Recorder
from coldstart.report import Attempt
from coldstart.runner import Entry
from coldstart.testing.memories import layout_of
from tests.phases.swarm import CHUNKS, SIZE, Swarm

LAYOUT = layout_of(CHUNKS * SIZE, chunk_bytes=SIZE)
LIMITS = Limits(crowd=0, sources=6, floor=0.0, patience=1000.0)
RATE = 10e6


class Told:
    """A joiner whose steps are recorded, noted and classified."""

    def __init__(self, rates: dict[int, float], dies: tuple[int, int] | None = None) -> None:
        self.recorder = Recorder("w", "key", "model", LAYOUT, 0.0)
        self.notes, self.causes = JoinerNotes(LAYOUT, 0.0), Causes()
        self.lines: list[AnyLine] = []
        self.left: list[Cause] = []
        observers = (self.recorder, self._note, self._classify)
        self.swarm = Swarm(LIMITS, rates, dies=dies, observers=observers)
        self.swarm.play()
        self.swarm.tell(events.CheckPassed(self.swarm.state.journey.attempt))

    def _note(self, entry: Entry[State]) -> None:
        self.lines += self.notes(entry)

    def _classify(self, entry: Entry[State]) -> None:
        cause = self.causes.of(entry)
        if len(entry.after.journey.detours) > len(entry.before.journey.detours):
            self.left.append(cause)

    @property
    def attempts(self) -> dict[int, Attempt]:
        return {each.number: each for each in self.recorder.report().attempts if each.source}

    @property
    def pulled(self) -> dict[int, Pulled]:
        return {line.attempt: line for line in self.lines if isinstance(line, Pulled)}


def test_every_source_is_named_with_what_it_brought() -> None:
    told = Told({1: RATE, -1: RATE, -2: RATE, -3: RATE})
    report = told.recorder.report()
    assert (report.path, set(report.sources)) == ("peer", {"s1", "s-1", "s-2", "s-3"})
    assert {number: each.bytes // SIZE for number, each in told.attempts.items()} == told.swarm.brought
    assert sum(each.bytes for each in report.attempts) == report.bytes_total
    assert {each.outcome for each in report.attempts} == {"ok"}
    begun = {line.attempt: line.source for line in told.lines if isinstance(line, Pulling)}
    assert begun == {1: "s1", -1: "s-1", -2: "s-2", -3: "s-3"}
    assert {number: (line.nbytes, line.outcome) for number, line in told.pulled.items()} == {
        number: (brought * SIZE, "ok") for number, brought in told.swarm.brought.items()
    }


def test_one_that_died_says_so_and_the_others_do_not() -> None:
    told = Told({1: RATE, -1: RATE, -2: RATE, -3: RATE}, dies=(-2, 60))
    assert told.swarm.brought[-2] > 0
    for number in (1, -1, -2, -3):
        outcome = "closed" if number == -2 else "ok"
        assert told.attempts[number].outcome == told.pulled[number].outcome == outcome
        assert told.attempts[number].bytes == told.pulled[number].nbytes == told.swarm.brought[number] * SIZE
    assert told.left == [Cause.TRANSPORT]


def test_those_that_did_not_pay_say_so() -> None:
    told = Told({1: RATE, -1: 0.02 * RATE, -2: 0.02 * RATE, -3: 0.02 * RATE})
    for number in (-1, -2, -3):
        assert told.attempts[number].outcome == told.pulled[number].outcome == NARROW
    assert told.recorder.report().detours == (NARROW,), "once"
    assert told.attempts[1].outcome == "ok"
    assert told.left == [Cause.SLOW]
