"""Which names are settings, and which one was meant.

Decides what is close enough to a setting's name to be taken for a slip. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

PREFIX = "COLDSTART_"

CLOSE = 0.75
"""Likeness, from 0 to 1, above which a name is a slip: a letter more, less or another in a word of four or more."""


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def nearest(name: str, known: Collection[str]) -> str:
    """The one of ``known`` that ``name`` was probably meant to be; empty: none of them."""
    word = name.lower().replace("-", "_")
    longer = [each for each in known if each.startswith(f"{word}_") or word.startswith(f"{each}_")]
    return next(iter([*get_close_matches(word, known, n=1, cutoff=CLOSE), *longer]), "")


def misspelt(variables: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Variables that are no setting's but nearly so, each with the variable that was probably meant."""
    found: dict[str, str] = {}
    for each in sorted(variables):
        name = each.removeprefix(PREFIX).lower()
        if each.startswith(PREFIX) and name not in known and (meant := nearest(name, known)):
            found[each] = variable(meant)
    return found
