"""coldstart: a new inference worker gets its weights from a peer's memory, verified before it serves.

    async with coldstart.join("/models/llama", redis="redis://store:6379") as replica:
        serve(replica.module)

Importing this package imports neither torch nor redis nor any plugin; each name below is loaded
when it is first used.

To read the code, follow one cold start through the files: ``layout`` and ``identity`` (what is
moved, and what it is called), ``events`` and ``effects`` (what can happen, what can be asked for),
``phases`` from ``states`` to ``serve`` and ``modes`` (the pages of the two machines), ``machine``
and ``source`` (their tables), ``ports`` (the edges), ``runner`` (drives a machine), ``joining`` and
``lending`` (perform what the machines ask for; how bytes move is in ``moving`` and ``landing``, what
goes over the bus in ``claiming``, ``truths`` and ``voting``, how fast it came in ``links``, whether
storage is quicker in ``estimate``, what a source sees of its own weights in ``inspecting``, how an
operator has it leave in ``departing``, whose a name is in ``namesakes``, what is believed where a
fleet has keys in ``seals`` and ``membership``, on connections in ``proofs`` and ``admission``),
``node`` (one worker's parts, connected), ``wiring``, ``session`` and ``replica`` (adapters, life
cycle, API). What others read of it later: ``chronicle`` and ``journal``, ``telemetry``, ``metrics``,
``recorder``, ``report``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coldstart.config.settings import Settings as Settings
    from coldstart.errors import BusError as BusError
    from coldstart.errors import CheckpointError as CheckpointError
    from coldstart.errors import ColdstartError as ColdstartError
    from coldstart.errors import ColdStartFailed as ColdStartFailed
    from coldstart.errors import ConfigError as ConfigError
    from coldstart.errors import IntegrityError as IntegrityError
    from coldstart.errors import PluginUnavailable as PluginUnavailable
    from coldstart.errors import SkeletonError as SkeletonError
    from coldstart.errors import TruthConflict as TruthConflict
    from coldstart.errors import UnknownPlugin as UnknownPlugin
    from coldstart.group import Group as Group
    from coldstart.identity import Rank as Rank
    from coldstart.phases.states import Phase as Phase
    from coldstart.replica import Replica as Replica
    from coldstart.replica import join as join
    from coldstart.replica import lend as lend
    from coldstart.report import Attempt as Attempt
    from coldstart.report import Progress as Progress
    from coldstart.report import Report as Report

__version__ = "0.1.0"

_HOME = {
    "Attempt": "report",
    "BusError": "errors",
    "CheckpointError": "errors",
    "ColdStartFailed": "errors",
    "ColdstartError": "errors",
    "ConfigError": "errors",
    "Group": "group",
    "IntegrityError": "errors",
    "Phase": "phases.states",
    "PluginUnavailable": "errors",
    "Progress": "report",
    "Rank": "identity",
    "Replica": "replica",
    "Report": "report",
    "Settings": "config.settings",
    "SkeletonError": "errors",
    "TruthConflict": "errors",
    "UnknownPlugin": "errors",
    "join": "replica",
    "lend": "replica",
}

__all__ = [
    "Attempt",
    "BusError",
    "CheckpointError",
    "ColdStartFailed",
    "ColdstartError",
    "ConfigError",
    "Group",
    "IntegrityError",
    "Phase",
    "PluginUnavailable",
    "Progress",
    "Rank",
    "Replica",
    "Report",
    "Settings",
    "SkeletonError",
    "TruthConflict",
    "UnknownPlugin",
    "__version__",
    "join",
    "lend",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'coldstart' has no attribute {name!r}")
    return getattr(import_module(f"coldstart.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
