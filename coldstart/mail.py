"""Reads this worker's inbox, and hands each letter to the right machine.

Decides nothing; counts what it cannot read. It goes on through any outage of the bus: it backs
off, listens again, and tells both machines when the store has lost its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import anyio

from coldstart.errors import BadMessage, BusError
from coldstart.messages import (
    Accept,
    Departure,
    Done,
    Doubt,
    Drain,
    Hello,
    Knock,
    Offer,
    Present,
    Progress,
    Refusal,
    decode,
)
from coldstart.ports import Bus, Cursor, Granted, Letter
from coldstart.telemetry import logger

WAIT_SECONDS = 2.0
"""One blocking read of the inbox; what comes ends it at once."""
BACK_OFF = (0.05, 0.2, 0.5, 1.0)
"""Pauses after the first, second, ... failed listen, in seconds; the last one repeats."""


class Mail:
    """One worker's postman.

    Args:
        to_joiner: takes a source's letters.
        granted: takes the store's, about claims that stood in line.
        to_source: takes joiners' letters, with the fence of the claim.
        to_host: takes an operator's.
        to_namesakes: takes those of another worker of this name.
        store_renewed: told when the store has lost its memory.
    """

    def __init__(
        self,
        bus: Bus,
        shard: str,
        inbox: str,
        *,
        to_joiner: Callable[[Offer | Progress | Refusal], None],
        granted: Callable[[str, Granted], None],
        to_source: Callable[[Hello | Accept | Doubt | Done, int], None],
        to_host: Callable[[Drain], None],
        to_namesakes: Callable[[Knock | Present], None],
        store_renewed: Callable[[], None],
    ) -> None:
        self._bus, self._shard, self._inbox = bus, shard, inbox
        self._to_joiner, self._to_source, self._to_host = to_joiner, to_source, to_host
        self._to_namesakes = to_namesakes
        self._granted, self._store_renewed = granted, store_renewed
        self.dropped = 0

    async def run(self) -> None:
        """Listen until cancelled."""
        cursor, failures = Cursor(), 0
        while True:
            try:
                heard = await self._bus.listen(self._shard, self._inbox, cursor, WAIT_SECONDS, fleet=False)
            except BusError as error:
                pause = BACK_OFF[min(failures, len(BACK_OFF) - 1)]
                if failures == 0:
                    logger().warning("bus lost", error=str(error))
                failures += 1
                await anyio.sleep(pause)
                continue
            if failures:
                logger().info("bus is back", failures=failures)
                failures = 0
            cursor = heard.cursor
            if heard.renewed:
                self._store_renewed()
            for letter in heard.letters:
                self._deliver(letter)

    def _deliver(self, letter: Letter) -> None:
        if letter.granted is not None:
            self._granted(letter.transfer, letter.granted)
            return
        try:
            message = decode(letter.body)
        except BadMessage as error:
            self.dropped += 1
            logger().warning("letter dropped", error=str(error), dropped=self.dropped)
            return
        match message:
            case Offer() | Progress() | Refusal():
                self._to_joiner(message)
            case Hello() | Accept() | Doubt() | Done():
                self._to_source(message, letter.fence)
            case Drain():
                self._to_host(message)
            case Knock() | Present():
                self._to_namesakes(message)
            case Departure():
                logger().warning("stray letter dropped", transfer=message.transfer, type="Departure")
            case _:
                assert_never(message)
