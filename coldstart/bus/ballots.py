"""What ranks of a group have answered, and the verdicts: the rules of ``polls.py`` in Python.

Decides when a question is decided: once, with yes when every member has said yes, with no as soon as one says no, is
not heard of any more, or takes the group for one of another size. Pure: it knows no clock but the ``now`` that it is
given, and nothing of what is asked. ``ledger.py`` keeps it; ``testing/bus_contract/ballots.py`` holds both forms to one
behaviour.
"""

from __future__ import annotations

from coldstart.bus.leases import Leases
from coldstart.bus.limits import GROUP_SECONDS
from coldstart.group import MAX_TRACES, Paper, Tally, Verdict

GONE = "not heard of any more"
SIZES = "it says that the group has {mine} ranks, and others say {others}"
"""The reason of a no for a member that was started as one of another number."""


class _Poll:
    """One group's record."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.ends: dict[str, float] = {}
        self.agreed: dict[str, tuple[str, set[str]]] = {}
        """By member: its incarnation, and the questions to which it has said yes."""
        self.traces: dict[str, str] = {}
        self.last: float | None = None
        self.size = 0
        """Ranks of the group, as the first of them says."""


class Ballots:
    """The records of all groups."""

    def __init__(self) -> None:
        self._polls: Leases[_Poll] = Leases()

    def vote(self, group: str, paper: Paper, now: float) -> Tally:
        """Take a member's paper in; returns what stands then."""
        poll = self._polls.renew(group, now, GROUP_SECONDS)
        if poll is None:
            poll = _Poll()
            self._polls.put(group, poll, now, GROUP_SECONDS)
        for verdict in paper.heard:
            poll.verdicts.setdefault(verdict.question, verdict)
        _show_presence(poll, paper, now)
        poll.size = poll.size or paper.size
        incarnation, agreed = poll.agreed.get(paper.member, ("", set()))
        if incarnation != paper.incarnation:
            agreed = set()
        poll.agreed[paper.member] = paper.incarnation, agreed
        agreed.update(answer.question for answer in paper.answers if answer.yes)
        _decide(poll, paper, now)
        present = sum(end > now for end in poll.ends.values())
        verdicts = tuple(poll.verdicts[question] for question in sorted(poll.verdicts))
        return Tally(verdicts, present, _traces(poll, paper))


def _traces(poll: _Poll, paper: Paper) -> tuple[str, ...]:
    """Those of the group, for who gives its own."""
    if not paper.trace:
        return ()
    if paper.member in poll.traces or len(poll.traces) < MAX_TRACES:
        poll.traces[paper.member] = paper.trace
    return tuple(sorted(poll.traces.values()))


def _show_presence(poll: _Poll, paper: Paper, now: float) -> None:
    """The member is here. When nobody at all was heard for long, the store was away, and nobody is to blame."""
    if poll.last is not None and not poll.last <= now <= poll.last + paper.seconds / 4:
        poll.ends = dict.fromkeys(poll.ends, now + paper.seconds)
    poll.ends[paper.member] = now + paper.seconds
    poll.last = now


def _decide(poll: _Poll, paper: Paper, now: float) -> None:
    """Write the verdicts of the questions that the paper answers, where they are due and none stands."""
    gone = min((member for member, end in poll.ends.items() if end <= now), default="")
    for answer in paper.answers:
        question = answer.question
        if question in poll.verdicts:
            continue
        if not answer.yes:
            poll.verdicts[question] = Verdict(question, False, paper.member, answer.reason)
        elif paper.size != poll.size:
            reason = SIZES.format(mine=paper.size, others=poll.size)
            poll.verdicts[question] = Verdict(question, False, paper.member, reason)
        elif gone:
            poll.verdicts[question] = Verdict(question, False, gone, GONE)
        elif sum(question in agreed for _, agreed in poll.agreed.values()) >= paper.size:
            poll.verdicts[question] = Verdict(question, True)
