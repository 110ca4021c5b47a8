"""Signals that ask a command to end, as something to look at and to wait for, instead of an exception.

Decides which signals count: those that end a command, but for the ones that were ignored when it
began, as under nohup. It must not know what is interrupted. A command with children polls it, ends
them in order, and exits with 128 and the number; one that has only to tidy up, such as a cursor that
it has hidden, has the other signals unwind it as Ctrl-C does.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While its block lasts, the first signal's number is in ``number`` and later ones are ignored.

    Readable for ``selectors`` from the first signal on. For the main thread only.
    """

    def __init__(self) -> None:
        self.number = 0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former = {number: signal.getsignal(number) for number in _ENDING}

    def __enter__(self) -> Interruption:
        for number, handler in self._former.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    @property
    def name(self) -> str:
        """The signal's name, or nothing."""
        return signal.Signals(self.number).name if self.number else ""

    def fileno(self) -> int:
        """For ``selectors``."""
        return self._reader.fileno()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        with suppress(BlockingIOError):
            self._writer.send(b"!")


@contextmanager
def terminations_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block like Ctrl-C does, instead of skipping its cleaning up; for the main thread only.

    Raises:
        SystemExit: with 128 and the signal's number, when one of them has come and the block has ended by it.
    """
    received = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = received or number
        ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(ctrl_c):  # ignored, as of a job in the background
            raise KeyboardInterrupt
        ctrl_c(signal.SIGINT, frame)  # in an event loop it cancels the main task

    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ours = [number for number, handler in former.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise SystemExit(128 + received) from None
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
