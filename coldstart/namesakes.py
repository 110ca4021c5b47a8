"""Finds another live worker of the same name, and decides which of the two gives the name up.

The rule: a name belongs to whoever has held its advert for longer, without a gap of more than a lease. A newcomer has
held nothing yet, so it is refused while the other one lives; whoever was away for longer than a lease (stopped, cut
off) is a newcomer again. An advert alone proves no life: its worker is asked, and one that does not answer within
ANSWER_SECONDS is gone, so that a process that is started anew under its old name never waits for its old lease.

Must not know how adverts are made (``lending.py``) or what leaving means (``Node.drain``). Nothing here is needed for
safety: while the store answers nobody both go on, and take turns at one line of ``coldstart peers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat
from typing import assert_never

import anyio

from coldstart.errors import BusError, ConfigError
from coldstart.messages import Knock, Present, encode
from coldstart.ports import Advert, Bus
from coldstart.station import Station
from coldstart.telemetry import logger

ANSWER_SECONDS = 1.0
"""A worker that lives answers in milliseconds; one that is gone never does."""
PAUSES = (0.7, 1.4, 1.2, 1.9, 5.3, 60.7)
"""Between looks, in seconds; the last one repeats. Uneven, so that they do not keep step with the renewals of adverts:
of two live workers each overwrites the other's, and a look finds only the latest."""
TIE_SECONDS = 1.0
"""A name held for about as long by both is given up by the greater incarnation: letters take time, and both must come
to the same answer."""
MOST_UNANSWERED = 4
"""Letters of namesakes that are kept until they are answered; each of them asks again."""


class Namesakes:
    """One worker's dealings with whoever has its name.

    Args:
        bus: that of ``station``.
        host: where this worker is, for the other one's error.
        lease: seconds that an advert lives without renewal.
        serves: whether its own start has come to SERVE.
        drain: makes it leave.
    """

    def __init__(
        self,
        bus: Bus,
        station: Station,
        *,
        host: str,
        lease: float,
        serves: Callable[[], bool],
        drain: Callable[[], None],
    ) -> None:
        self._bus, self._station, self._host, self._lease = bus, station, host, lease
        self._serves, self._drain = serves, drain
        self.lost: ConfigError | None = None
        """Why a worker that served had to leave."""
        self._held_since = math.inf
        self._renewed_at = -math.inf
        self._unanswered: list[Knock] = []
        self._asked: Knock | None = None
        self._answer: Present | None = None
        self._gap, self._knocked, self._answered = anyio.Event(), anyio.Event(), anyio.Event()

    def renewed(self) -> None:
        """Our advert has just been written into the store."""
        now = anyio.current_time()
        if now - self._renewed_at > self._lease:  # the first one, or a gap in which the name was free
            self._held_since = now
            self._gap.set()
        self._renewed_at = now

    def letter(self, message: Knock | Present) -> None:
        """A namesake asks whether we live, or says that it does: believed if it proves that it answers us."""
        match message:
            case Knock():
                if len(self._unanswered) < MOST_UNANSWERED:
                    self._unanswered.append(message)
                    self._knocked.set()
            case Present():
                asked = self._asked
                if asked is not None and (message.transfer, message.answer) == (asked.transfer, asked.number + 1):
                    self._answer = message
                    self._answered.set()
            case _:
                assert_never(message)

    def forget(self) -> None:
        """Let go of whoever it asks."""
        self._serves, self._drain = bool, _nothing

    # ------------------------------------------------------------------------------- parts of a node

    async def look(self) -> None:
        """Look for a namesake now and then, until cancelled; raises ConfigError as :meth:`_give_up` does."""
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            with suppress(BusError):  # a later look is as good, and the claims say that the store is away
                await self._look()
            with anyio.move_on_after(pause):
                await self._gap.wait()
                self._gap = anyio.Event()

    async def answer(self) -> None:
        """Answer namesakes that ask, until cancelled; raises ConfigError as :meth:`_give_up` does."""
        while True:
            await self._knocked.wait()
            self._knocked, unanswered, self._unanswered = anyio.Event(), self._unanswered, []
            for message in unanswered:
                held = self._held
                await self._say(message, held)
                self._compare(held, message.held, message.asker, message.host)

    # ---------------------------------------------------------------------------------------- inside

    async def _look(self) -> None:
        station = self._station
        advert = await self._bus.advert(station.key, station.worker.name)
        if advert is None or advert.unproven or advert.incarnation == station.worker.incarnation:
            return
        held = self._held
        answer = await self._ask(advert, held)
        if answer is not None:
            self._compare(held, answer.held, advert.inbox, advert.host)

    async def _ask(self, advert: Advert, held: int) -> Present | None:
        """What the worker behind an advert says, or None if it is gone."""
        station = self._station
        self._answered, self._answer = anyio.Event(), None
        self._asked = Knock(
            transfer=f"look-{station.nonce()}",
            asker=station.worker.inbox,
            number=station.number(),
            held=held,
            host=self._host[:256],
        )
        await self._bus.send(station.key, advert.inbox, encode(self._asked), station.nonce())
        with anyio.move_on_after(ANSWER_SECONDS):
            await self._answered.wait()
        self._asked = None
        return self._answer

    async def _say(self, message: Knock, held: int) -> None:
        station = self._station
        told = Present(
            transfer=message.transfer, answer=message.number + 1, source=station.worker.inbox, held=held
        )
        try:
            await self._bus.send(station.key, message.asker, encode(told), station.nonce())
        except BusError as error:
            logger().warning("answer not sent", asker=message.asker, error=str(error))

    @property
    def _held(self) -> int:
        """For how many milliseconds the name has been ours."""
        now = anyio.current_time()
        return round((now - self._held_since) * 1000) if now - self._renewed_at <= self._lease else 0

    def _compare(self, held: int, theirs: int, inbox: str, host: str) -> None:
        """Give the name up if the other one has the better right to it; the other one decides the opposite."""
        tied = abs(held - theirs) < TIE_SECONDS * 1000
        if inbox < self._station.worker.inbox if tied else theirs > held:
            self._give_up(host)

    def _give_up(self, host: str) -> None:
        """Leave, if it serves, else end the start.

        Raises:
            ConfigError: the start is not over yet.
        """
        name, serves = self._station.worker.name, self._serves()
        error = ConfigError(
            f"a worker called {name!r} lives already, on {host!r}",
            advice="give this one a name of its own, or end that one first",
        )
        self._drain()
        if not serves:
            raise error
        if self.lost is None:
            logger().error("name given up", worker=name, to=host)
        self.lost = error


def _nothing() -> None:
    return
