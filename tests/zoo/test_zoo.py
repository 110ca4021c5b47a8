"""Families of the zoo, started cold: the quick ones always, all of them with ``-m zoo``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zoo.families import families
from tests.zoo.family import Family
from tests.zoo.start import Pair, pair

KNOWN = families()


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    with pair() as made:
        yield made


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "family",
    [pytest.param(family, id=name, marks=[] if family.quick else [pytest.mark.zoo]) for name, family in KNOWN.items()],
)
def test_family(family: Family, workers: Pair) -> None:
    assert workers.start(family).wrong == ""
