"""The numeric probe of one worker: made once its bytes are right, compared with the published one.

Decides what a comparison means. Numbers that differ are a refusal to serve: the bytes are right, so
neither another peer nor storage would help. So is a probe that raises here although it gave numbers
where the truth was made. A probe that raises where there is nothing to compare with proves nothing
against verified bytes: it is said, and the worker serves. It must not know modules or phases.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread
import msgspec

from coldstart.errors import BusError, IntegrityError, in_a_line
from coldstart.probe import MOST_NUMBERS, Probe, differs
from coldstart.telemetry import logger
from coldstart.truths import Truths


class Compared(msgspec.Struct, frozen=True):
    """``refusal`` is why the worker must not serve, if it must not; ``said`` what came of the probe."""

    said: str = ""
    refusal: str = ""


class Prober:
    """Runs the builder's probe in a worker thread; ``run`` is None, or gives None, where there is no probe."""

    def __init__(self, run: Callable[[], Probe | None] | None, truths: Truths) -> None:
        self._run, self._truths = run, truths

    async def numbers(self) -> Probe | None:
        """What is published with a truth of this worker's own: nothing where the probe raises."""
        return (await self._made())[0]

    async def compared(self) -> Compared:
        """The probe made now, beside what was published first with the truth that the bytes were verified against."""
        own, raised = await self._made()
        if own is None and not raised:
            return Compared()
        try:
            published = await self._truths.probe()
        except (BusError, IntegrityError) as error:
            return Compared(raised or f"not compared: {error}")
        if published is None:
            return Compared(raised or "not compared: no numbers were published with the truth")
        if own is None:
            return Compared(refusal=f"{raised}, which gave numbers where the truth was published ({published.name})")
        if own.name != published.name:
            return Compared(f"not compared: the published numbers are of {published.name}, ours of {own.name}")
        difference = differs(published, own)
        if difference:
            return Compared(refusal=f"the probe {own.name} differs from the published one: {difference}")
        return Compared("equal to the published numbers")

    async def _made(self) -> tuple[Probe | None, str]:
        """The numbers; or why there are none though there should be."""
        if self._run is None:
            return None, ""
        try:
            probe = await anyio.to_thread.run_sync(self._run)
        except Exception as error:  # the builder's forward may raise anything
            reason = f"the probe raised {in_a_line(error)}"
            logger().warning("probe raised", reason=reason)
            return None, reason
        if probe is not None and len(probe.numbers) > MOST_NUMBERS:
            return None, f"the probe {probe.name} gave {len(probe.numbers)} numbers, more than {MOST_NUMBERS}"
        return (probe, "") if probe is not None and probe.numbers else (None, "")
