"""Which group the options of ``coldstart worker`` mean."""

from __future__ import annotations

import pytest

from coldstart.cli.ranks import group_of
from coldstart.errors import ConfigError
from coldstart.group import Group


def test_options_name_a_group_or_none() -> None:
    assert group_of(None, 1, 0, torchrun=False) is None
    assert group_of("run", 4, 3, torchrun=False) == Group("run", 4, 3)


@pytest.mark.parametrize(
    ("name", "size", "index", "torchrun", "problem"),
    [
        ("run", 4, 4, False, "rank 4 of 4"),
        ("run", 0, 0, False, "rank 0 of 0"),
        ("a b", 2, 0, False, "malformed"),
        (None, 2, 1, False, "without a group"),
        ("run", 2, 1, True, "two groups"),
        (None, 1, 0, True, "did not start this process"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    name: str | None, size: int, index: int, torchrun: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ConfigError, match=problem):
        group_of(name, size, index, torchrun=torchrun)
