"""Fixed blocks of seeds, in which every promise must hold; about 20 s of one core altogether.

``make soak`` plays many more. A seed that fails is shown with its violations and with the command
that plays it again, step by step.
"""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from coldstart.cli.simulate_words import Asked
from coldstart.testing.simulator import Fault, Violation, simulate

TROUBLED = {3: 220, 8: 120, 16: 70, 64: 20}
"""Seeds by workers, with all faults."""
QUIET = {3: 150, 8: 80, 16: 40, 64: 12}
ALONE = {3: 25, 8: 14, 16: 8, 64: 1}
"""With one kind of fault only; for each kind."""


def assert_kept(asked: Asked, seeds: range) -> Counter[str]:
    """Play ``seeds``; the faults that struck, by kind."""
    struck: Counter[str] = Counter()
    scenario = asked.scenario()
    for seed in seeds:
        outcome = simulate(scenario, seed)
        struck.update(outcome.faults)
        if outcome.violations:
            broken = "\n".join(f"  {each.promise}: {each.worker}: {each.what}" for each in outcome.violations)
            pytest.fail(f"seed {seed}:\n{broken}\nreplay: {asked.replay(seed)}", pytrace=False)
    return struck


@pytest.mark.parametrize("workers", TROUBLED)
def test_every_promise_holds_with_all_faults(workers: int) -> None:
    struck = assert_kept(Asked(workers, tuple(Fault)), range(TROUBLED[workers]))
    assert set(struck) == set(Fault)


def test_every_promise_holds_where_each_pull_ends_before_the_next() -> None:
    scenario = replace(Asked(16, tuple(Fault)).scenario(), growing=False)
    broken = [(seed, each) for seed in range(500, 515) for each in simulate(scenario, seed).violations]
    assert not broken, broken


def test_every_promise_holds_where_storage_can_only_be_loaded_whole() -> None:
    scenario = replace(Asked(8, tuple(Fault)).scenario(), partial=False)
    outcomes = [simulate(scenario, seed) for seed in range(600, 640)]
    broken = [(seed, each) for seed, outcome in enumerate(outcomes, 600) for each in outcome.violations]
    assert not broken, broken
    paths = sum((Counter(outcome.paths) for outcome in outcomes), Counter[str]())
    assert min(paths["peer"], paths["storage"]) > 0
    assert not paths["mixed"]


@pytest.mark.parametrize("workers", QUIET)
def test_every_promise_holds_without_faults(workers: int) -> None:
    assert not assert_kept(Asked(workers, ()), range(QUIET[workers]))


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("workers", ALONE)
def test_every_promise_holds_with_one_kind_of_fault(workers: int, fault: Fault) -> None:
    struck = assert_kept(Asked(workers, (fault,)), range(1000, 1000 + ALONE[workers]))
    assert set(struck) == {fault}


def test_a_failing_seed_is_shown_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Violation("never hang", 1.0, "w0.1", "still in Waiting")
    sound = simulate
    monkeypatch.setitem(
        globals(), "simulate", lambda scenario, seed: replace(sound(scenario, seed), violations=(broken,))
    )
    with pytest.raises(pytest.fail.Exception) as caught:
        assert_kept(Asked(3, (Fault.CRASH,)), range(7, 9))
    assert str(caught.value).splitlines() == [
        "seed 7:",
        "  never hang: w0.1: still in Waiting",
        "replay: coldstart simulate --workers 3 --seeds 7 --faults crash --journal",
    ]
