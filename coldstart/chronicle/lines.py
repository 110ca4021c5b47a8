"""The lines of the journal, and the sheets in which they are written: versioned, bounded, typed.

Decides what of a cold start others may read later, and how it looks in the store. A sheet is what one worker
writes at one time, in JSON, at most 32 KiB. It says of which cold start it is, so that each can be read alone, and
numbers its lines, so that a reader sees which are lost and which came twice.

No time in it is of a wall clock: ``at`` and ``sent`` are in seconds since the cold start began, on its own steady
clock. The store notes when a sheet arrived; with ``sent``, that places all workers of a fleet on one clock
(``reading.py``).

A reader leaves out what it does not know: fields, lines of another kind, sheets of a later version. Lines come from
others, so their sizes are checked, and nothing in them is a path, a key or code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from coldstart.errors import BadMessage
from coldstart.group import Verdict
from coldstart.identity import Id

VERSION = 1
MAX_BYTES = 32 * 1024
MAX_WORDS = 512
BUILD = "build"
"""What failed where there was no skeleton yet; else it is a :class:`coldstart.phases.states.Failure`."""
MAX_ORIGINS = 32
"""Sources that one line names; a cold start has tried a few."""

Words = Annotated[str, msgspec.Meta(max_length=MAX_WORDS)]
Name = Annotated[str, msgspec.Meta(max_length=96)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Attempt = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
TraceId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
Bytes = Annotated[dict[Name, Count], msgspec.Meta(max_length=MAX_ORIGINS)]

RefusalKind = Literal["passed over", "refused", "revoked"]
"""By the store, which had a reason not to send us there; by the source, before the first byte; or by it, after."""


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of all lines. ``attempt`` numbers one try; below zero it is one at a further source, beside the first."""

    at: Seconds


class Entered(Line, frozen=True, kw_only=True, tag="entered"):
    """Another state, or another attempt. ``source`` is who is dealt with, or waited for."""

    phase: Name
    state: Name
    attempt: Attempt = 0
    source: Name = ""
    verified: Count = 0
    chunks: Count = 0


class Pulling(Line, frozen=True, kw_only=True, tag="pulling"):
    """Bytes are asked for, from a source or from ``storage``; ``leading`` for the whole fleet."""

    attempt: Attempt
    source: Name
    transport: Name
    leading: bool = False


class Pulled(Line, frozen=True, kw_only=True, tag="pulled"):
    """No more are asked for there. All of that attempt's pulls together.

    ``seconds`` is how long ago the first bytes were asked for, ``moving`` the time in which bytes came. ``link`` is
    the best that the link has given, in bytes per second, ``origin`` what that was seen in, and ``share`` what was
    reached of it; 0: not known. ``outcome`` is ``ok`` or why it was left.
    """

    attempt: Attempt
    source: Name
    transport: Name
    nbytes: Count
    seconds: Seconds
    outcome: Words
    route: Words = ""
    moving: Seconds = 0.0
    link: Rate = 0.0
    origin: Name = ""
    share: Rate = 0.0
    leading: bool = False


class Refused(Line, frozen=True, kw_only=True, tag="refused"):
    """A source that would not, or not any more; or one that we were not sent to."""

    attempt: Attempt
    source: Name
    how: RefusalKind
    reason: Words


class Stalled(Line, frozen=True, kw_only=True, tag="stalled"):
    """Nothing came for too long, or too little."""

    attempt: Attempt
    source: Name
    reason: Words


class Corrupted(Line, frozen=True, kw_only=True, tag="corrupted"):
    """A chunk came whole, and its digest was wrong."""

    attempt: Attempt
    source: Name
    chunk: Count


class Detoured(Line, frozen=True, kw_only=True, tag="detoured"):
    """Why a path was left."""

    reason: Words


class Decided(Line, frozen=True, kw_only=True, tag="decided"):
    """A verdict of the rank's group: ``by`` which member a no is."""

    question: Name
    yes: bool
    by: Name = ""
    reason: Words = ""

    @property
    def words(self) -> str:
        """As :class:`coldstart.group.Verdict` says it."""
        return str(Verdict(self.question, self.yes, self.by, self.reason))


class Weighed(Line, frozen=True, kw_only=True, tag="weighed"):
    """What waiting for a peer, and what storage was expected to take, in seconds; and what was made of it."""

    waiting: Rate
    storage: Rate
    decision: Name


class Ended(Line, frozen=True, kw_only=True, tag="ended"):
    """The cold start serves, has failed, or is gone: ``phase`` says which.

    ``origins`` are the bytes of weights that are in place, by worker or ``storage``; ``loaded``: the host had filled
    the memory itself. ``failure`` is the kind of a failure, ``reason`` what happened. ``refused`` counts what was
    not believed, by reason, where the fleet has keys.
    """

    phase: Name
    total: Count
    origins: Bytes = {}
    loaded: bool = False
    failure: Name = ""
    reason: Words = ""
    refused: Bytes = {}


class Lent(Line, frozen=True, kw_only=True, tag="lent"):
    """This worker has lent to ``joiner`` (a worker's name and its cold start) for the last so many ``seconds``."""

    joiner: Name
    transport: Name
    seconds: Seconds
    outcome: Words


class Withheld(Line, frozen=True, kw_only=True, tag="withheld"):
    """This worker lends no more for a ``reason``; where that is empty, it lends again."""

    reason: Words = ""


AnyLine = (
    Entered | Pulling | Pulled | Refused | Stalled | Corrupted | Detoured | Decided | Weighed | Ended | Lent | Withheld
)


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of which cold start a sheet is.

    Args:
        start: the worker's incarnation, which never comes again.
        worker, shard, model, host, rank: names.
        trace: id of the trace that it is in; empty: nobody traces.
        group: the ranks that it acts as one with; ``index`` of ``size``.
    """

    start: Id
    worker: Id
    shard: Id
    model: Words = ""
    host: Words = ""
    rank: Words = ""
    trace: TraceId = ""
    group: Name = ""
    index: Count = 0
    size: Count = 1


class Sheet(Header, frozen=True, kw_only=True, omit_defaults=True):
    """``lines`` from number ``first`` on, as they stood when they were ``sent``."""

    version: int = VERSION
    sent: Seconds
    first: Count
    lines: tuple[msgspec.Raw, ...]


_lines = msgspec.json.Decoder(AnyLine)
_sheets = msgspec.json.Decoder(Sheet)


def trace_of(parent: str) -> str:
    """The trace's id in a W3C ``traceparent``; empty where it has none."""
    parts = parent.split("-")
    known = len(parts) >= 4 and re.fullmatch(r"[0-9a-f]{32}", parts[1]) is not None
    return parts[1] if known and parts[1].strip("0") else ""


def words(text: str) -> str:
    """``text`` as a line may have it: bounded, and Unicode, which names of files need not be."""
    return text[:MAX_WORDS].encode(errors="replace").decode()


def pack(header: Header, numbered: Sequence[tuple[int, AnyLine]], sent: float) -> Iterator[bytes]:
    """``numbered`` lines as sheets, none of them over :data:`MAX_BYTES`; numbers without gaps share one."""
    head = {name: getattr(header, name) for name in Header.__struct_fields__}
    packed: list[msgspec.Raw] = []
    first = size = 0

    def sheet() -> bytes:
        return msgspec.json.encode(Sheet(**head, sent=sent, first=first, lines=tuple(packed)))

    room = MAX_BYTES - len(sheet()) - 64
    for number, line in numbered:
        raw = msgspec.json.encode(line)
        if packed and (number != first + len(packed) or size + len(raw) > room):
            yield sheet()
            packed, size = [], 0
        if not packed:
            first = number
        packed.append(msgspec.Raw(raw))
        size += len(raw) + 1
    if packed:
        yield sheet()


def unpack(body: bytes) -> tuple[Sheet, Mapping[int, AnyLine]]:
    """A sheet, and those of its lines that are known here, by number.

    Raises:
        BadMessage: too large, malformed, or of a version that cannot be read here.
    """
    if len(body) > MAX_BYTES:
        raise BadMessage(f"journal entry of {len(body)} bytes is over {MAX_BYTES}")
    try:
        sheet = _sheets.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"journal entry is no sheet: {error}") from error
    if not 1 <= sheet.version <= VERSION:
        raise BadMessage(f"journal entry of version {sheet.version}; this reader knows up to {VERSION}")
    known: dict[int, AnyLine] = {}
    for number, raw in enumerate(sheet.lines, sheet.first):
        try:
            known[number] = _lines.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # of a later version, or nonsense
            continue
    return sheet, known
