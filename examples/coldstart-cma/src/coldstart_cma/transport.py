"""The cma transport: the joiner copies from the source's memory, the source does nothing.

Decides in what steps memory is read and when a pull ends. Each step is one turn of a worker
thread: before it the grant is looked up on the board, after it the source's process is checked,
and only then does the range count as landed. A cancelled pull waits for the step it is in, so
that nothing is written once it has returned. What holds between two processes that never talk
is in ``board.py``.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Final

import anyio
import anyio.lowlevel
from anyio import CancelScope, CapacityLimiter, to_thread

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits, TransportSettings
from coldstart_cma import native
from coldstart_cma.board import Board, OpenBoard, decode_ticket
from coldstart_cma.native import Part

TRAITS: Final = Traits(
    one_sided=True, needs_peer=True, abortable=True, device_kinds=("cpu",), link="memory", sees_readers=True
)

STEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes per step: what a cancelled pull waits for, one to three milliseconds."""
_SMALLEST_STEP: Final = 64 * 1024
_STEP_SECONDS: Final = 0.1
"""With a cap, a step is not longer: what has landed is the only sign of life that a joiner gives."""
_PARTS: Final = native.MAX_PARTS // 4
"""Pieces of the stream per system call; each may be several views of the target."""
_QUIET_SECONDS: Final = 10.0
"""How long revoke and close wait for a joiner to end its step."""
_LOOK_SECONDS: Final = 0.001


class _Lent:
    """One grant of this source; keeps the memory where it is."""

    def __init__(self, grant: Grant, memory: Memory) -> None:
        self.transfer, self.memory = grant.transfer, memory
        self.board = Board(memory.regions(Span(0, memory.layout.nbytes)), grant.seconds)
        self.ended = False


class CmaTransport:
    """Both sides of cma; see ``ports.Transport``. The source's side has no threads."""

    name: Final = "cma"
    traits: Final = TRAITS

    def __init__(self, settings: TransportSettings) -> None:
        self._rate = settings.lend_bytes_per_second
        self._lent: list[_Lent] = []
        self._pulls: set[CancelScope] = set()
        self._closed = False

    # ---------------------------------------------------------------------------------- source

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Put up a board for the grant. A second offer of a transfer ends the first."""
        await anyio.lowlevel.checkpoint()
        self._check_open()
        if memory.device != "cpu":
            raise TransportError(f"cma cannot offer {memory.device} memory", reason="unsupported")
        self._end(lent for lent in self._lent if lent.transfer == grant.transfer or lent.board.expired)
        lent = _Lent(grant, memory)
        self._lent.append(lent)
        self._share()
        return lent.board.ticket

    async def revoke(self, transfer: str) -> None:
        """Close the grant and wait until nobody reads under it.

        Raises:
            TransportError: a joiner has stopped inside a step, or does not look at boards.
        """
        await anyio.lowlevel.checkpoint()
        self._end(lent for lent in self._lent if lent.transfer == transfer)
        if not await self._quiet(lambda lent: lent.transfer == transfer):
            raise TransportError(
                f"a joiner still reads memory for transfer {transfer} {_QUIET_SECONDS:g} s after it was revoked",
                reason="timeout",
            )

    def reading(self, transfer: str) -> bool:
        """Whether a joiner has the grant's board open."""
        return any(lent.board.watched() for lent in self._lent if lent.transfer == transfer)

    def _end(self, ending: Iterator[_Lent]) -> None:
        for lent in ending:
            lent.ended = True
            lent.board.post(granted=False)
        self._share()

    def _share(self) -> None:
        """Divide the cap among those that may read now."""
        lending = [lent for lent in self._lent if not lent.ended]
        for lent in lending:
            lent.board.post(granted=True, bytes_per_second=self._rate / len(lending))

    async def _quiet(self, concerned: Callable[[_Lent], bool]) -> bool:
        """Take down the boards of ended grants once nobody reads them; false if somebody goes on reading."""
        with anyio.move_on_after(_QUIET_SECONDS):
            while True:
                for lent in [lent for lent in self._lent if lent.ended and not lent.board.watched()]:
                    self._lent.remove(lent)
                    lent.board.close()
                if not any(concerned(lent) for lent in self._lent):
                    return True
                await anyio.sleep(_LOOK_SECONDS)
        return False

    # ---------------------------------------------------------------------------------- joiner

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Read ``spans`` step by step; see ``ports.Transport.pull``."""
        self._check_open()
        pull = _Pull(ticket, into, landed)
        failed: list[Exception] = []

        async def run() -> None:
            try:
                await pull.run(spans)
            except Exception as error:
                failed.append(error)

        tasks = anyio.create_task_group()
        self._pulls.add(tasks.cancel_scope)
        try:
            async with tasks:  # a task of its own: whoever is cancelled, by a scope or by asyncio, waits for its end
                tasks.start_soon(run)
        finally:
            self._pulls.discard(tasks.cancel_scope)
        if failed:
            raise failed[0]
        if not pull.done:
            raise _closed()

    async def aclose(self) -> None:
        """End all pulls and all grants, and wait until nobody reads."""
        self._closed = True
        for scope in self._pulls:
            scope.cancel()
        self._end(iter(self._lent))
        with CancelScope(shield=True):
            await self._quiet(lambda lent: True)
        while self._lent:
            self._lent.pop().board.close()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


class _Pull:
    """One pull; blocking parts run in a thread that is nobody else's."""

    def __init__(self, ticket: bytes, into: Memory, landed: Landed) -> None:
        self._ticket = decode_ticket(ticket)
        self._into, self._landed = into, landed
        self._limiter = CapacityLimiter(1)
        self._free_at = 0.0
        self.done = False

    async def run(self, spans: Sequence[Span]) -> None:
        board = OpenBoard(self._ticket)
        try:
            await to_thread.run_sync(board.open, limiter=self._limiter)
            for span in spans:
                await self._fetch(board, span)
            self.done = True
        finally:
            board.close()

    async def _fetch(self, board: OpenBoard, span: Span) -> None:
        offset = span.offset
        while offset < span.end:
            rate = await self._turn(board)
            began, step = time.monotonic(), Span(offset, min(step_bytes(rate), span.end - offset))
            await to_thread.run_sync(self._step, board, step, limiter=self._limiter)
            self._free_at = began + (step.length / rate if rate else 0.0)
            offset = step.end

    async def _turn(self, board: OpenBoard) -> float:
        """Wait until the cap allows another step, with an eye on the board; returns the cap of now."""
        while True:
            rate = board.notice().bytes_per_second
            left = self._free_at - time.monotonic()
            if left <= 0:
                return rate
            await anyio.sleep(min(left, _STEP_SECONDS))

    def _step(self, board: OpenBoard, span: Span) -> None:
        """Read one range into the target, and say so once it is known to be the source's. Blocks."""
        moves = self._moves(board, span)
        while batch := list(islice(moves, _PARTS)):
            with ExitStack() as stack:
                remote = [part for _, part in batch]
                local = [
                    Part(native.address_of(view), len(view))
                    for where, _ in batch
                    for view in stack.enter_context(self._into.writing(where))
                ]
                native.read(self._ticket.pid, remote, local)
        board.check_source()
        self._landed(span)

    def _moves(self, board: OpenBoard, span: Span) -> Iterator[tuple[Span, Part]]:
        """The weights in ``span``: where they belong in the stream, and where the source has them."""
        places = board.places
        for piece in self._into.layout.pieces(span):
            offset, end = piece.offset, piece.offset + piece.length
            while offset < end:
                at = bisect_right(places, offset, key=lambda place: place.offset) - 1
                if at < 0 or offset >= places[at].end:
                    raise TransportError(f"the cma source has no bytes at {offset}", reason="refused")
                length = min(end, places[at].end) - offset
                yield Span(offset, length), Part(places[at].address + offset - places[at].offset, length)
                offset += length


def step_bytes(rate: float) -> int:
    """Bytes to read at a time from a source that allows ``rate`` bytes per second; 0: as many as it likes."""
    return STEP_BYTES if not rate else max(_SMALLEST_STEP, int(min(rate * _STEP_SECONDS, STEP_BYTES)))


def _closed() -> TransportError:
    return TransportError("cma transport is closed", reason="closed")
