"""What befalls whom, when, and for how long.

Decides nothing about what should come of it; that is for ``promises.py``. Every fault is over, and
mended, when :meth:`Faults.strike` returns, but for the dead and for memory that stays spoilt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio

from coldstart.errors import TransportError
from coldstart.phases.states import Serving
from coldstart.testing.chaos.line import OPERATIONS, Trouble
from coldstart.testing.chaos.subject import LATE, WRAPS, Subject
from coldstart.testing.harness import LAYOUT

if TYPE_CHECKING:
    from coldstart.testing.chaos.storm import World

RESTART = 2.0
"""Seconds, on average, until somebody starts a dead worker anew."""


class Faults:
    """The trouble of one storm."""

    def __init__(self, world: World) -> None:
        self.world, self.luck = world, world.luck
        self.kinds: Mapping[str, Callable[[float], Awaitable[bool]]] = {
            "crash": self._crash,
            "vanish": self._vanish,
            "drain": self._drain,
            "outage": self._outage,
            "wipe": self._wipe,
            "line": self._line,
            "silence": self._silence,
            "transport": self._transport,
            "change": self._change,
            "damage": self._damage,
            "storage": self._storage,
            "digester": self._digester,
            "self-check": self._self_check,
            "memory": self._memory,
        }

    async def strike(self, kind: str, moment: float, seconds: float) -> None:
        """Wait for the moment, strike, and mend it after ``seconds``."""
        await anyio.sleep(moment)
        if await self.kinds[kind](seconds):
            self.world.struck[kind] += 1

    def _anyone(self, which: Callable[[Subject], bool] = lambda subject: subject.alive) -> Subject | None:
        """One of those, in half the cases one that serves."""
        found = [subject for subject in self.world.living if which(subject)]
        serving = [subject for subject in found if subject.serves]
        chosen = serving if serving and self.luck.random() < 0.5 else found
        return self.luck.choice(chosen) if chosen else None

    def _remark(self, what: str, subject: Subject | None = None) -> None:
        self.world.remark(what, subject)

    # ------------------------------------------------------------------------------------ workers

    async def _crash(self, seconds: float) -> bool:
        """A process is killed, and its connections with it."""
        subject = self._anyone()
        if subject is None:
            return False
        self._remark("is killed", subject)
        await subject.die()
        await subject.switched.aclose()
        return await self._restart(subject)

    async def _vanish(self, seconds: float) -> bool:
        """A process is killed, and reads of its memory go on, with success, whatever is in it."""
        subject = self._anyone()
        if subject is None:
            return False
        self._remark("vanishes", subject)
        await subject.die()
        await anyio.sleep(self.luck.choice((0.0, seconds)))
        subject.scribble()
        return await self._restart(subject)

    async def _restart(self, subject: Subject) -> bool:
        await anyio.sleep(2 * RESTART * self.luck.random())
        if self.luck.random() < 0.5:
            self.world.launch(subject.name)
        return True

    async def _drain(self, seconds: float) -> bool:
        subject = self._anyone()
        if subject is None:
            return False
        self._remark("drains", subject)
        subject.member.node.drain(at_once=self.luck.random() < 0.3)
        return True

    # -------------------------------------------------------------------------------------- store

    async def _outage(self, seconds: float) -> bool:
        self._remark("the store is down")
        self.world.workers.store.stop()
        await anyio.sleep(seconds)
        self._remark("the store is back")
        self.world.workers.store.start()
        return True

    async def _wipe(self, seconds: float) -> bool:
        self._remark("the store is down")
        self.world.workers.store.stop()
        await anyio.sleep(self.luck.choice((0.0, seconds)))
        self._remark("the store is back, empty")
        self.world.workers.store.start(empty=True)
        return True

    async def _line(self, seconds: float) -> bool:
        """One operation of one worker goes wrong."""
        return await self._trouble((self.luck.choice(OPERATIONS),), seconds)

    async def _silence(self, seconds: float) -> bool:
        """The store does not answer one worker."""
        return await self._trouble(OPERATIONS, seconds)

    async def _trouble(self, operations: tuple[str, ...], seconds: float) -> bool:
        subject = self._anyone(lambda subject: subject.line is not None and not subject.line.troubles)
        if subject is None or subject.line is None:
            return False
        luck = self.luck
        trouble = luck.choice(
            (
                Trouble(to=luck.uniform(0, 2)),
                Trouble(back=luck.uniform(0, 2)),
                Trouble(fails=True),
                Trouble(to=luck.uniform(0, 1), lost=True),
            )
        )
        self._remark(f"{', '.join(operations)}: {trouble}", subject)
        subject.line.troubles = dict.fromkeys(operations, trouble)
        await anyio.sleep(seconds)
        self._remark("is heard by the store again", subject)
        subject.line.troubles = {}
        return True

    # --------------------------------------------------------------------------------- transports

    async def _transport(self, seconds: float) -> bool:
        subject = self._anyone()
        if subject is None:
            return False
        await self.wrap(subject, seconds)
        return True

    async def wrap(self, subject: Subject, seconds: float) -> None:
        """Put a fault around its transport for so long."""
        name = self.luck.choice(tuple(LATE if subject.late else WRAPS))
        self._remark(f"transport is {name}", subject)
        fault = subject.switched.fault = {**WRAPS, **LATE}[name](self.luck)
        await anyio.sleep(seconds)
        if subject.switched.fault is fault:
            self._remark("transport is sound", subject)
            subject.switched.mend()

    # -------------------------------------------------------------------------------- the weights

    async def _change(self, seconds: float) -> bool:
        """The host changes the weights in place, as ``Replica.changing`` does, and may restore them."""
        subject = self._anyone(lambda subject: isinstance(subject.member.joiner.state, Serving) and not subject.spoilt)
        if subject is None:
            return False
        self._remark("is about to change its weights", subject)
        subject.spoilt = subject.changed = True
        subject.member.node.withhold()
        while subject.member.node.read and not subject.member.ended.is_set():
            await subject.member.changed.wait()
        subject.scribble()
        await anyio.sleep(self.luck.choice((0.0, seconds)))
        if self.luck.random() < 0.5:
            subject.restore()
        self._remark("has done with changing", subject)
        subject.member.node.settle()
        return True

    async def _damage(self, seconds: float) -> bool:
        """A byte of a source's memory is not what it was, and nobody knows."""
        subject = self._anyone(lambda subject: subject.lends)
        if subject is None:
            return False
        chunk = self.luck.randrange(LAYOUT.chunks)
        self._remark(f"chunk {chunk} is damaged", subject)
        subject.spoilt = True
        subject.scribble(chunk)
        return True

    # ------------------------------------------------------------------------- the joiner's plugins

    async def _storage(self, seconds: float) -> bool:
        subject = self._anyone(lambda subject: subject.starts and subject.storage.limit is None)
        if subject is None:
            return False
        subject.storage.limit = subject.storage.read_bytes + self.luck.randrange(LAYOUT.nbytes)
        fails = self.luck.random() < 0.5
        subject.storage.error = TransportError("disk says no", reason="storage") if fails else None
        subject.broken = "storage fails" if fails else "storage stalls"
        self._remark(f"{subject.broken} after {subject.storage.limit} bytes", subject)
        return True

    async def _digester(self, seconds: float) -> bool:
        subject = self._anyone()
        if subject is None:
            return False
        chunks = frozenset(self.luck.sample(range(LAYOUT.chunks), self.luck.randint(1, 3)))
        self._remark(f"digester raises for {sorted(chunks)}", subject)
        subject.broken = subject.broken or "digester raises"
        subject.digester.raises = chunks
        await anyio.sleep(seconds)
        subject.digester.raises = frozenset()
        return True

    async def _self_check(self, seconds: float) -> bool:
        subject = self._anyone(lambda subject: subject.starts)
        if subject is None:
            return False
        self._remark("module is not right", subject)
        subject.unfit, subject.broken = True, "self-check finds something"
        return True

    async def _memory(self, seconds: float) -> bool:
        subject = self._anyone(lambda subject: subject.starts and subject.late)
        if subject is None:
            return False
        self._remark("memory cannot be replaced", subject)
        subject.unreplaceable, subject.broken = True, "memory cannot be replaced"
        return True
