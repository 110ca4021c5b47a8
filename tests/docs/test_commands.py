"""Every command on a page can be given: its options, targets and files are there, and its variables are settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from coldstart import config
from coldstart.cli.main import app
from tests.docs.pages import ROOT, commands, mentions, pages

Command = TyperCommand | TyperGroup
COMMAND = cast(TyperGroup, typer.main.get_command(app))
UsageError = typer.BadParameter.__mro__[1]  # typer has a click of its own, which it does not show
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def parse(words: Sequence[str], command: Command = COMMAND) -> None:
    """Parse ``words`` as the command line would, and do nothing; raises UsageError."""
    match command, list(words):
        case TyperGroup(commands=inner), [word, *rest] if word in inner:
            parse(rest, inner[word])
        case TyperGroup(), [word, *_] if not word.startswith("-"):
            raise typer.BadParameter(f"there is no command {word!r}")
        case _:
            command.make_context(command.name, list(words))


def check_named(words: Sequence[str]) -> None:
    """In a sentence a command may stand without what it needs; what is there must exist."""
    command: Command = COMMAND
    for word in words:
        if isinstance(command, TyperGroup) and not word.startswith("-"):
            assert word in command.commands, f"there is no command {word!r}"
            command = command.commands[word]
        elif word.startswith("-"):
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            assert word.partition("=")[0] in known | {"--help", "-h"}, f"{command.name} has no {word}"


def check(words: Sequence[str]) -> None:
    match list(words):
        case ["coldstart", *rest]:
            with suppress(typer.Exit):  # --help, --version
                parse(rest)
        case ["make", *targets]:
            assert {each for each in targets if "=" not in each} <= TARGETS
        case ["python" | "python3", "-m", module, *_]:
            place = ROOT.joinpath(*module.split("."))
            assert not place.parent.is_relative_to(ROOT) or place.is_dir() or place.with_suffix(".py").exists()
        case ["python" | "python3", script, *_] if script.endswith(".py"):
            assert (ROOT / script).exists()
        case ["pip", "install", *rest]:
            for each in (word for flag, word in pairwise(rest) if flag == "-e"):
                assert (ROOT / each.partition("[")[0] / "pyproject.toml").exists(), each
        case _:
            pass


LINES = [pytest.param(words, id=f"{where} {' '.join(words)[:60]}") for where, words in commands()]
NAMED = [pytest.param(words, id=f"{where} {' '.join(words)[:60]}") for where, words in mentions()]


@pytest.mark.parametrize("words", LINES)
def test_a_command_in_a_block_can_be_given(words: list[str]) -> None:
    check(words)


@pytest.mark.parametrize("words", NAMED)
def test_a_command_in_a_sentence_exists(words: list[str]) -> None:
    if words[0] == "make":
        check(words)
    else:
        check_named(words[1:])


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_is_a_setting(page: Path) -> None:
    named = set(re.findall(r"\bCOLDSTART_[A-Z_]*[A-Z]\b", page.read_text()))
    settings = {config.FILE, *(f"COLDSTART_{name.upper()}" for name in config.declared())}
    assert {each for each in named - settings if not each.startswith("COLDSTART_NCCL_")} == set()


@pytest.mark.parametrize(
    "words",
    [
        ["coldstart", "workr"],
        ["coldstart", "worker"],
        ["coldstart", "worker", "--checkpoint", "x", "--fast"],
        ["coldstart", "bench", "fleet", "--sizes", "1"],
        ["coldstart", "simulate", "--workers", "many"],
    ],
)
def test_a_wrong_command_would_be_seen(words: list[str]) -> None:
    with pytest.raises(UsageError):
        check(words)


def test_commands_are_found() -> None:
    heads = {words[0] for _, words in commands()}
    assert {"coldstart", "make", "pip", "python"} <= heads
    assert len(LINES) + len(NAMED) > 50
