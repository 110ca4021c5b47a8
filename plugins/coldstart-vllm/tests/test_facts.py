"""Who holds the same weights, and what is refused: from facts alone."""

from __future__ import annotations

import msgspec
import pytest
from coldstart_vllm.facts import Axis, Facts, identity_of, other_files, rank_of, refusals

from coldstart.ports import Rank

PLAIN = Facts(version="0.32.0", model="m.Llama", config="{}", dtype="bfloat16")


def changed(**fields: object) -> Facts:
    return msgspec.structs.replace(PLAIN, **fields)


def other(value: object) -> object:
    match value:
        case bool():
            return not value
        case str():
            return value + "x"
        case _:
            return Axis(1, 2)


@pytest.mark.parametrize("field", Facts.__struct_fields__)
def test_every_fact_is_part_of_the_identity(field: str) -> None:
    different = changed(**{field: other(getattr(PLAIN, field))})
    assert identity_of(different) != identity_of(PLAIN) == identity_of(changed())


def test_the_rank_has_all_coordinates_and_the_role() -> None:
    facts = changed(tensor=Axis(1, 2), pipeline=Axis(2, 4), expert=Axis(3, 8), data=Axis(5, 6), draft=True)
    assert rank_of(facts) == Rank(tp=1, tp_size=2, pp=2, pp_size=4, ep=3, ep_size=8, dp=5, role="draft")
    assert rank_of(PLAIN) == Rank()


def test_plain_weights_are_not_refused() -> None:
    assert refusals(PLAIN) == ()
    assert refusals(changed(platform="cuda", draft=True, tensor=Axis(1, 2))) == ()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"platform": "tpu"}, "tpu"),
        ({"quantization": "fp8"}, "fp8"),
        ({"sleeps": True}, "sleep"),
        ({"balances": True}, "balancing"),
        ({"offloads": True}, "offloaded"),
        ({"context": Axis(0, 2)}, "context"),
        ({"encoder_only": True}, "encoder"),
        ({"streams": True}, "object store"),
    ],
)
def test_each_refusal_has_its_words(fields: dict[str, object], word: str) -> None:
    (reason,) = refusals(changed(**fields))
    assert word in reason


@pytest.mark.parametrize(
    ("names", "indexed", "reason"),
    [
        (["model.safetensors", "config.json"], None, ""),
        (["weights.safetensors"], None, ""),
        (["a.safetensors", "b.safetensors", "c.safetensors"], ["a.safetensors", "b.safetensors"], ""),
        (["model.safetensors"], ["model.safetensors"], ""),
        (["a.bin"], None, "no safetensors"),
        (["model.safetensors", "more.safetensors"], None, "2 safetensors files"),
        (["model.safetensors", "a.safetensors"], ["a.safetensors"], "both"),
        (["model.safetensors", "consolidated.safetensors"], None, "consolidated"),
    ],
)
def test_vllm_must_read_the_files_that_the_fingerprint_covers(
    names: list[str], indexed: list[str] | None, reason: str
) -> None:
    found = other_files(names, indexed)
    assert reason in found
    assert bool(found) is bool(reason)
