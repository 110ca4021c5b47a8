"""Every error coldstart raises, arranged by who must act.

    ColdstartError
    ├── ConfigError            the operator: a setting, an argument or a file is wrong
    │   ├── CheckpointError    ... the checkpoint is missing, truncated or hostile
    │   └── UnknownPlugin      ... no such transport or skeleton; names what is installed
    ├── PluginUnavailable      the operator: a chosen plugin is installed but cannot run here
    ├── SkeletonError          the model's author: a tensor that cannot be carried or rebuilt
    ├── TransportError         nobody: another source is tried
    ├── BadMessage             nobody: a newer or hostile peer; counted and dropped
    │   └── Unproven           ... nobody with the fleet's keys has written it so
    ├── BusError               nobody: coordination is down, storage is used
    ├── IntegrityError         never ask for the same bytes again
    │   └── TruthConflict      the operator: two storage readers disagree about one shard
    ├── ColdStartFailed        the operator: every path was tried and the budget is spent
    └── IllegalTransition      us: a bug in a state machine

An error is one line: what happened, where, and what to do about it. This module knows
nothing of the rest of the package. The story starts in ``layout.py``.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadMessage",
    "BusError",
    "CheckpointError",
    "ColdStartFailed",
    "ColdstartError",
    "ConfigError",
    "IllegalTransition",
    "IntegrityError",
    "PluginUnavailable",
    "SkeletonError",
    "TransportError",
    "TruthConflict",
    "UnknownPlugin",
    "Unproven",
    "in_a_line",
]


class ColdstartError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: one sentence that says what happened and where.
        advice: what the reader can do about it; appended after a semicolon.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.what = what
        self.advice = advice


class ConfigError(ColdstartError):
    """A setting, an argument or a file given by the operator is wrong."""

    exit_code = 2


class CheckpointError(ConfigError):
    """The checkpoint is missing, truncated, hostile or not what its index says."""

    exit_code = 3


class UnknownPlugin(ConfigError):
    """No installed distribution provides the transport or skeleton asked for."""

    exit_code = 4


class PluginUnavailable(ColdstartError):
    """A chosen plugin is installed but broken, too old, or cannot run on this machine."""

    exit_code = 4


class SkeletonError(ColdstartError):
    """The module has state that can be neither carried nor rebuilt; the message names it."""

    exit_code = 5


class TransportError(ColdstartError):
    """Bytes did not arrive.

    Args:
        reason: a short stable word (``refused``, ``closed``, ``revoked``, ...).
    """

    exit_code = 6

    def __init__(self, what: str, *, reason: str, advice: str = "") -> None:
        super().__init__(what, advice=advice)
        self.reason = reason


class BadMessage(ColdstartError):
    """A letter that is not a message of ours: too long, malformed, of an unknown type or version."""


class Unproven(BadMessage):
    """Nobody who has the fleet's keys has written this, to us, just now.

    Args:
        reason: a short stable word for counting (``unsealed``, ``forged``, ``stale``, ...).
    """

    def __init__(self, reason: str, what: str, *, advice: str = "") -> None:
        super().__init__(what, advice=advice)
        self.reason = reason


class BusError(ColdstartError):
    """Coordination failed: refused, silent, out of memory, or speaking nonsense.

    Whether the operation was applied is unknown; every write is idempotent by its nonce.
    """

    exit_code = 7


class IntegrityError(ColdstartError):
    """Bytes in memory are not the published truth."""

    exit_code = 8


class TruthConflict(IntegrityError):
    """Two workers read different bytes from storage for one shard; neither is believed."""


class ColdStartFailed(ColdstartError):
    """No path led to verified weights within the budget."""

    exit_code = 9


class IllegalTransition(ColdstartError):
    """An event arrived in a state that can never see it: a bug in coldstart."""

    exit_code = 70


def in_a_line(error: BaseException) -> str:
    """What somebody else's error says, for one line: its kind and first line, and what that line announces.

    A group of one is what is in it.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    words = ""
    for line in str(error).splitlines():
        words = f"{words} {line.strip()}".strip()
        if words and not words.endswith(":"):
            break
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
