"""What a check is, and how it ends whatever it runs into.

Decides that a check which breaks is a failed check with its reason, and that one which does not
come back is given up: blocking work runs in daemon threads, so that a hung driver or plugin keeps
neither the other checks nor the process waiting. It must not know what is checked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import anyio
import msgspec

from coldstart.errors import ColdstartError

T = TypeVar("T")

Status = Literal["ok", "warn", "fail"]

SECONDS = 5.0
"""How long one check may take unless it says otherwise."""


class Check(msgspec.Struct, frozen=True):
    """One finding. ``advice`` says what to do next; empty if nothing need be done."""

    name: str
    status: Status
    finding: str
    advice: str = ""


def ok(name: str, finding: str, advice: str = "") -> Check:
    """Nothing to worry about."""
    return Check(name, "ok", finding, advice)


def warn(name: str, finding: str, advice: str) -> Check:
    """It works, though slower or less safely than it should."""
    return Check(name, "warn", finding, advice)


def fail(name: str, finding: str, advice: str) -> Check:
    """A worker that needs this does not start, or reads storage."""
    return Check(name, "fail", finding, advice)


Look = Callable[[], Awaitable[Sequence[Check]]]


async def guarded(name: str, look: Look, seconds: float = SECONDS) -> Sequence[Check]:
    """The findings of ``look``; if it breaks or does not end, one failed check called ``name``."""
    with anyio.move_on_after(seconds):
        try:
            return await look()
        except ColdstartError as error:
            return [fail(name, error.what, error.advice)]
        except Exception as error:  # whatever a driver, a plugin or the system raises
            return [fail(name, f"the check broke: {in_words(error)}", "look into that first")]
    return [fail(name, f"did not end within {seconds:g} s", "whatever it waits for hangs; look into that first")]


def in_words(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def blocking(work: Callable[[], Sequence[Check]]) -> Look:
    """A check that blocks, made one that can be waited for."""
    return lambda: in_daemon_thread(work)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """The result of ``work``; when cancelled, the thread is left behind and dies with the process."""
    loop, done = asyncio.get_running_loop(), anyio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # raised below, where it is waited for
            errors.append(error)
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="coldstart-check", daemon=True).start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
