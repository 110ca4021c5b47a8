"""Leaves when an operator asks for it over the bus, and says how far that is.

Decides what an asker is told: at once how many transfers are in flight, then that nothing is lent any more. What
leaving means is the machines' matter (``Node.drain``); what the asker makes of it is in ``cli/drain.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from coldstart.errors import BusError
from coldstart.messages import Departure, Drain, encode
from coldstart.station import Station
from coldstart.telemetry import logger

MOST_ASKERS = 16
"""Who asks when so many others wait for an answer already gets none; the worker leaves all the same."""

LAST_SECONDS = 2.0
"""What the last answers may take: the host waits for them to leave."""


class Departing:
    """One worker's answers to whoever wants it to leave.

    Args:
        in_flight: how many joiners read here.
        serves: whether its own start has come to SERVE, and it has not left yet.
        drain: makes it leave.
    """

    def __init__(
        self, station: Station, *, in_flight: Callable[[], int], serves: Callable[[], bool], drain: Callable[[], None]
    ) -> None:
        self._station = station
        self._in_flight, self._serves, self._drain = in_flight, serves, drain
        self._askers: dict[str, Drain] = {}
        self._unanswered: list[Drain] = []
        self._asked = anyio.Event()

    def asked(self, message: Drain) -> None:
        """Somebody wants us to leave; a repeated letter changes nothing."""
        if message.asker not in self._askers and len(self._askers) < MOST_ASKERS:
            self._askers[message.asker] = message
            self._unanswered.append(message)
            self._asked.set()

    async def run(self) -> None:
        """Answer and leave, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked, unanswered, self._unanswered = anyio.Event(), self._unanswered, []
            serves = self._serves()
            for message in unanswered:
                logger().warning("asked to leave", worker=self._station.worker.name, by=message.asker)
                await self._say(message, over=False)
            self._drain()
            if not serves:  # there is nothing to wait for: its start is over, or it has left before
                await self.left()

    async def left(self) -> None:
        """Nothing is lent any more: tell all who have asked."""
        askers, self._askers = self._askers, {}
        with anyio.move_on_after(LAST_SECONDS):
            async with anyio.create_task_group() as tasks:
                for message in askers.values():
                    tasks.start_soon(self._say_over, message)

    def forget(self) -> None:
        """Let go of whoever it asks."""
        self._in_flight, self._serves, self._drain = int, bool, _nothing

    async def _say_over(self, message: Drain) -> None:
        await self._say(message, over=True)

    async def _say(self, message: Drain, *, over: bool) -> None:
        station = self._station
        told = Departure(
            transfer=message.transfer,
            answer=message.number + 1,
            source=station.worker.inbox,
            transfers=self._in_flight(),
            over=over,
        )
        try:
            if station.bus is not None:
                await station.bus.send(station.key, message.asker, encode(told), station.nonce())
        except BusError as error:
            logger().warning("answer not sent", asker=message.asker, error=str(error))


def _nothing() -> None:
    return
