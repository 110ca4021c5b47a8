"""``coldstart plugins``: what is installed, whether it can be used here, and why not.

Decides only how ``registry.plugins()`` is shown. Loads every plugin, which may take seconds.
"""

from __future__ import annotations

import msgspec

from coldstart import registry
from coldstart.cli.output import emit, say, table
from coldstart.registry import Plugin

COLUMNS = ("kind", "name", "distribution", "version", "usable", "reason")


class Row(msgspec.Struct, frozen=True):
    """One plugin as ``--json`` tells it."""

    kind: str
    name: str
    distribution: str
    version: str
    usable: bool
    reason: str


def run(*, json: bool) -> None:
    """The command; a broken plugin is a row with a reason, never an error."""
    rows = [_row(plugin) for plugin in registry.plugins()]
    if json:
        emit({"plugins": rows})
    elif not rows:
        say("no plugins are installed; reinstall coldstart-weights, which brings tcp and tensors")
    else:
        table("", COLUMNS, [_cells(row) for row in rows])


def _row(plugin: Plugin) -> Row:
    found = plugin.availability
    reason = " ".join(found.reason.split())
    return Row(plugin.kind.removesuffix("s"), plugin.name, plugin.distribution, plugin.version, found.usable, reason)


def _cells(row: Row) -> tuple[str, ...]:
    return row.kind, row.name, row.distribution, row.version, "yes" if row.usable else "no", row.reason
