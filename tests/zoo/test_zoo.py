"""Families of the zoo, started cold: the quick ones always, all of them with ``-m zoo``; and the zoo's own eyes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.zoo import __main__ as command
from tests.zoo.families import families
from tests.zoo.family import Family
from tests.zoo.outcome import Outcome, Zoo, total
from tests.zoo.page import BEGIN, END, written
from tests.zoo.seen import NOTHING, Seen
from tests.zoo.start import Pair, judged, pair
from tests.zoo.worker import Told

KNOWN = families()
PAGE = Path(__file__).parent.parent.parent / "docs" / "families.md"


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    with pair() as made:
        yield made


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "family",
    [pytest.param(family, id=name, marks=[] if family.quick else [pytest.mark.zoo]) for name, family in KNOWN.items()],
)
def test_family(family: Family, workers: Pair) -> None:
    assert workers.start(family).wrong == ""


def test_the_zoo_is_large_and_has_every_kind() -> None:
    chosen = [family for family in KNOWN.values() if family.library == "transformers"]
    assert len({family.name.partition(":")[0] for family in chosen}) >= 55
    kinds = {"audio", "causal", "encoder", "moe", "multimodal", "quantised", "seq2seq", "state space", "vision"}
    assert kinds <= {family.kind for family in chosen}
    assert 10 <= sum(family.quick for family in KNOWN.values()) <= 35


def test_the_page_knows_every_family() -> None:
    rows = {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    assert {name for name in KNOWN if name not in rows} == set(), "run: make zoo"


# ---------------------------------------------------------------------------------------- its command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nope"], "no family is called 'nope'"),
        (["--only", ""], "no family is called ''"),
        (["--only", "LlamaForCausalLM", "--library", "diffusers"], "no family is called 'LlamaForCausalLM' in diff"),
        (["--json", "nowhere/out.json"], "nowhere/out.json cannot be written"),
        (["--json", "."], ". cannot be written"),
        (["--library", "jax"], "invalid choice: 'jax'"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_starts(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "pair", NotImplemented)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_interruption_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Pair, family: Family) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pair, "start", interrupted)
    assert command.main(["--only", "LlamaForCausalLM", "--json", str(tmp_path / "out.json")]) == 130
    assert "interrupted after 0 of 1 families; nothing is written" in capsys.readouterr().out
    assert not (tmp_path / "out.json").exists()


# ------------------------------------------------------------------------------------- the zoo's own eyes


SEEN = Seen({"a": "1", "b": "2"}, ["3", "4"], [])
LENT = Told(ordinary=SEEN, cold=SEEN, path="storage", verified=True, bytes=8)
JOINED = Told(cold=SEEN, path="peer", verified=True, bytes=8, bytes_peer=8)
LLAMA = KNOWN["LlamaForCausalLM"]


def test_equal_is_right() -> None:
    assert judged(LLAMA, LENT, JOINED).wrong == ""


@pytest.mark.parametrize(
    ("lent", "joined", "words"),
    [
        ({}, {"cold": Seen({"a": "1", "b": "9"}, ["3", "4"], [])}, "from the peer: b is 9, not 2"),
        ({}, {"cold": Seen({"a": "1", "b": "2"}, ["3", "9"], [])}, r"from the peer: answers \[1\] of 2 differ"),
        ({}, {"cold": Seen({"a": "1", "b": "2"}, ["3"], [])}, "from the peer: it gives 1 answers, not 2"),
        ({}, {"cold": Seen({"a": "1"}, ["3", "4"], [])}, "from the peer: b is missing"),
        ({"cold": Seen({"a": "1", "b": "2", "c": "3"}, ["3", "4"], [])}, {}, "from storage: c is too much"),
        ({}, {"path": "storage"}, "the paths were storage and storage"),
        ({}, {"bytes_peer": 4}, "only 4 of 8 bytes came verified from the peer"),
        ({}, {"verified": False}, "came verified"),
        ({"error": "SkeletonError: no"}, {}, "SkeletonError: no"),
        ({}, {"error": "it died"}, "it died"),
    ],
)
def test_what_is_not_equal_is_wrong(lent: dict[str, object], joined: dict[str, object], words: str) -> None:
    outcome = judged(LLAMA, msgspec.structs.replace(LENT, **lent), msgspec.structs.replace(JOINED, **joined))
    assert not outcome.right
    assert re.search(words, outcome.wrong), outcome.wrong


def test_a_refusal_is_right_only_in_the_words_that_were_stated() -> None:
    family = dataclasses.replace(LLAMA, refused="no such method")
    told = Told(error="SkeletonError: there is no such method here", refused=True)
    assert judged(family, told, None).refusal == "no such method"
    for other in (LENT, Told(error="SkeletonError: something else", refused=True), Told(error="no such method")):
        assert judged(family, other, None).wrong


def test_what_the_library_leaves_without_memory_is_not_compared() -> None:
    ordinary = Seen({"a": "1", "b": NOTHING}, ["3", "4"], [])
    assert judged(LLAMA, msgspec.structs.replace(LENT, ordinary=ordinary), JOINED).right


def test_a_page_is_written_between_its_markers() -> None:
    right = Outcome(
        name="A: b", library="l", kind="k", bytes=8, carried=1, recomputed=("x.0.y", "x.1.y"), naive="wrong"
    )
    refused = Outcome(name="C", library="l", kind="k", refusal="of no | use")
    page = written(f"head\n{BEGIN}\nold\n{END}\ntail", Zoo({"l": "1"}, (right, refused)))
    assert page.startswith(f"head\n{BEGIN}\n1 families of 1 classes start equal")
    assert page.endswith(f"{END}\ntail")
    assert "| A: b | 1 | 8 | 2: *.y |  | in chunks | wrong |" in page
    assert "old" not in page
    assert total([right, refused], 1.0).startswith("2 families of 2 classes: 1 equal, 1 refused")
