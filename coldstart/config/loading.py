"""What holds: arguments beat the environment, the environment beats the file, the file beats the defaults.

Decides where each value comes from, and that it is of the right type and in its range; an error names what the operator
wrote and where. What the settings are is in ``settings.py``; ``replica.py`` and the command line use the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from coldstart.config import files
from coldstart.config.declared import Declared, declared
from coldstart.config.files import File
from coldstart.config.kinds import plain
from coldstart.config.names import PREFIX, misspelt, nearest, of_services, variable
from coldstart.config.settings import Settings
from coldstart.errors import ConfigError

FILE: Final = f"{PREFIX}CONFIG"
"""Names the file of settings; ``none``: no file is read."""

Kind = Literal["argument", "environment", "file", "default"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from; ``name`` is what the operator would have to change: a variable, ``file:line``."""

    kind: Kind = "default"
    name: str = ""


class Effective(msgspec.Struct, frozen=True):
    """The settings that hold, where each comes from (all fields), and the file that was read."""

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None


def load(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path = "",
) -> Settings:
    """The settings that hold; arguments and errors as in :func:`resolve`."""
    return resolve(overrides, environ, file).settings


def resolve(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path = "",
) -> Effective:
    """The settings that hold, and where each comes from.

    Args:
        overrides: arguments by field; None is no argument.
        environ: instead of the process's environment. Then only a file that it or ``file`` names is read, none of the
            standard places (``~/.config/coldstart/config.toml``, ``/etc/coldstart/config.toml``).
        file: the file of settings, instead of ``COLDSTART_CONFIG``; ``none``: no file.

    Empty variables count as not set, and blanks around a value do not count.

    Raises:
        ConfigError: a value is malformed or out of range, or a key is unknown; names it and where it came from.
    """
    environment = os.environ if environ is None else environ
    found = files.find(file or environment.get(FILE, "").strip(), standard=environ is None)
    given = [*_of_file(found), *_of_environment(environment), *_of_arguments(overrides or {})]
    known, values, origins = declared(), dict[str, object](), dict.fromkeys(declared(), Origin())
    for each in given:
        if each.key not in known:
            raise _unknown(each)
        values[each.key], origins[each.key] = _converted(known[each.key], each), each.origin
    return Effective(msgspec.convert(values, Settings), origins, found.path if found is not None else None)


def checked(settings: object) -> Settings:
    """``settings`` as they are; raises ConfigError for what is no Settings, and for a value that cannot be."""
    if not isinstance(settings, Settings):
        raise ConfigError(f"settings is a {type(settings).__name__}", advice="give a coldstart.Settings, or None")
    for name, each in declared().items():
        _converted(each, _Given(Origin("argument", name), name, getattr(settings, name), strict=True))
    return settings


def environment(kept: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment for a child, without the settings in it, and in files, but for those named."""
    names = {variable(name) for name in kept}
    given = {name: value for name, value in os.environ.items() if name in names or not name.startswith(PREFIX)}
    return {**given, FILE: files.NONE}


def slips() -> dict[str, str]:
    """Variables of this process that are nearly a setting's, each with the one that was probably meant."""
    return misspelt(os.environ, _known())


def others() -> list[str]:
    """Variables of this process that begin as ours do, and are neither settings nor slips: a plugin's, perhaps."""
    ours = {*map(variable, _known()), *slips(), *of_services(os.environ)}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in ours)


def _known() -> tuple[str, ...]:
    return (*declared(), FILE.removeprefix(PREFIX).lower())


class _Given(NamedTuple):
    """One value as it was given; ``strict``: its type is its own, not to be read out of text."""

    origin: Origin
    key: str
    value: object
    strict: bool = False

    @property
    def named(self) -> str:
        """As the operator knows it."""
        return f"{self.key} in {self.origin.name}" if self.origin.kind == "file" else self.origin.name


def _of_file(found: File | None) -> Iterator[_Given]:
    if found is None:
        return
    for key, value in found.values.items():
        yield _Given(Origin("file", found.where(key)), key, value, strict=True)


def _of_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    for name in declared():
        if text := environment.get(variable(name), "").strip():
            yield _Given(Origin("environment", variable(name)), name, text)


def _of_arguments(overrides: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in overrides.items():
        if value is not None:
            yield _Given(Origin("argument", name), name, value)


def _converted(each: Declared, given: _Given) -> object:
    """The value as the type of the setting, within its range."""
    try:
        converted: object = msgspec.convert(given.value, type=each.type, strict=given.strict)
    except msgspec.ValidationError:
        converted = None
    if converted is None or not each.setting.admits(converted):
        shown = "***" if each.setting.secret else f"{given.value!r:.80}"
        raise ConfigError(f"bad setting: {given.named} is {shown}", advice=f"use {each.wanted}{_default(each)}")
    return converted


def _default(each: Declared) -> str:
    return f" (default {plain(each.default)})" if each.default != "" else ""


def _unknown(given: _Given) -> ConfigError:
    if isinstance(given.value, Mapping):
        advice = "write settings as NAME = VALUE, without tables"
        return ConfigError(f"bad setting: {given.named} is a table", advice=advice)
    meant = nearest(given.key, declared())
    advice = f"did you mean {meant}?" if meant else "'coldstart config' lists all settings"
    return ConfigError(f"bad setting: {given.named} is unknown", advice=advice)
