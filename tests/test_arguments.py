"""What a host may give by mistake ends in one line that names the argument, before anything is built or opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import coldstart
from coldstart import Settings
from coldstart.errors import ConfigError

Write = Callable[..., Path]


async def waits(*given: object) -> tuple[str, ...]:
    return ()


class Waits:
    async def __call__(self, *given: object) -> None: ...


HOSTILE: dict[str, tuple[object, ...]] = {
    "checkpoint": (7, None, "", b"/model", "a\0b"),
    "skeleton": (7, None),
    "dtype": (None, torch.bfloat16, "\ud800"),
    "device": (None, 0, torch.device("cpu"), "gpu", "", "cpu:1"),
    "rank": (7, (0, 1)),
    "revision": (7, None),
    "worker": (7, "a b", "x" * 97),
    "settings": ({}, 7, Settings(slots="4"), Settings(redis=None), Settings(slots=0)),  # type: ignore[arg-type]
    "bus": (7, object()),
}
ONLY_JOIN: dict[str, tuple[object, ...]] = {
    "group": (7, "", "mpi"),
    "consensus": (7, lambda question, yes, seconds: True),
    "prefer": (7, "near", waits),
    "on_progress": (7, "print", waits, Waits()),
}


def cases(*tables: dict[str, tuple[object, ...]]) -> list[Any]:
    every = [(name, value) for table in tables for name, values in table.items() for value in values]
    return [pytest.param(name, value, id=f"{name}-{number}") for number, (name, value) in enumerate(every)]


@pytest.mark.parametrize(("name", "value"), cases(HOSTILE, ONLY_JOIN))
async def test_join_says_what_is_wrong(name: str, value: object, tmp_path: Path, write_checkpoint: Write) -> None:
    given: dict[str, Any] = {"checkpoint": write_checkpoint(tmp_path, mib=1), "skeleton": "tensors", name: value}
    with pytest.raises(ConfigError) as caught:
        async with coldstart.join(given.pop("checkpoint"), **{"redis": None, **given}):
            pass
    check_words(caught.value, name, value)


@pytest.mark.parametrize(("name", "value"), cases(HOSTILE))
async def test_lend_says_what_is_wrong(name: str, value: object, tmp_path: Path, write_checkpoint: Write) -> None:
    given: dict[str, Any] = {"checkpoint": write_checkpoint(tmp_path, mib=1), "skeleton": "tensors", name: value}
    with pytest.raises(ConfigError) as caught:
        async with coldstart.lend(nn.Linear(1, 1), given.pop("checkpoint"), **given):
            pass
    check_words(caught.value, name, value)


def check_words(error: ConfigError, name: str, value: object) -> None:
    named = "setting" if isinstance(value, Settings) else name
    assert named in str(error)
    assert "\n" not in str(error)
    assert error.advice


async def test_what_is_misspelt_in_the_environment_is_said_once(
    tmp_path: Path, write_checkpoint: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COLDSTART_SCRUBB", "0")
    checkpoint = write_checkpoint(tmp_path, mib=1)
    for _ in range(2):
        async with coldstart.join(checkpoint, skeleton="tensors", redis="none"):
            pass
    said = [record.getMessage() for record in caplog.records if "COLDSTART_SCRUBB" in record.getMessage()]
    assert len(said) == 1
    assert "meant='COLDSTART_SCRUB'" in said[0]
