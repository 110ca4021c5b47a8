"""``coldstart doctor``: look at everything a cold start needs, and say what to do.

Decides the order of the checks, how they are shown, and the exit code: 1 if any failed, 0
otherwise. What is looked at is in ``checks/``. A check that breaks is a failed check; this command
has no other way to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial

import anyio
import typer
from rich.text import Text

from coldstart import config
from coldstart.cli.checks import machine, network, permissions, security
from coldstart.cli.checks.check import SECONDS, Check, Look, blocking, fail, guarded
from coldstart.cli.checks.checkpoint import readable
from coldstart.cli.checks.links import LinkChecks
from coldstart.cli.checks.store import StoreChecks
from coldstart.cli.interruption import terminations_unwind
from coldstart.cli.output import STDERR, STDOUT, emit, redraws, say
from coldstart.config import Settings
from coldstart.errors import ConfigError

SLOW_SECONDS = 8.0
"""For checks that import torch or every plugin."""

PEER_SECONDS = 30.0
"""For measuring every transport to a peer."""

CHECKPOINT_SECONDS = 40.0
"""For headers from a store that must be asked several times."""

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_STATUS_WIDTH = 6
_NAME_WIDTH = 21


def run(redis: str | None, peer: str = "", checkpoint: str = "", *, json: bool) -> None:
    """The command; ends with exit code 1 if a check failed."""
    desk = _Desk(None if json else _show)
    with terminations_unwind():
        anyio.run(_examine, redis, peer, checkpoint, desk)
    failed = sum(check.status == "fail" for check in desk.checks)
    if json:
        emit({"ok": not failed, "checks": desk.checks, "next": next_steps(desk.checks)})
    else:
        warned = sum(check.status == "warn" for check in desk.checks)
        say(f"{len(desk.checks) - warned - failed} fine, {_counted(warned, 'warning')}, {_counted(failed, 'failure')}")
        for step in next_steps(desk.checks)[:1]:
            say(f"next: {step}")
    if failed:
        raise typer.Exit(1)


def next_steps(checks: Sequence[Check]) -> list[str]:
    """What to do, failures first, then what only makes starts slower."""
    found = [check for status in ("fail", "warn") for check in checks if check.status == status]
    return [f"{check.name}: {check.advice}" for check in found if check.advice]


class _Desk:
    """Runs one check after the other, says which on a terminal, and keeps what they found."""

    def __init__(self, show: Callable[[Check], None] | None) -> None:
        self.checks: list[Check] = []
        self._show = show

    async def take(self, name: str, look: Look, seconds: float = SECONDS) -> None:
        """Run one check to its end, whatever that is."""
        with ExitStack() as stack:
            if redraws(STDERR):
                stack.enter_context(STDERR.status(f"checking {name}"))
            found = await guarded(name, look, seconds)
        self.note(found)

    def note(self, found: Sequence[Check]) -> None:
        """Keep and show findings."""
        self.checks.extend(found)
        if self._show is not None:
            for check in found:
                self._show(check)


async def _examine(redis: str | None, peer: str, checkpoint: str, desk: _Desk) -> None:
    await desk.take("python", blocking(machine.python))
    await desk.take("torch", blocking(machine.torch), SLOW_SECONDS)
    for name, look in (
        ("memory", machine.memory),
        ("shared memory", machine.shared_memory),
        ("open files", machine.open_files),
        ("locked memory", machine.locked_memory),
    ):
        await desk.take(name, blocking(look))
    try:
        settings = config.load({"redis": redis})
    except ConfigError as error:
        desk.note([fail("settings", error.what, error.advice or "correct it; without it no store or peer is checked")])
    else:
        if checkpoint:
            read = partial(readable, checkpoint, settings.shelves)
            await desk.take("checkpoint", blocking(read), CHECKPOINT_SECONDS)
        await _examine_settings(settings, peer, desk)
    await desk.take("traces", network.traces)


async def _examine_settings(settings: Settings, peer: str, desk: _Desk) -> None:
    """Everything that depends on what the operator chose."""
    async with AsyncExitStack() as stack:
        store = StoreChecks(settings, stack)
        if store.embedded:
            await desk.take("store directory", store.directory)
        await desk.take("store", store.reach, SLOW_SECONDS)
        if store.bus is not None:
            await desk.take("round trip", store.round_trips)
            await desk.take("clock", store.clock)
            await desk.take("store memory", store.eviction)
            await desk.take("permissions", partial(permissions.store, store.bus))
        for name, look in (
            ("authentication", security.authentication),
            ("digest", security.digest),
            ("store TLS", security.transport_security),
        ):
            await desk.take(name, blocking(partial(look, settings)))
        await desk.take("address", partial(network.address, settings, store.bus))
        links = LinkChecks(settings, network.advertised(settings, store.bus))
        await desk.take("transports", links.transports, SLOW_SECONDS)
        for name in links.usable:
            await desk.take(f"loopback {name}", partial(links.loopback, name), SLOW_SECONDS)
        if peer:
            await desk.take(f"links to {peer}", partial(links.to_peer, peer, store.bus), PEER_SECONDS)
        await desk.take("paths", links.capabilities, SLOW_SECONDS)
        await desk.take("skeletons", links.skeletons)
        await desk.take("cache", blocking(partial(permissions.cache, settings)))
        await desk.take("metrics", blocking(partial(permissions.metrics, settings)))


def _show(check: Check) -> None:
    """A check in one line, and what to do in another."""
    status = check.status.ljust(_STATUS_WIDTH), _COLOURS[check.status]
    STDOUT.print(Text.assemble(status, f"{check.name:{_NAME_WIDTH}} ", check.finding))
    if check.advice:
        say(f"{'':{_STATUS_WIDTH + _NAME_WIDTH}} -> {check.advice}")


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
