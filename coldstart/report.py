"""What is said of a cold start: its report, its progress, and the error that a failed one is raised as.

Decides what these hold and mean, and nothing of how they come about: ``recorder.py`` folds them from the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coldstart.chronicle.starts import Path
from coldstart.errors import ColdstartError, ColdStartFailed, IntegrityError, SkeletonError, TruthConflict
from coldstart.estimate import Decision
from coldstart.group import Path as GroupPath
from coldstart.group import Verdict
from coldstart.links.rates import Origin
from coldstart.phases.states import Failed, Failure, Phase


class Attempt(msgspec.Struct, frozen=True):
    """One try at one source (or ``storage``): how long, how much of it was verified, how it ended.

    Numbers below zero are of further sources, which gave some of the stream at the same time.
    """

    number: int
    source: str
    transport: str
    seconds: float
    bytes: int
    outcome: str


class Mark(msgspec.Struct, frozen=True):
    """A phase was entered so many seconds after the cold start began; ``source`` if it has one."""

    phase: str
    at: float
    source: str = ""


class Weighed(msgspec.Struct, frozen=True):
    """What waiting for a peer and reading storage were expected to take, and what was made of it.

    ``at`` is in seconds since the cold start began. ``basis`` are the figures behind it. ``decision`` is ``wait``,
    ``storage``, or ``full`` where storage would have been quicker if not so many had read it already (``ask``: the
    store had not answered yet). ``took`` is what it really took from then until all bytes were here.
    """

    at: float
    waiting: float
    storage: float
    basis: tuple[str, ...]
    decision: Decision
    took: float | None = None


class GroupReport(msgspec.Struct, frozen=True):
    """What a rank's group decided. ``path`` is the same in all ranks that heard the same verdicts, and empty
    where none was heard; ``waited`` is in seconds; ``alone`` says why nothing was agreed, the last time it was not.
    """

    name: str
    size: int
    index: int
    path: GroupPath
    verdicts: tuple[Verdict, ...]
    waited: float
    alone: str = ""


class Report(msgspec.Struct, frozen=True):
    """One cold start. Times in seconds, sizes in bytes of weights (padding left out).

    ``verified`` is true only once SERVE was entered; ``against`` says what the bytes were compared with:
    ``published truth``, or ``own storage read`` where this worker made the truth, or ``own memory, as it was lent``
    where it made it of what the host had loaded. ``path`` is ``loaded`` where the host filled the memory itself.
    ``whole_read`` says why storage can only be read as a whole, by the family's own loader; it is empty where the
    checkpoint has what the module holds, at most in another dtype, and storage gives only what is missing.
    ``probe`` says what came of the builder's numeric probe, and is empty where it has none.
    ``route`` is what ``transport`` says that its bytes really ran over, if it can tell.
    ``gbps`` is 10^9 bytes per second over the TRANSFER phase (or FALLBACK, from storage).
    ``link_gbps`` is the best that the link to the source of most bytes was seen to give, ``link_from`` a ``probe`` (the
    head of the first transfer), or a ``transfer``, ``link_age`` seconds ago; 0 and ``none`` where nothing was measured.
    ``share`` is what the transfer reached of it while its bytes came. ``warnings``: why there are bare tensors where a
    module may have been meant; which of the operator's floors were missed, and by how much. ``estimates``: where
    peers were weighed against storage, each change of mind once.
    ``detours`` says why each path was left; ``skipped`` which workers were passed over and why. ``group`` is
    None for a worker that is in none. ``refused`` counts by reason what was not believed on the bus, or at the port of
    a transport, where the fleet has keys.
    """

    worker: str
    shard: str
    model: str
    state: Phase
    path: Path
    verified: bool
    against: str
    sources: tuple[str, ...]
    transport: str
    route: str
    bytes_total: int
    bytes_peer: int
    bytes_storage: int
    gbps: float
    link_gbps: float
    link_from: Origin
    link_age: float
    share: float
    seconds: float
    phases: dict[str, float]
    attempts: tuple[Attempt, ...]
    timeline: tuple[Mark, ...]
    detours: tuple[str, ...]
    skipped: tuple[str, ...]
    warnings: tuple[str, ...]
    root: str
    error: str | None = None
    group: GroupReport | None = None
    whole_read: str = ""
    probe: str = ""
    estimates: tuple[Weighed, ...] = ()
    refused: Mapping[str, int] = {}


class Progress(msgspec.Struct, frozen=True):
    """How far a cold start is. ``rate`` is in bytes per second over the present phase."""

    phase: Phase
    source: str
    bytes_landed: int
    bytes_verified: int
    bytes_total: int
    rate: float
    seconds: float
    attempts: int
    reason: str = ""


def failure(report: Report, state: Failed) -> ColdstartError:
    """The error that a failed cold start is raised as."""
    what = f"{report.model}: {state.reason}"
    match state.failure:
        case Failure.CONFLICT:
            return TruthConflict(what, advice="compare the checkpoint files of the two workers; neither may be served")
        case Failure.CHECK:
            return SkeletonError(what, advice="the bytes are right; what reads them is not")
        case Failure.MEMORY:
            return IntegrityError(what, advice="start the worker anew")
        case Failure.GROUP:
            return ColdStartFailed(what, advice="start the whole group anew, under another name")
        case Failure.STORAGE:
            return ColdStartFailed(what, advice="; ".join(state.journey.detours[:-1]))
