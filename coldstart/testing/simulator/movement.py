"""Bytes on the move in the simulation: a pull from a peer, or a read of storage.

Decides when a chunk lands and with what content, given what has befallen the source, the link and
the storage at that moment. Content is read from the source's memory when it lands, as one-sided
transports do. What landed is verified in ``joiner.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coldstart import effects, events
from coldstart.plan import Chunks
from coldstart.testing.simulator.memory import Content
from coldstart.testing.simulator.network import Flow

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process

PART_SECONDS = 0.4
"""Landed bytes are told of at least so often."""
SHARED_PART_SECONDS = 1.0
"""The same over shared links, where as many events as bytes are slow would be very many; half of the stall clock."""
LATENCY = 0.0005
"""Seconds until a closed connection is noticed, or a cancelled pull has ended."""
WRITES_LATE = 8.0
"""A pull that cannot be aborted may write for so long after it was given up."""


class Movement:
    """One attempt's bytes; ``landed`` counts them."""

    def __init__(self, joiner: Process, attempt: int, chunks: Chunks) -> None:
        self.joiner, self.attempt, self.chunks = joiner, attempt, chunks
        self.world = joiner.world
        self.landed = 0
        self.asked: Chunks | None = None
        """What the machine asked for; None: everything that there was."""
        self.ended = False
        self._flow: Flow | None = None
        self._chunk = -1
        self.memory: Content = joiner.memory
        self._queue = deque(chunks)

    def abandon(self) -> None:
        """Cancel it."""
        if not self.ended:
            self._end("abandoned", LATENCY)

    def begin(self) -> None:
        """Set off."""
        self._next()

    def _next(self) -> None:
        if self._queue:
            self._chunk = self._queue.popleft()
            self._part(0)
        else:
            self._end("")

    def _part(self, part: int) -> None:
        """Bring the next part of the present chunk; the last one completes it."""
        nbytes, flow = self.world.scenario.chunk_bytes, self._flow
        seconds = self.seconds(nbytes) if flow is None else nbytes * self.drag() / flow.enter()
        parts = math.ceil(seconds / (PART_SECONDS if flow is None else SHARED_PART_SECONDS)) or 1
        if part >= parts:  # it has become faster meanwhile
            part = parts - 1
        if flow is None:
            self.world.heap.after(seconds / parts, self._arrive, part, parts)
        else:
            flow.bring(nbytes * self.drag() / parts, self._arrive, part, parts)

    def _arrive(self, part: int, parts: int) -> None:
        if self.ended:
            return
        if not self.joiner.alive:
            self._over()
            return
        wait = self.held_up()
        if wait:
            if wait < math.inf:
                self.world.heap.after(wait, self._arrive, part, parts)
            return
        nbytes = self.world.scenario.chunk_bytes // parts
        self.landed += nbytes
        self.joiner.post(events.BytesLanded(self.attempt, nbytes))
        if not self.over():
            if part + 1 < parts:
                self._part(part + 1)
            else:
                self._complete()

    def _complete(self) -> None:
        content = self.memory[self._chunk] = self.content(self._chunk)
        self.joiner.joining.verify(self.attempt, self._chunk, content, self.expected(self._chunk))
        if not self.over():
            self._next()

    def over(self) -> bool:
        """Whether it has ended, of itself or by what a machine made of its last report."""
        return self.ended

    def seconds(self, nbytes: int) -> float:
        """How long ``nbytes`` take at this moment, where links are not shared by the fleet's :class:`Network`."""
        raise NotImplementedError

    def drag(self) -> float:
        """How many times as long as usual everything takes."""
        raise NotImplementedError

    def held_up(self) -> float:
        """Seconds until anything can land; infinite: never again."""
        raise NotImplementedError

    def content(self, chunk: int) -> int:
        """What lands."""
        raise NotImplementedError

    def expected(self, chunk: int) -> int | None:
        """What should, if anybody knows."""
        raise NotImplementedError

    def _end(self, reason: str, seconds: float = 0.0, *, quiet: bool = True) -> None:
        if self.ended:
            return
        self._over()
        ended = events.PullEnded(self.attempt, reason, quiet, chunks=self.asked)
        if seconds:
            self.world.heap.after(seconds, self.joiner.when_awake, self.joiner.post, ended)
        else:
            self.joiner.post(ended)

    def _over(self) -> None:
        self.ended = True
        if self._flow is not None:
            self._flow.end()
        self.joiner.joining.movements.pop(self.attempt, None)


class Pull(Movement):
    """Chunks from a peer."""

    def __init__(self, joiner: Process, effect: effects.Pull, chunks: Chunks) -> None:
        super().__init__(joiner, effect.attempt, chunks)
        self.asked = effect.chunks
        self.transfer = effect.ticket.decode()
        self.source = self.world.processes.get(effect.source.inbox)
        self._began = self.world.heap.now

    def extend(self, asked: Chunks, chunks: Chunks) -> None:
        """Bring ``chunks`` of what is ``asked`` for, too."""
        self.asked = asked if self.asked is None else self.asked | asked
        self.chunks |= chunks
        self._queue.extend(chunks)

    def begin(self) -> None:
        source = self.source
        if source is None or (not source.alive and source.answers):
            self._end("nobody there", LATENCY)
        elif not source.alive:
            return
        elif self.transfer not in source.lending.granted:
            self._end("no such grant", LATENCY)
        else:
            source.lending.reading[self.transfer] = self
            self.world.promises.lent(source)
            if self.world.network is not None:
                self._flow = self.world.network.between(source.name, self.joiner.name)
            self._next()

    def seconds(self, nbytes: int) -> float:
        assert self.source is not None
        transport = self.world.scenario.transport
        seconds = transport.seconds(nbytes, len(self.source.lending.reading) or 1, self.world.heap.luck)
        return seconds * self.drag()

    def drag(self) -> float:
        assert self.source is not None
        return self.source.slowness

    def held_up(self) -> float:
        source, now = self.source, self.world.heap.now
        assert source is not None
        if not source.alive or self.transfer not in source.lending.granted:
            return math.inf
        if source.severed or self.joiner.severed:
            return PART_SECONDS
        thaws = max(source.thaws, self.joiner.thaws)
        return thaws - now if thaws > now else 0.0

    def content(self, chunk: int) -> int:
        assert self.source is not None
        self.world.promises.lends(self.source, chunk)
        return self.world.checkpoint.damaged() if self.source.stained else self.source.memory[chunk]

    def expected(self, chunk: int) -> int | None:
        return self.joiner.joining.truths.expected(chunk)

    def closed(self, reason: str) -> None:
        """The source's side has ended it."""
        self._end(reason, LATENCY)

    def _end(self, reason: str, seconds: float = 0.0, *, quiet: bool = True) -> None:
        took = self.world.heap.now - self._began
        if not (reason or self.ended) and took > 0 and self.landed:
            self.joiner.joining.received = max(self.joiner.joining.received, round(self.landed / took))
        super()._end(reason, seconds, quiet=quiet)

    def abandon(self) -> None:
        if self.ended:
            return
        late = self.joiner.late or not self.world.scenario.transport.abortable
        if not late:
            self._end("abandoned", LATENCY)
            return
        heap = self.world.heap
        for _ in range(2):
            heap.after(WRITES_LATE * heap.luck.random(), self._write_late, self._chunk)
        if heap.luck.random() < 0.5:
            self._end("abandoned", LATENCY, quiet=False)
        else:
            self._over()  # it never returns

    def _write_late(self, chunk: int) -> None:
        self.memory[chunk] = self.world.checkpoint.damaged()

    def _over(self) -> None:
        super()._over()
        if self.source is not None and self.source.lending.reading.get(self.transfer) is self:
            del self.source.lending.reading[self.transfer]


class StorageRead(Movement):
    """Chunks from the checkpoint."""

    def __init__(self, joiner: Process, attempt: int, chunks: Chunks, digests: Sequence[int] | None) -> None:
        super().__init__(joiner, attempt, chunks)
        self._digests = digests

    def begin(self) -> None:
        if self.world.network is not None:
            self._flow = self.world.network.from_storage(self.joiner.name)
        self._next()

    def seconds(self, nbytes: int) -> float:
        return self.drag() * nbytes / self.world.scenario.storage * (0.9 + 0.1 * self.world.heap.luck.random())

    def drag(self) -> float:
        return 2.0 if self.joiner.storage_fault == "slow" else 1.0

    def held_up(self) -> float:
        if self.joiner.storage_fault == "stall":
            return math.inf
        if self.joiner.storage_fault == "error":
            self._end("read error")
            return math.inf
        return max(0.0, self.joiner.thaws - self.world.heap.now)

    def content(self, chunk: int) -> int:
        return self.world.checkpoint.content[chunk]

    def expected(self, chunk: int) -> int | None:
        return None if self._digests is None else self._digests[chunk]
