"""Which group a worker of the command line is a rank of."""

from __future__ import annotations

from coldstart import config
from coldstart.errors import ConfigError
from coldstart.group import Group, checked


def group_of(name: str | None, size: int, index: int, *, torchrun: bool) -> Group | None:
    """The group that the options name, or None.

    Raises:
        ConfigError: they contradict each other, or torchrun is not there.
    """
    if torchrun:
        if name is not None or (size, index) != (1, 0):
            raise ConfigError("--torchrun and --group name two groups", advice="use one of them")
        return config.torchrun(required=True)
    if name is None:
        if (size, index) != (1, 0):
            raise ConfigError("a rank without a group", advice="name it with --group, anew at each start")
        return None
    return checked(Group(name, size, index))
