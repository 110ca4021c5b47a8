"""Reads that are begun in other threads: all are looked after, whatever these threads do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
from coldstart_transfer_engine import lanes, library
from coldstart_transfer_engine.lanes import OtherThread
from coldstart_transfer_engine.places import Move
from coldstart_transfer_engine.reads import Reads, Step

from coldstart.errors import TransportError
from coldstart.layout import Span


class Streams:
    """An engine that keeps a queue for each thread, and calls a read done when its thread's queue is empty."""

    def __init__(self) -> None:
        self.queues: dict[int, list[int]] = {}
        self.began: dict[int, int] = {}
        self.refused: set[int] = set()
        self.held = threading.Event()
        self.held.set()
        self.asked = threading.Event()

    def read(self, session: str, local: int, remote: int, length: int) -> int:
        self.asked.set()
        assert self.held.wait(30)
        if local in self.refused:
            return 0
        thread = threading.get_ident()
        self.queues.setdefault(thread, []).append(local)
        self.began[local] = thread
        return local

    def status(self, read: int) -> int:
        queue = self.queues[self.began[read]]
        return library.DONE if read not in queue else 0

    def copied(self, read: int) -> None:
        """The device has done it; it ends with whatever else its thread has queued."""
        self.queues[self.began[read]].remove(read)


@contextmanager
def threads(count: int) -> Iterator[list[OtherThread]]:
    with ExitStack() as stack:
        found = [OtherThread(nullcontext) for _ in range(count)]
        for each in found:
            stack.callback(each.close)
        yield found


def step(number: int) -> Step:
    return Step(Span(number, 1), [Move(number, 0, 1)])


def ended(reading: Reads) -> Span:
    while True:
        for each in reading.finished():
            return each.span


def never() -> None:
    raise AssertionError("cut although its reads end by themselves")


def begun(engine: Streams, reading: Reads, count: int) -> None:
    while len(engine.began) < count:
        assert not list(reading.finished())


def test_each_step_ends_by_itself() -> None:
    engine = Streams()
    with threads(3) as hands:
        reading = Reads(engine, "source:1", hands, never)
        for number in (1, 2, 3):
            assert reading.room
            reading.add(step(number))
        assert not reading.room, "a fourth one would end together with another"
        begun(engine, reading, 3)
        assert len(set(engine.began.values())) == 3
        engine.copied(2)
        assert ended(reading) == Span(2, 1)
        assert reading.room
        reading.add(step(4))
        begun(engine, reading, 4)
        for number in (3, 1, 4):
            engine.copied(number)
            assert ended(reading) == Span(number, 1)
        assert engine.began[4] == engine.began[2]


def test_a_read_that_a_thread_has_yet_to_begin_is_waited_for() -> None:
    """It would write into memory that is somebody else's by then."""
    engine, drained = Streams(), threading.Event()
    engine.held.clear()
    with threads(1) as hands:
        reading = Reads(engine, "source:1", hands, lambda: None)
        reading.add(step(1))
        assert engine.asked.wait(30)

        def drain() -> None:
            reading.drain()
            drained.set()

        waiting = threading.Thread(target=drain)
        waiting.start()
        try:
            assert not drained.is_set()
            engine.held.set()
            while not engine.began:
                assert not drained.is_set()
            assert not drained.is_set()
            engine.copied(1)
        finally:
            engine.held.set()
            waiting.join(30)
        assert drained.is_set()


def test_a_read_that_a_thread_is_refused_ends_the_pull_and_not_the_others() -> None:
    engine = Streams()
    engine.refused = {2}
    with threads(2) as hands:
        reading = Reads(engine, "source:1", hands, never)
        reading.add(step(1))
        reading.add(step(2))
        with pytest.raises(TransportError, match="cannot read from the source"):
            ended(reading)
        while not engine.began:
            pass
        engine.copied(1)
        reading.drain()
        assert reading.steps == 0


@pytest.mark.parametrize("fails", ["surroundings", "reads"])
def test_a_thread_that_fails_refuses(fails: str) -> None:
    engine = Streams()

    @contextmanager
    def broken() -> Iterator[None]:
        if fails == "surroundings":
            raise RuntimeError("no such device")
        yield

    def raising(session: str, local: int, remote: int, length: int) -> int:
        raise RuntimeError("the library has thrown")

    engine.read = raising  # type: ignore[method-assign]
    hand = OtherThread(broken)
    try:
        reading = Reads(engine, "source:1", [hand], never)
        reading.add(step(1))
        with pytest.raises(TransportError, match="cannot read from the source"):
            ended(reading)
        reading.drain()
    finally:
        hand.close()


def test_only_nvlink_takes_threads_and_none_is_left() -> None:
    before = threading.active_count()
    for route in ("tcp", "rdma"):
        with lanes.opened(route, "cpu") as (lane,):  # type: ignore[arg-type]
            assert lane.depth == lanes.WINDOW
            assert threading.active_count() == before
    with lanes.opened("nvlink", "cpu") as hands:
        assert [hand.depth for hand in hands] == [1] * lanes.THREADS
        assert threading.active_count() == before + lanes.THREADS
    assert threading.active_count() == before
