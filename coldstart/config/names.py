"""Which names are settings, and which one was meant.

Decides what is close enough to a setting's name to be taken for a slip. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

PREFIX = "COLDSTART_"

CLOSE = 0.75
"""Likeness, from 0 to 1, above which a name is a slip: a letter more, less or another in a word of four or more."""


_SERVICE = "_SERVICE_HOST"


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def nearest(name: str, known: Collection[str]) -> str:
    """The one of ``known`` that ``name`` was probably meant to be; empty: none of them."""
    word = name.lower().replace("-", "_")
    longer = [each for each in known if each.startswith(f"{word}_") or word.startswith(f"{each}_")]
    return next(iter([*get_close_matches(word, known, n=1, cutoff=CLOSE), *longer]), "")


def misspelt(variables: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Variables that are no setting's but nearly so, each with the variable that was probably meant."""
    found: dict[str, str] = {}
    for each in sorted({*variables} - of_services(variables)):
        name = each.removeprefix(PREFIX).lower()
        if each.startswith(PREFIX) and name not in known and (meant := nearest(name, known)):
            found[each] = variable(meant)
    return found


def of_services(variables: Collection[str]) -> set[str]:
    """Those by which Kubernetes describes Services to every container, should one be called ``coldstart-redis``.

    Their form: kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    services = [each.removesuffix(_SERVICE) for each in variables if each.endswith(_SERVICE)]
    forms = tuple(f"{service}_{form}" for service in services for form in ("SERVICE_", "PORT"))
    return {each for each in variables if each.startswith(forms)}
