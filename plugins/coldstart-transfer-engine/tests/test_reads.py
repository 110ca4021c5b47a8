"""Nothing is left in flight, whatever the library answers. The library here is one that does as it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coldstart_transfer_engine import library, reads
from coldstart_transfer_engine.lanes import OwnThread
from coldstart_transfer_engine.places import Move
from coldstart_transfer_engine.reads import LARGEST_STEP, LAST_STEP, MIB, SMALLEST_STEP, Reads, Sizes, Step

from coldstart.errors import TransportError
from coldstart.layout import Span

PENDING, TIMED_OUT = 0, -2
MUCH = 1 << 40


class Scripted:
    """An engine whose reads end as :attr:`ends` says, and are forgotten once they have."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, list[int]] = {}
        self.spent: set[int] = set()
        self.refuses = False

    def read(self, session: str, local: int, remote: int, length: int) -> int:
        if self.refuses:
            return 0
        self.begun.append(local)
        return len(self.begun)

    def status(self, read: int) -> int:
        assert read not in self.spent, "asked after its end"
        answers = self.ends.get(read, [library.DONE])
        status = answers.pop(0) if len(answers) > 1 else answers[0]
        if status in (library.DONE, library.FAILED):
            self.spent.add(read)
        return status


def step(count: int, at: int = 0) -> Step:
    return Step(Span(at, count), [Move(at + each, 0, 1) for each in range(count)])


def finish(reading: Reads) -> list[Span]:
    found: list[Span] = []
    while reading.steps:
        found += [each.span for each in reading.finished()]
    return found


def never() -> None:
    raise AssertionError("cut although its reads end by themselves")


def test_a_step_is_done_when_all_its_reads_are() -> None:
    engine = Scripted()
    engine.ends = {2: [PENDING, TIMED_OUT, PENDING, library.DONE]}
    reading = Reads(engine, "source:1", [OwnThread()], never)
    reading.add(step(3))
    reading.add(step(1, at=100))
    assert finish(reading) == [Span(100, 1), Span(0, 3)]
    assert engine.spent == {1, 2, 3, 4}


def test_small_pieces_wait_for_room() -> None:
    engine = Scripted()
    engine.ends = {each: [PENDING, library.DONE] for each in range(1, 1000)}
    reading = Reads(engine, "source:1", [OwnThread()], never)
    reading.add(step(200))
    assert len(engine.begun) == reads.READS
    assert finish(reading) == [Span(0, 200)]
    assert engine.begun == list(range(200))


def test_padding_alone_is_done_at_once() -> None:
    reading = Reads(Scripted(), "source:1", [OwnThread()], never)
    reading.add(Step(Span(7, 9), []))
    assert finish(reading) == [Span(7, 9)]


def test_after_a_failure_the_others_are_waited_for() -> None:
    """A call for several reads would have returned now, with two of them still writing."""
    engine = Scripted()
    engine.ends = {1: [library.FAILED], 2: [PENDING] * 5 + [library.DONE], 3: [PENDING] * 9 + [library.FAILED]}
    reading = Reads(engine, "source:1", [OwnThread()], never)
    reading.add(step(3))
    with pytest.raises(TransportError, match="a read of the transfer engine failed"):
        finish(reading)
    assert engine.spent == {1}
    reading.drain()
    assert engine.spent == {1, 2, 3}
    assert reading.steps == 0


def test_a_refused_read_leaves_those_that_were_begun() -> None:
    engine = Scripted()
    engine.ends = {1: [PENDING, PENDING, library.DONE]}
    reading = Reads(engine, "source:1", [OwnThread()], never)
    reading.add(step(1))
    engine.refuses = True
    with pytest.raises(TransportError, match="cannot read from the source"):
        reading.add(step(1, at=5))
    reading.drain()
    assert engine.spent == {1}


def test_reads_that_never_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_GRACE_SECONDS", 0.01)
    engine, cuts = Scripted(), list[int]()
    engine.ends = {1: [PENDING], 2: [TIMED_OUT]}

    def cut() -> None:
        cuts.append(1)
        if len(cuts) == 3:  # what was queued had taken another connection
            engine.ends = {1: [library.FAILED], 2: [library.FAILED]}

    reading = Reads(engine, "source:1", [OwnThread()], cut)
    reading.add(step(2))
    reading.drain()
    assert (len(cuts), engine.spent) == (3, {1, 2})


@pytest.mark.parametrize(
    ("rate", "learn", "size"),
    [
        (0.0, lambda sizes: None, SMALLEST_STEP),
        (0.0, lambda sizes: [sizes.took(0.001) for _ in range(20)], LARGEST_STEP),
        (0.0, lambda sizes: [sizes.took(0.001), sizes.took(0.1)], 2 * MIB),
        (0.0, lambda sizes: [sizes.took(0.001), sizes.took(3.0), sizes.took(3.0)], SMALLEST_STEP),
        (5e6, lambda sizes: [sizes.took(0.001) for _ in range(20)], 500_000),
        (1.0, lambda sizes: None, 64 * 1024),
    ],
)
def test_steps_take_a_tenth_of_a_second(rate: float, learn: Callable[[Sizes], object], size: int) -> None:
    sizes = Sizes("tcp")
    learn(sizes)
    assert sizes.next(rate, MUCH) == size


@pytest.mark.parametrize(("left", "size"), [(MUCH, LARGEST_STEP), (800 * MIB, 400 * MIB), (3 * MIB, LAST_STEP)])
def test_over_nvlink_steps_begin_large_and_end_small(left: int, size: int) -> None:
    assert Sizes("nvlink").next(0.0, left) == size
