"""A short run of every fuzzer, always the same one, and whatever has broken before."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.mutation import inputs
from tests.fuzz.targets import TARGETS, run, seeds

CORPUS = Path(__file__).parent / "corpus"
TRIES = {"tcp_port": 60, "tcp_answers": 60, "headers": 800}
USUAL = 3000


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_a_short_run(name: str) -> None:
    for data in islice(inputs(seeds(name), random.Random(name)), TRIES.get(name, USUAL)):
        try:
            run(name, data)
        except Exception as error:
            error.add_note(f"{name}: {data!r:.2000}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_what_mutation_begins_with_is_understood(name: str) -> None:
    """Or nothing behind the first check would ever be reached."""
    assert TARGETS[name](seeds(name)[0])


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    run(path.stem.rpartition("-")[0], path.read_bytes())
