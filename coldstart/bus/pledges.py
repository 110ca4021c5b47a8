"""Proofs of each rank's yes, so that a yes of the whole group is no stranger's word.

Decides when a rank states its proof anew and when all of them are there. A no needs no proof: it keeps the group from
peers or from serving, which whoever writes to the store can do in many ways. What is asked and decided is in
``ballots.py`` and ``polls.py``.
"""

from __future__ import annotations

import anyio

from coldstart.bus.notary import Notary, place_of
from coldstart.group import Paper, Tally, Verdict
from coldstart.ports import Bus

REPEAT_SECONDS = 2.0
"""A rank's yes is stated again so often while it votes: the store may have lost it."""


class Pledges:
    """One member's proofs, stated on ``bus``, which is not a sealed one."""

    def __init__(self, bus: Bus, notary: Notary) -> None:
        self._bus, self._notary = bus, notary
        self._said: dict[tuple[str, str, int], float] = {}
        """When our yes was last stated, by group, question and rank."""
        self._agreed: set[tuple[str, str, int]] = set()
        """By group, question and size: where every rank's yes is proven."""

    async def give(self, group: str, paper: Paper) -> None:
        """State the proofs of the yeses in ``paper``, and of earlier ones for whoever hears late. Raises BusError."""
        if not paper.member.isdecimal():
            return
        for answer in paper.answers:
            if answer.yes:
                self._said.setdefault((group, answer.question, int(paper.member)), -REPEAT_SECONDS)
        now, key = anyio.current_time(), self._notary.signing[0]
        for (named, question, member), at in list(self._said.items()):
            if named == group and now - at >= REPEAT_SECONDS:
                proof = self._notary.proof(key, "vote", group, question, member)
                await self._bus.state(group, place_of(key, "vote", question), {member: proof})
                self._said[named, question, member] = now

    async def proven(self, group: str, paper: Paper, tally: Tally) -> tuple[Verdict, ...]:
        """The verdicts of ``tally``, but for a yes that is new and that not every rank has said. Raises BusError."""
        heard = {verdict.question for verdict in paper.heard}
        return tuple(
            [
                verdict
                for verdict in tally.verdicts
                if not verdict.yes or verdict.question in heard or await self._is_agreed(group, verdict, paper.size)
            ]
        )

    async def _is_agreed(self, group: str, verdict: Verdict, size: int) -> bool:
        """Whether each of ``size`` ranks is proven to have said yes."""
        about = (group, verdict.question, size)
        if about in self._agreed:
            return True
        missing = set(range(size))
        for key in self._notary.signing:
            proofs = (await self._bus.stated(group, place_of(key, "vote", verdict.question))).digests
            missing -= {
                member
                for member in missing
                if self._notary.proves(proofs.get(member), key, "vote", group, verdict.question, member)
            }
        if missing:
            ranks = ", ".join(str(member) for member in sorted(missing)[:8])
            self._notary.refused("vote unproven", f"{verdict} in group {group}: no proof of a yes by rank {ranks}")
            return False
        self._agreed.add(about)
        return True
