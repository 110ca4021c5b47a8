"""Help is broken where the terminal ends, whatever the docstring's lines are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typer.main import get_command

from coldstart.cli.main import app


def _helps(command: object, name: str) -> Iterator[tuple[str, str]]:
    commands = getattr(command, "commands", {})
    assert isinstance(commands, Mapping)
    for word, each in commands.items():
        yield f"{name} {word}", getattr(each, "help", None) or ""
        yield from _helps(each, f"{name} {word}")


def test_paragraphs_of_every_command_are_lines() -> None:
    helps = dict(_helps(get_command(app), "coldstart"))
    assert {"coldstart journal", "coldstart bench fleet", "coldstart keys rotate"} <= helps.keys()
    for name, text in helps.items():
        assert text, name
        assert all(paragraph and "\n" not in paragraph for paragraph in text.split("\n\n")), name
