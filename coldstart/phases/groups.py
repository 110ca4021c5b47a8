"""The joiner's events in groups: what answers what. Pages say per group what is ignored or illegal."""

from __future__ import annotations

from coldstart import events
from coldstart.events import Event

Group = frozenset[type[Event]]

CLAIM_ANSWERS: Group = frozenset(
    {
        events.SourceClaimed,
        events.LoaderElected,
        events.ClaimDeferred,
        events.ClaimFailed,
        events.TruthDisputed,
    }
)
TRUTH_ANSWERS: Group = frozenset({events.TruthReceived, events.TruthMissed})
OFFER_ANSWERS: Group = frozenset({events.OfferReceived, events.OfferRefused, events.SourceProgressed})
CONNECT_ANSWERS: Group = frozenset({events.Connected, events.ConnectFailed})
PULL_REPORTS: Group = frozenset(
    {events.BytesLanded, events.ChunkVerified, events.ChunkCorrupted, events.PullEnded}
)
STATE_ANSWERS: Group = frozenset({events.DigestsStated, events.StatementRefused})
MEMORY_ANSWERS: Group = frozenset({events.MemoryReplaced, events.MemoryRefused})
PUBLISH_ANSWERS: Group = frozenset({events.TruthPublished, events.TruthUnpublished, events.TruthConflicted})
CHECK_ANSWERS: Group = frozenset({events.CheckPassed, events.CheckFailed, events.SourceChanged})
START: Group = frozenset({events.Started})
DRAINED: Group = frozenset({events.Drained})
HOST: Group = frozenset({events.DrainRequested})
AMBIENT: Group = frozenset({events.Expired})
"""May come at any time in any state."""

ALL: Group = (
    CLAIM_ANSWERS
    | TRUTH_ANSWERS
    | OFFER_ANSWERS
    | CONNECT_ANSWERS
    | PULL_REPORTS
    | STATE_ANSWERS
    | MEMORY_ANSWERS
    | PUBLISH_ANSWERS
    | CHECK_ANSWERS
    | START
    | DRAINED
    | HOST
    | AMBIENT
)
"""Every event of the joiner."""
