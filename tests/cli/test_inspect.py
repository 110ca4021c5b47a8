"""``coldstart inspect``: every tensor with its class, and refusals in words."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_it_shows_what_would_be_carried(coldstart: Any, checkpoint: Path) -> None:
    done = coldstart("inspect", str(checkpoint), "--skeleton", "tensors")
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second, counts, storage = done.stdout.splitlines()
    assert head.split() == ["class", "name", "kind", "dtype", "shape", "bytes", "reason"]
    assert first.split() == ["carried", "a", "parameter", "float32", "300000", "1.2", "MB"]
    assert second.split() == ["carried", "b", "parameter", "float32", "7x5", "140", "B"]
    assert counts == "Tensors, by the tensors skeleton: 2 carried, 0 recomputed, 0 runtime, 0 unsupported"
    assert storage == "  storage gives only what is missing, in chunks"


def test_refusals_are_in_words(coldstart: Any, checkpoint: Path, odd_skeleton: str) -> None:
    words = ("inspect", str(checkpoint), "--skeleton", "odd")
    done = coldstart(*words, PYTHONPATH=odd_skeleton)
    assert (done.returncode, done.stderr) == (2, "")
    assert "  refused: _extra_state is refused: the module (Odd) keeps extra state outside its tensors" in done.stdout
    told = json.loads(coldstart(*words, "--json", PYTHONPATH=odd_skeleton).stdout)
    assert told["counts"] == {"carried": 2, "recomputed": 1, "runtime": 1, "unsupported": 1}
    assert {each["name"]: each["treatment"] for each in told["tensors"]} == {
        "weight": "carried", "bias": "carried", "table": "recomputed", "cache": "runtime",
        "_extra_state": "unsupported",
    }  # fmt: skip


def test_weights_that_the_checkpoint_lacks(coldstart: Any, checkpoint: Path, odd_skeleton: str) -> None:
    words = ("inspect", str(checkpoint), "--skeleton", "even")
    done = coldstart(*words, PYTHONPATH=odd_skeleton)
    assert (done.returncode, done.stderr) == (3, "")
    assert "  lacking: weight is not in the checkpoint\n  lacking: bias is not in the checkpoint\n" in done.stdout
    assert done.stdout.endswith("  a cold start of this would fail: the checkpoint has no value for these weights\n")
    told = json.loads(coldstart(*words, "--json", PYTHONPATH=odd_skeleton).stdout)
    assert told["lacking"] == ["weight is not in the checkpoint", "bias is not in the checkpoint"]


def test_what_cannot_be_built_is_one_line(coldstart: Any, one_line: Any, tmp_path: Path) -> None:
    done = coldstart("inspect", str(tmp_path / "nowhere"))
    assert done.returncode == 3
    assert "nowhere" in one_line(done.stderr)
