"""What a rank says to its group, at the moments that ``moves.py`` knows.

Decides which question an occasion answers, and how. Outside of a group nothing is said. When a rank waits
for what the others say is in ``agree.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Effect, Vote
from coldstart.group import MAX_REASON, PATH, PEERS, READY, Question
from coldstart.phases.journey import Journey
from coldstart.phases.states import STORAGE

Said = tuple[Journey, tuple[Effect, ...]]
"""The journey with what was said noted in it, and the votes."""


def say(journey: Journey, question: Question, yes: bool, reason: str = "") -> Said:
    """Answer a question; where its verdict is known there is nothing to be said."""
    accord = journey.accord
    if accord is None or accord.verdict(question) is not None:
        return journey, ()
    said = accord.said if question in accord.said else (*accord.said, question)
    return replace(journey, accord=replace(accord, said=said)), (Vote(question, yes, reason[:MAX_REASON]),)


def storage(journey: Journey, reason: str) -> Said:
    """This rank reads storage, for whatever reason: no rank takes the way over peers then."""
    accord = journey.accord
    if accord is None or accord.storage is not None:
        return journey, ()
    path = accord.verdict(PATH)
    why = journey.detours[-1] if journey.detours else reason
    return say(journey, PATH if path is None else PEERS, False, why)


def sound(journey: Journey) -> Said:
    """This rank could serve."""
    accord = journey.accord
    path = accord.verdict(PATH) if accord is not None else None
    votes: tuple[Effect, ...] = ()
    if accord is not None and PEERS not in accord.said and (path is None or path.yes):
        read = any(origin == STORAGE for origin, _ in journey.origins)
        journey, votes = say(journey, PEERS, not read, "read from storage" if read else "")
    journey, ready = say(journey, READY, True)
    return journey, (*votes, *ready)


def over(journey: Journey, reason: str) -> Said:
    """This rank will not serve."""
    return say(journey, READY, False, reason)
