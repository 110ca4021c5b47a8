"""``coldstart worker``: cold-start, say how it went, lend until told to stop.

Also what the demo's workers are made of: :func:`serve` takes what to do between SERVE and the
end. Signals are the command line's business, not the library's: SIGTERM and SIGINT drain, a
second one ends at once, both with exit code 0. Before :func:`serve` and after it a signal does
what it does to any process.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack

import anyio
import msgspec

from coldstart import config
from coldstart.cli import metering, tracing
from coldstart.cli.output import Ticker, age, emit, say, seconds, size
from coldstart.config import Settings
from coldstart.errors import ColdstartError
from coldstart.estimate import Decision
from coldstart.group import Group
from coldstart.replica import Replica, join
from coldstart.report import GroupReport, Progress, Report, Weighed


class Asked(msgspec.Struct, frozen=True):
    """What the command line asks for."""

    checkpoint: str
    skeleton: str = "auto"
    name: str = ""
    device: str = "cpu"
    dtype: str = ""
    revision: str = ""
    once: bool = False
    json: bool = False
    verbose: int = 0
    group: Group | None = None


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of ``--json``. ``at`` is monotonic seconds, equal for all processes of a machine."""

    event: str
    worker: str
    at: float
    progress: Progress | None = None
    report: Report | None = None
    error: str = ""


Meanwhile = Callable[[Replica], Awaitable[None]]
"""What a worker does while it serves; returning ends it."""


def run(asked: Asked, overrides: Mapping[str, object]) -> None:
    """The command; raises ColdstartError for ``main`` to print."""
    settings = config.load(overrides)
    with ExitStack() as stack:
        stack.callback(tracing.set_up(asked.name or "worker", verbose=asked.verbose, json=asked.json))
        stack.callback(metering.set_up(asked.name, settings))
        anyio.run(serve, asked, settings, _nothing if asked.once else _lends)


async def serve(asked: Asked, settings: Settings, meanwhile: Meanwhile, stop: anyio.Event | None = None) -> None:
    """Cold-start and serve; a signal, or ``stop``, drains and returns."""
    failure: Exception | None = None
    stop = stop or anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_on_signal, stop, tasks.cancel_scope)
        try:
            await _serve(asked, settings, meanwhile, stop)
        except Exception as error:  # raised below, outside of the task group
            failure = sole(error)
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def sole(error: Exception) -> Exception:
    """``error`` without the groups around it that hold nothing else."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _serve(asked: Asked, settings: Settings, meanwhile: Meanwhile, stop: anyio.Event) -> None:
    voice = _Voice(asked)
    try:
        async with join(
            asked.checkpoint,
            skeleton=asked.skeleton,
            dtype=asked.dtype,
            device=asked.device,
            revision=asked.revision,
            rank=asked.group.tensor_parallel if asked.group is not None else None,
            group=asked.group,
            worker=asked.name,
            settings=settings,
            on_progress=voice.progress,
            wait=False,
        ) as replica:
            voice.name(replica.worker)
            if await _first(replica.ready, stop.wait):
                voice.serving(replica.report)
                await _first(lambda: meanwhile(replica), stop.wait)
                voice.say("draining")
                await replica.drain()
    except ColdstartError as error:
        voice.failed(error)
        raise
    finally:
        voice.close()
    voice.say("gone")


async def _first(one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]]) -> bool:
    """Wait for whichever ends first; whether it was ``one``. Errors of ``one`` are raised as they are."""
    won = False
    failed: list[Exception] = []

    async def ends(tell: bool, wait: Callable[[], Awaitable[object]]) -> None:
        nonlocal won
        try:
            await wait()
        except Exception as error:  # raised below, outside of the task group
            failed.append(error)
        won = tell
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends, True, one)
        tasks.start_soon(ends, False, other)
    if failed:
        raise failed[0]
    return won


async def _on_signal(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
                return
            stop.set()


async def _nothing(replica: Replica) -> None:
    return


async def _lends(replica: Replica) -> None:
    """Lending is all that this process is for: when an operator has drained it, it ends."""
    await replica.drained()


class _Voice:
    """Says how the worker is doing, in the form that was asked for."""

    def __init__(self, asked: Asked) -> None:
        self._worker = asked.name
        self._json = asked.json
        self._ticker = None if asked.json else Ticker()

    def name(self, worker: str) -> None:
        """Whom it speaks for; known before anything is told."""
        self._worker = worker
        if self._ticker is not None:
            self._ticker.worker = worker

    def progress(self, progress: Progress) -> None:
        if self._ticker is not None:
            self._ticker(progress)
        else:
            self._tell("progress", progress=progress)

    def serving(self, report: Report) -> None:
        self.close()
        if self._json:
            self._tell("serving", report=report)
            return
        say(
            f"{report.worker} serves {report.model}: {words_of_bytes(report)}, "
            f"verified against {report.against}, in {seconds(report.seconds)}"
        )
        if report.link_gbps:
            seen = f"{report.link_from}, {age(report.link_age)} ago" if report.link_age else report.link_from
            say(f"  share of the link {report.share:.2f}; it gave {report.link_gbps:.2f} GB/s at best ({seen})")
        for each in report.estimates:
            say(f"  {words_of_estimate(each)}")
        if report.group is not None:
            say(f"  {_words_of(report.group)}")
        if report.whole_read and report.bytes_storage:
            say(f"  storage was read as a whole: {report.whole_read}")
        if report.probe:
            say(f"  probe: {report.probe}")
        for reason in (*report.detours, *report.skipped):
            say(f"  {reason}")
        for warning in report.warnings:
            say(f"  warning: {warning}")

    def failed(self, error: ColdstartError) -> None:
        self.close()
        if self._json:
            self._tell("failed", error=str(error))

    def say(self, event: str) -> None:
        if self._json:
            self._tell(event)
        else:
            say(f"{self._worker} {event}")

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()

    def _tell(
        self, event: str, *, progress: Progress | None = None, report: Report | None = None, error: str = ""
    ) -> None:
        emit(Told(event, self._worker, anyio.current_time(), progress, report, error))


CHOICES: Mapping[Decision, str] = {
    "wait": "a peer",
    "ask": "a peer, before the store had answered",
    "storage": "storage",
    "full": "a peer, as enough others read storage, or the store did not say",
}


def words_of_bytes(report: Report) -> str:
    """How many bytes came from whom, and at which rate; the rate is that of peers where there were any."""
    rate = f"at {report.gbps:.2f} GB/s"
    if not report.sources:
        return f"{size(report.bytes_total)} from storage {rate}"
    of_peers = f"{size(report.bytes_peer)} from {_shares(report)} {rate}"
    return f"{of_peers} and {size(report.bytes_storage)} from storage" if report.bytes_storage else of_peers


def _shares(report: Report) -> str:
    """Which peers gave bytes; of several, how many each."""
    if len(report.sources) < 2:
        return "".join(report.sources)
    brought = dict.fromkeys(report.sources, 0)
    for each in report.attempts:
        if each.source in brought:
            brought[each.source] += each.bytes
    return ", ".join(f"{source} ({size(nbytes)})" for source, nbytes in brought.items())


def words_of_estimate(weighed: Weighed) -> str:
    """What was expected, why, what was decided, and what it took."""
    figures = f"a peer {seconds(weighed.waiting)}, storage {seconds(weighed.storage)}"
    took = "" if weighed.took is None else f"; it took {seconds(weighed.took)}"
    return f"expected of {figures} ({', '.join(weighed.basis)}): {CHOICES[weighed.decision]}{took}"


def _words_of(group: GroupReport) -> str:
    who = f"rank {group.index} of {group.size} in group {group.name}"
    if group.alone:
        return f"{who}, which agreed on nothing: {group.alone}"
    return f"{who}, which took the path over {'peers' if group.path == 'peer' else 'storage'}, agreed by all"
