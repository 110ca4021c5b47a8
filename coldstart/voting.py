"""One rank's dealings with its group: it gives its answers, shows that it lives, and hears the verdicts.

Decides how often the record is asked and when it counts as out of reach. What is asked and what a verdict
leads to is decided in ``phases/agree.py``; the verdict itself by the store. A host may give a consensus of
its own (an all-reduce of its process group): a rank then says yes on the record only if that said yes, so
that ranks for which it ended differently still get one answer. It alone decides where there is no store.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from coldstart import effects, events
from coldstart.errors import BusError
from coldstart.events import Event
from coldstart.group import MAX_TRACES, PATH, READY, Answer, Group, Paper, Question, Verdict
from coldstart.plan import Limits
from coldstart.ports import Consensus
from coldstart.station import Station
from coldstart.telemetry import logger

BEATS = 10
"""Signs of life within the time after which a rank counts as gone. The store takes a quarter of it in which
nobody was heard for an absence of its own (``bus/ballots.py``)."""
SEEKING = 0.5
"""Seconds between two signs of life, at most, while the path is open: a rank that waits may have to read storage."""
QUICK, SLOW = 0.02, 0.25
"""Seconds between two looks at an open question, at first and after a while."""
LOOKS = 2000
"""Looks per second by all ranks of a group together, at most."""
CONSULTED: tuple[Question, ...] = (PATH, READY)
"""What the host's consensus is asked, by every rank once and in this order."""
NO_CONSENSUS = "the host's consensus was a no"


def beat_of(presence: float, heard: Container[str]) -> float:
    """Seconds until the next sign of life of a rank that has heard these verdicts."""
    return presence / BEATS if PATH in heard else min(SEEKING, presence / BEATS)


class Ties(NamedTuple):
    """How the traces of a group's ranks come together: ``trace`` is this rank's own, as a W3C traceparent;
    ``link`` takes those of the others, and this one's."""

    trace: str
    link: Callable[[str], None]


class Voting:
    """One rank's votes. ``post`` queues an event for the joiner's machine; set by whoever connects the parts.

    ``settled`` is set when it is known whether the group serves, or that this cannot be known.
    """

    def __init__(
        self,
        group: Group,
        station: Station,
        limits: Limits,
        consensus: Consensus | None = None,
        ties: Ties | None = None,
    ) -> None:
        self._group, self._station, self._limits = group, station, limits
        self._consensus, self._ties = consensus, ties
        self._tied: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._heard: dict[str, Verdict] = {}
        self._asked: set[Question] = set()
        self._consulted: dict[Question, bool] = {}
        self._broken = False
        self._turn = anyio.Lock()
        self._wake = anyio.Event()
        self._answered = 0.0
        """When the store answered last."""
        self.settled = anyio.Event()
        self.post: Callable[[Event], None] = lambda event: None

    async def vote(self, effect: effects.Vote) -> None:
        """Answer a question; what comes of it is posted."""
        question, yes, reason = effect.question, effect.yes, effect.reason
        if question == READY and yes and question not in (*self._heard, *self._answers):
            self.settled = anyio.Event()
        if yes and self._consensus is not None and question in CONSULTED:
            yes = await self._consult(question, True)
            reason = "" if yes else NO_CONSENSUS
        earlier = self._answers.get(question)
        if earlier is None or earlier.yes:  # a no is not taken back
            self._answers[question] = Answer(question, yes, reason)
        if question == READY and not yes:
            self.settled.set()
        self._wake.set()
        if self._station.bus is not None:
            await self._ask()
            return
        if self._consensus is not None and question in CONSULTED:
            await self._consult(question, yes)
        if effect.yes or self._consensus is not None:
            self._without_store(self._station.no_bus)

    async def run(self) -> None:
        """Show that this rank lives and hear what is decided, until all is and the others have had time to hear it."""
        self._answered = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            pause, ends = QUICK, float("inf")
            # The last word must have been heard some time after it was known, lest the store forget it before all know.
            while self._station.bus is not None and self._answered < ends:
                await self._ask()
                self._join_in(tasks)
                if READY in self._heard:
                    ends = min(ends, anyio.current_time() + self._limits.presence)
                beat = beat_of(self._limits.presence, self._heard)
                if self._open:
                    wait, pause = min(beat, max(pause, self._group.size / LOOKS)), min(2 * pause, SLOW)
                else:
                    wait, pause = beat, QUICK
                self._wake = anyio.Event()
                with anyio.move_on_after(wait):
                    await self._wake.wait()

    # ----------------------------------------------------------------------------------- the record

    @property
    def _open(self) -> bool:
        return any(question not in self._heard for question in self._answers)

    async def _ask(self) -> None:
        """Give our paper, and take in what stands in the record."""
        assert self._station.bus is not None
        answers = tuple(answer for question, answer in self._answers.items() if question not in self._heard)
        paper = Paper(
            self._group.member,
            self._station.worker.incarnation,
            self._group.size,
            self._limits.presence,
            answers,
            tuple(self._heard.values()),
            self._trace,
        )
        try:
            tally = await self._station.bus.vote(self._group.name, paper)
        except BusError as error:
            now = anyio.current_time()
            logger().warning("group's record not reached", group=self._group.name, reason=str(error))
            if now - self._answered >= self._limits.presence:
                self._answered = now
                self._without_store(str(error))
            return
        self._answered = anyio.current_time()
        self._tie(tally.traces)
        self._hear(tuple(verdict for verdict in tally.verdicts if verdict.question not in self._heard))

    @property
    def _trace(self) -> str:
        """What the others link to; nothing any more when all have been heard of, or the cold start is over."""
        if self._ties is None or READY in self._heard or len(self._tied) >= min(self._group.size, MAX_TRACES):
            return ""
        return self._ties.trace

    def _tie(self, traces: Sequence[str]) -> None:
        for trace in traces:
            if self._ties is not None and trace not in self._tied:
                self._tied.add(trace)
                self._ties.link(trace)

    def _hear(self, verdicts: tuple[Verdict, ...]) -> None:
        for verdict in verdicts:
            self._heard[verdict.question] = verdict
            logger().info("group has decided", group=self._group.name, rank=self._group.index, verdict=str(verdict))
            ours = next((said for asked, said in self._consulted.items() if asked == verdict.question), None)
            if ours is not None and ours is not verdict.yes:
                logger().warning("host's consensus differs from the record", verdict=str(verdict), consensus=ours)
        if any(verdict.question == READY for verdict in verdicts):
            self.settled.set()
        if verdicts:
            self.post(events.GroupHeard(verdicts))

    def _without_store(self, reason: str) -> None:
        """Nobody keeps the record now: what the host's consensus said counts, or nothing does."""
        if self._consensus is None:
            self.settled.set()
            self.post(events.GroupLost(reason))
            return
        self._hear(
            tuple(
                Verdict(question, yes, reason="" if yes else NO_CONSENSUS)
                for question, yes in self._consulted.items()
                if question in self._answers and question not in self._heard
            )
        )

    # ---------------------------------------------------------------------------- the host's consensus

    def _join_in(self, tasks: TaskGroup) -> None:
        """A no, ours or the record's, needs no consensus; but the others may wait for us in it."""
        answer = self._answers.get(PATH)
        no = PATH in self._heard or (answer is not None and not answer.yes)
        if self._consensus is not None and no and PATH not in self._asked:
            tasks.start_soon(self._consult, PATH, False)

    async def _consult(self, question: Question, yes: bool) -> bool:
        """Ask the host's consensus, each question once and all in their order."""
        self._asked.add(question)
        async with self._turn:
            for each in CONSULTED[: CONSULTED.index(question) + 1]:
                if each not in self._consulted:
                    earlier = self._answers.get(each)
                    said = yes if each == question else earlier is not None and earlier.yes
                    self._consulted[each] = await self._all_agree(each, said)
        return self._consulted[question]

    async def _all_agree(self, question: Question, yes: bool) -> bool:
        """What the consensus says; one that has failed is not asked again, for its ranks are out of step."""
        if self._broken or self._consensus is None:
            return False
        seconds = self._limits.follow + self._limits.presence
        try:
            with anyio.fail_after(seconds):
                return await self._consensus.all_agree(question, yes, seconds)
        except Exception as error:  # the host's own; it may raise anything
            self._broken = True
            logger().warning("host's consensus failed", question=question, reason=repr(error))
            return False
