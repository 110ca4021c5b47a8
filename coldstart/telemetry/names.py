"""What spans, events and attributes are called: the vocabulary of every trace.

By OpenTelemetry's rules for names: lower case, dots between namespaces, and no attribute named as a namespace. Sizes
are in bytes, rates in bytes per second. What exists already is used: ``error.type``, ``server.address``.
https://opentelemetry.io/docs/specs/semconv/general/naming/
"""

from __future__ import annotations

ROOT = "coldstart"
"""A cold start, from its beginning to SERVE or its end."""
BUILD = "coldstart.build"
ATTEMPT = "coldstart.attempt"
PULL = "coldstart.pull"
"""Bytes from a source, from the first that is asked for to the last."""
READ = "coldstart.read"
"""The same, from storage."""
LEND = "coldstart.lend"
"""The source's side of a pull, from its offer to the end of the grant."""
WITHHELD = "coldstart.withheld"

WORKER = "coldstart.worker"
START = "coldstart.start"
"""Id of a cold start: what ``coldstart trace`` takes, too."""
SHARD = "coldstart.shard"
MODEL = "coldstart.model"
RANK = "coldstart.rank"
GROUP_NAME = "coldstart.group.name"
GROUP_INDEX = "coldstart.group.index"
GROUP_SIZE = "coldstart.group.size"
PHASE = "coldstart.phase"
STATE = "coldstart.state"
NUMBER = "coldstart.number"
"""Of an attempt; below zero, at a further source beside the first."""
SOURCE = "coldstart.source"
SOURCES = "coldstart.sources"
JOINER = "coldstart.joiner"
LEADING = "coldstart.leading"
TRANSPORT = "coldstart.transport"
ROUTE = "coldstart.route"
FENCE = "coldstart.fence"
GENERATION = "coldstart.generation"
CHUNK = "coldstart.chunk"
OUTCOME = "coldstart.outcome"
PATH = "coldstart.path"
REASON = "coldstart.reason"
HOW = "coldstart.how"
VERDICT = "coldstart.verdict"
DECISION = "coldstart.decision"
RELATION = "coldstart.relation"
"""Of a link: ``relay`` to the cold start of a source that still receives, ``origin`` of one that has received,
``group`` to the other ranks."""
TRANSFER_ID = "coldstart.transfer.id"
TRANSFER_SIZE = "coldstart.transfer.size"
TRANSFER_RATE = "coldstart.transfer.rate"
LINK_RATE = "coldstart.link.rate"
LINK_SHARE = "coldstart.link.share"
LINK_ORIGIN = "coldstart.link.origin"
EXPECTED_WAITING = "coldstart.expected.waiting"
EXPECTED_STORAGE = "coldstart.expected.storage"
ERROR_TYPE = "error.type"


def phase(name: str) -> str:
    """The span of a phase."""
    return f"coldstart.{name.lower()}"
