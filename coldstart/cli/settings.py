"""``coldstart config``: the settings that hold, where each comes from, and what each decides.

Decides how ``config.resolve()`` is shown; passwords are not. What is there to set, and why, is written down in
``coldstart/config/settings.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from coldstart import config
from coldstart.cli.output import emit, note, say, table
from coldstart.config import Declared, Effective, names, places
from coldstart.config.kinds import plain
from coldstart.config.showing import shown, template
from coldstart.errors import ConfigError

COLUMNS = ("setting", "value", "unit", "from")


class Row(msgspec.Struct, frozen=True):
    """One setting as ``--json`` tells it; ``origin`` is a kind, ``where`` the variable, argument or ``file:line``."""

    name: str
    value: str | int | float
    default: str | int | float
    origin: str
    where: str
    unit: str
    range: str
    about: str
    why: str


def run(given: Sequence[str], *, explain: str, as_template: bool, json: bool) -> None:
    """The command; raises ConfigError for a setting that is unknown or cannot be what it is."""
    if as_template:
        say_lines(template())
        return
    known = _known(explain) if explain else None
    effective = config.resolve(_arguments(given))
    rows = [_row(each, effective) for each in config.declared().values() if known is None or each is known]
    if json:
        emit({"file": str(effective.file) if effective.file else None, "settings": rows, "others": config.others()})
    elif known is not None:
        _explain(known, rows[0])
    else:
        _show(effective, rows)


def say_lines(text: str) -> None:
    """Several lines of result."""
    for line in text.rstrip("\n").split("\n"):
        say(line)


def _arguments(given: Sequence[str]) -> Mapping[str, object]:
    """``NAME=VALUE`` as arguments of a program would be."""
    found: dict[str, object] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"{each!r} is not NAME=VALUE", advice=f"to read about one setting: --explain {each}")
        found[_plain(name)] = value
    return found


def _plain(name: str) -> str:
    """A setting's name, however it is written: ``COLDSTART_LEND_GBPS``, ``lend-gbps``."""
    return name.strip().upper().removeprefix(config.PREFIX).lower().replace("-", "_")


def _known(name: str) -> Declared:
    known = config.declared()
    found = known.get(_plain(name))
    if found is None:
        meant = names.nearest(_plain(name), known)
        advice = f"did you mean {meant}?" if meant else "'coldstart config' lists all settings"
        raise ConfigError(f"there is no setting {name!r}", advice=advice)
    return found


def _row(each: Declared, effective: Effective) -> Row:
    value, origin = getattr(effective.settings, each.name), effective.origins[each.name]
    safe = shown(each, value) if isinstance(value, str) else value
    about, why = each.setting.about, each.setting.why
    where = origin.name or origin.kind
    return Row(each.name, safe, each.default, origin.kind, where, each.setting.unit, each.setting.range, about, why)


def _show(effective: Effective, rows: Sequence[Row]) -> None:
    table("", COLUMNS, [(row.name, _text(row.value), row.unit, _from(row)) for row in rows])
    if effective.file is None:
        looked = ", ".join(str(path) for path in places.files())
        note(f"no file of settings was read ({config.FILE}, {looked})")
    for each in config.others():
        note(f"{each} is no setting; it may be a plugin's")
    note("'coldstart config --explain NAME' says what a setting decides, and why its default is what it is")


def _explain(each: Declared, row: Row) -> None:
    unit = f" {each.setting.unit}" if each.setting.unit else ""
    default = f"{_text(each.default)}{unit}" if each.default != "" else "empty"
    say(f"{each.name} = {_text(row.value)}{unit} ({_from(row)})")
    say(f"  {each.setting.about}")
    say(f"  By default {default}: {each.setting.why}")
    say(f"  Set it as {names.variable(each.name)}, or as {each.name} in a file; use {each.wanted}.")


def _text(value: str | int | float) -> str:
    return plain(value) if value != "" else "''"


def _from(row: Row) -> str:
    return f"argument {row.where}" if row.origin == "argument" else row.where
