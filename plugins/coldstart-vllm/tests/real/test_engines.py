"""Real engines on the CPU: tokens and log-probabilities are those of ``load_format=auto``, whatever path is taken.

An engine's own processing of weights for the CPU replaces them, so sources here keep the raw ones; what is
lent without that is tested with an engine that leaves weights where they lie, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

pytestmark = pytest.mark.timeout(900)

Answers = dict[str, object]
Ordinary = Callable[..., Answers]
KEEP = {"keep_raw": True}


class Engine(Protocol):
    def answers(self, request: str = "") -> Answers: ...
    def said(self, words: str) -> str: ...
    def wait_for(self, words: str) -> None: ...
    def kill(self) -> None: ...
    def end(self) -> int: ...


Start = Callable[..., Engine]


def assert_equal(found: Answers, expected: Answers) -> None:
    assert found["tokens"] == expected["tokens"]
    assert found["logprobs"] == expected["logprobs"]


def test_storage_then_a_peer(start: Start, ordinary: Ordinary, llama: Path) -> None:
    expected = ordinary(llama)
    source = start(llama, extra=KEEP)
    assert_equal(source.answers(), expected)
    assert "weights from storage" in source.said("weights from")
    assert source.said("are lent while this engine serves")
    joiner = start(llama)
    assert_equal(joiner.answers(), expected)
    line = joiner.said("weights from")
    assert "weights from peer" in line
    assert "every byte verified against the published truth" in line
    assert "keep_raw would keep them" in joiner.said("lending nothing")
    assert (joiner.end(), source.end()) == (0, 0)


def test_a_source_that_is_killed_in_mid_transfer(start: Start, ordinary: Ordinary, llama: Path) -> None:
    source = start(llama, extra={**KEEP, "lend_gbps": 0.001})
    source.answers()
    joiner = start(llama)
    joiner.wait_for("1.0 of 3.4 MB verified")
    source.kill()
    assert_equal(joiner.answers(), ordinary(llama))
    line = joiner.said("weights from")
    assert "weights from storage" in line, "vLLM's loader writes over what the peer gave"
    assert "0.0 from peers" in line
    assert "detours" in line
    assert joiner.said("FALLBACK from storage")
    assert joiner.end() == 0


def test_weights_that_stay_where_they_lie_are_lent_until_a_reload(
    start: Start, ordinary: Ordinary, llama: Path, other_llama: Path
) -> None:
    patches = "plain_matmul"
    expected = ordinary(llama, patches=patches)
    source = start(llama, patches=patches)
    assert_equal(source.answers(), expected)
    assert source.said("are lent while this engine serves")
    joiner = start(llama, patches=patches)
    assert_equal(joiner.answers(), expected)
    assert "weights from peer" in joiner.said("weights from")
    assert joiner.said("are lent while this engine serves")

    assert_equal(source.answers("reload"), expected)
    assert source.said("the weights are about to change")
    assert_equal(source.answers(f"load {other_llama}"), ordinary(other_llama, patches=patches))
    joiner.kill()
    late = start(llama, patches=patches)
    assert_equal(late.answers(), expected)
    assert "weights from storage" in late.said("weights from")


@pytest.mark.parametrize("case", ["float32", "a head that is tied only by the configuration"])
def test_what_processing_changes_most(
    start: Start, ordinary: Ordinary, llama: Path, odd_llama: Path, case: str
) -> None:
    """Both come out wrong, without an error, where processed weights are copied over a processed dummy."""
    model, dtype = (llama, "float32") if case == "float32" else (odd_llama, "bfloat16")
    expected = ordinary(model, dtype)
    source = start(model, extra=KEEP, dtype=dtype)
    assert_equal(source.answers(), expected)
    joiner = start(model, dtype=dtype)
    assert_equal(joiner.answers(), expected)
    assert "weights from peer" in joiner.said("weights from")


def test_another_dtype_is_another_shard(start: Start, ordinary: Ordinary, llama: Path) -> None:
    source = start(llama, extra=KEEP)
    source.answers()
    joiner = start(llama, dtype="float32")
    assert_equal(joiner.answers(), ordinary(llama, "float32"))
    assert "weights from storage" in joiner.said("weights from")


def test_a_model_that_does_not_say_what_it_loads_is_made_anew(start: Start, ordinary: Ordinary, llama: Path) -> None:
    engine = start(llama, patches="silent")
    assert_equal(engine.answers(), ordinary(llama))
    assert "does not say which weights" in engine.said("making the model anew")


def test_a_model_that_finishes_its_weights_while_loading_is_never_lent(
    start: Start, ordinary: Ordinary, llama: Path
) -> None:
    engine = start(llama, extra=KEEP, patches="finishing")
    assert_equal(engine.answers(), ordinary(llama))
    assert "does more than fill tensors" in engine.said("loaded from storage, lending nothing")
    late = start(llama, extra=KEEP, patches="finishing")
    assert_equal(late.answers(), ordinary(llama))
    assert "does more than fill tensors" in late.said("loaded from storage, lending nothing")


def test_without_a_store_it_is_storage(start: Start, ordinary: Ordinary, llama: Path) -> None:
    engine = start(llama, extra={"redis": "none"})
    assert_equal(engine.answers(), ordinary(llama))
    assert "weights from storage" in engine.said("weights from")
