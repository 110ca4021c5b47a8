"""Ranks that start together and act as one: what they ask each other, and what was decided.

Decides which questions there are and what their verdicts say of the group's path. A verdict is written
once, by the store (``bus/ballots.py``); a rank that is not heard of any more counts as a no. It knows
neither clocks nor stores. What a rank says, and when it waits for the others, is in ``phases/agree.py``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from coldstart.errors import ConfigError
from coldstart.identity import Rank, is_id

Question = Literal["path", "peers", "ready"]
PATH: Question = "path"
"""Has every rank a source to read from? If not, all of them read storage."""
PEERS: Question = "peers"
"""Did every rank get everything from peers? Asked where ``path`` was a yes."""
READY: Question = "ready"
"""Has every rank verified weights in a sound module? If not, none of them serves."""
QUESTIONS: tuple[Question, ...] = (PATH, PEERS, READY)

MAX_RANKS = 65_536
MAX_REASON = 512
"""Characters of a reason; longer ones are cut by whoever gives them."""

MAX_TRACES = 32
"""Ranks of a group that link to each other; a span has room for 128 links, and a record is told often."""

Path = Literal["peer", "storage", ""]


class Group(msgspec.Struct, frozen=True):
    """One rank's place in its group.

    Args:
        name: of this start of the group: another one whenever it starts anew, and the same in all ranks.
        size: ranks in the group; 1 is no group at all.
        index: of this rank, from 0.
    """

    name: str
    size: int
    index: int

    @property
    def member(self) -> str:
        """What this rank is called in the group's record."""
        return str(self.index)

    @property
    def tensor_parallel(self) -> Rank:
        """The coordinates of this rank where the whole group is one tensor-parallel model."""
        return Rank(tp=self.index, tp_size=self.size)


def checked(group: Group) -> Group:
    """``group`` as it is.

    Raises:
        ConfigError: its name is malformed, or the index is not one of ``size`` ranks.
    """
    if not is_id(group.name):
        raise ConfigError(f"group name {group.name[:99]!r} is malformed", advice="use [A-Za-z0-9_.:-]{1,96}")
    if not 1 <= group.size <= MAX_RANKS or not 0 <= group.index < group.size:
        raise ConfigError(
            f"rank {group.index} of {group.size} in group {group.name} cannot be",
            advice=f"indexes go from 0 to size - 1, sizes from 1 to {MAX_RANKS}",
        )
    return group


class Answer(msgspec.Struct, frozen=True):
    """What one rank says to a question; a no says why."""

    question: str
    yes: bool
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What was decided for all ranks; of a no, which member it came from, if that is known, and why."""

    question: str
    yes: bool
    by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.yes:
            return f"{self.question}: yes"
        return f"{self.question}: no{f', rank {self.by}' if self.by else ''}: {self.reason}"


class Paper(msgspec.Struct, frozen=True):
    """Everything that a member has to say; given again and again, it is also its sign of life.

    Args:
        incarnation: of the member; answers of an earlier one are void.
        size: so many must say yes.
        seconds: a member that has given no paper for so long counts as a no.
        heard: verdicts that the member was told; they stand even if the store has forgotten them.
        trace: the W3C traceparent of its cold start, for the other ranks to link to; empty: nobody traces, or all
            that there is has been heard.
    """

    member: str
    incarnation: str
    size: int
    seconds: float
    answers: tuple[Answer, ...] = ()
    heard: tuple[Verdict, ...] = ()
    trace: str = ""


class Tally(msgspec.Struct, frozen=True):
    """What stands in the group's record: all verdicts, and how many members are present.

    ``traces`` are those of up to :data:`MAX_TRACES` members, told to who has given its own.
    """

    verdicts: tuple[Verdict, ...] = ()
    present: int = 0
    traces: tuple[str, ...] = ()


class Accord(msgspec.Struct, frozen=True):
    """What one rank has said to its group and what it knows to be decided.

    ``alone`` is why the rank went on without the group, the last time that it did; ``waited`` the seconds
    that it waited for the others.
    """

    group: Group
    said: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    alone: str = ""
    waited: float = 0.0

    def verdict(self, question: Question) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.question == question), None)

    def with_verdicts(self, verdicts: tuple[Verdict, ...]) -> Accord:
        """The accord with what is new in ``verdicts``; the first one heard stands."""
        known = {verdict.question for verdict in self.verdicts}
        fresh = [verdict for verdict in verdicts if verdict.question not in known and verdict.question in QUESTIONS]
        ordered = sorted((*self.verdicts, *fresh), key=lambda verdict: QUESTIONS.index(_question(verdict)))
        return msgspec.structs.replace(self, verdicts=tuple(ordered))

    @property
    def storage(self) -> Verdict | None:
        """The verdict by which the ranks read storage, if there is one."""
        return next((each for each in self.verdicts if each.question in (PATH, PEERS) and not each.yes), None)

    @property
    def path(self) -> Path:
        """Where the group's weights came from by its verdicts: from storage as soon as one rank needed it."""
        if self.storage is not None:
            return "storage"
        return "peer" if self.verdict(PEERS) is not None else ""


def _question(verdict: Verdict) -> Question:
    return next(question for question in QUESTIONS if question == verdict.question)
