"""What a host may give to ``join`` and ``lend``: each argument is what it is taken for, or one line says what to give.

Decides by looking at a value alone, before anything is imported, built or opened: what is wrong would otherwise come up
far from the call, or be of no effect and never noticed. It must not know what becomes of the arguments. ``replica.py``
asks, and has the settings checked by ``config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from os import PathLike, fspath
from typing import Literal

from coldstart import config
from coldstart.errors import ConfigError
from coldstart.group import Group
from coldstart.group import checked as checked_group
from coldstart.identity import Rank, is_id
from coldstart.policies import AtOnce, Prefer
from coldstart.ports import Bus, Consensus
from coldstart.report import Progress


def check_path(checkpoint: object) -> None:
    """A checkpoint is named by a path that can be one."""
    if not isinstance(checkpoint, str | PathLike):
        raise ConfigError(f"checkpoint is {checkpoint!r:.80}", advice="give the path of a directory or of a file")
    if fspath(checkpoint) in ("", b"") or "\0" in str(checkpoint):
        raise ConfigError(f"checkpoint is {str(checkpoint)!r:.80}, which is no path", advice="give its directory")


def check_texts(given: Mapping[str, tuple[object, str]]) -> None:
    """Texts by the argument's name, each with an example: torch's own objects are easily given instead, and would be
    another name of the same weights."""
    for name, (value, example) in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r:.80}", advice=f"give its name, such as {example!r}")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(f"{name} is {value!r:.80}, which is not Unicode", advice="use other letters")


def check_worker(name: object) -> None:
    """A worker's name becomes part of keys in the store."""
    if not isinstance(name, str) or not is_id(name):
        what = f"worker name {name!r:.120} is malformed"
        raise ConfigError(what, advice="use letters, digits and . _ : -, at most 96")


def check_helpers(
    bus: Bus | None,
    consensus: Consensus | None,
    prefer: Prefer | None,
    at_once: AtOnce,
    tell: Callable[[Progress], None] | None,
) -> None:
    """The host's own objects have what is asked of them."""
    _check_members("bus", bus, Bus)
    _check_members("consensus", consensus, Consensus)
    _check_plain("prefer", prefer, "give a function of coldstart.policies, or one like them")
    _check_plain("at_once", at_once, "give a function of coldstart.policies, or one like them")
    _check_plain("on_progress", tell, "give a function that takes a coldstart.Progress, or use Replica.progress")


def group_of(asked: Group | Literal["torchrun"] | None, rank: Rank | None) -> Group | None:
    """The group that was asked for; torchrun's where that has started us and the host tells its rank."""
    if isinstance(asked, Group):
        return checked_group(asked)
    if asked is None and rank is None:
        return None
    if asked not in (None, "torchrun"):
        raise ConfigError(f"group is {asked!r:.80}", advice='give a coldstart.Group, or "torchrun"')
    return config.torchrun(required=asked is not None)


def _check_members(name: str, given: object, port: type) -> None:
    """Whether ``given`` has the members of a port; by name, as an object of the host's may pass calls on."""
    if given is None:
        return
    missing = [each for each in vars(port) if not each.startswith("_") and not hasattr(given, each)]
    if missing:
        lacks = f"has no {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
        raise ConfigError(f"{name} is {given!r:.80}, which {lacks}", advice=f"see coldstart.ports.{port.__name__}")


def _check_plain(name: str, given: object, advice: str) -> None:
    """A function that is called without waiting: of an async one nothing would ever run."""
    if given is None:
        return
    if iscoroutinefunction(given) or iscoroutinefunction(type(given).__call__):
        raise ConfigError(f"{name} is {given!r:.80}, which is async", advice=advice)
    if not callable(given):
        raise ConfigError(f"{name} is {given!r:.80}", advice=advice)
