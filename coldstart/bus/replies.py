"""Turns what the scripts answer into the values of the Bus port.

Decides what counts as nonsense: a store, or somebody who writes to it, may send anything, so every
field is decoded into its type or refused with one BusError. It knows the shape of the replies in
``scripts/`` but neither connections nor keys. The caller is ``redis.py``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import msgspec

from coldstart.bus.limits import DIGEST_BYTES, MAX_LETTER_BYTES, is_sound
from coldstart.errors import BusError
from coldstart.identity import UNREADABLE, is_id
from coldstart.ports import (
    PARTS,
    Advert,
    ClaimOutcome,
    Conflicted,
    Deferred,
    Elected,
    Granted,
    Letter,
    Queue,
    Recorded,
    Skip,
    Stated,
)

_Kind = Literal["granted", "elected", "deferred", "conflicted"]


class _Refusal(msgspec.Struct, array_like=True):
    worker: str
    reason: str
    layout: str = ""


class _Grant(msgspec.Struct, array_like=True):
    epoch: str
    root: str
    source: str
    used: int
    fence: int
    part: int = -1


class Fields:
    """Reads one flat reply, field by field."""

    def __init__(self, reply: object, operation: str) -> None:
        self._operation = operation
        self._next = 0
        if not isinstance(reply, list):
            raise self.nonsense(f"a {type(reply).__name__}")
        self._values: list[object] = reply

    def __bool__(self) -> bool:
        return self._next < len(self._values)

    def text(self) -> str:
        value = self.blob()
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self.nonsense("text that is not UTF-8") from None

    def blob(self) -> bytes:
        if not self:
            raise self.nonsense("too few fields")
        value = self._values[self._next]
        self._next += 1
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | str):
            return str(value).encode()
        raise self.nonsense(f"a {type(value).__name__}")

    def number(self) -> int:
        try:
            return int(self.blob())
        except ValueError:
            raise self.nonsense("no number where one belongs") from None

    def part(self) -> int:
        """The part that was granted; an answer of an older version has none, which means everything."""
        part = self.number() if self else -1
        if not -1 <= part < PARTS:
            raise self.nonsense(f"the part {part}")
        return part

    def queue(self) -> Queue | None:
        """What is known of a line; an answer of an older version says nothing of it."""
        if not self:
            return None
        ahead, slots, used, rate, readers = (self.number() for _ in range(5))
        return Queue(ahead, slots, used, rate, readers, self.names())

    def advert(self) -> Advert:
        """An advert, the number of its slots in use, and whether it is struck."""
        try:
            advert = msgspec.json.decode(self.blob(), type=Advert)
        except UNREADABLE:
            raise self.nonsense("a malformed advert") from None
        if not is_sound(advert):
            raise self.nonsense("an advert that cannot be")
        return msgspec.structs.replace(advert, used=self.number(), struck=bool(self.number()))

    def skips(self) -> tuple[Skip, ...]:
        try:
            found = msgspec.json.decode(self.blob(), type=list[_Refusal])
        except UNREADABLE:
            raise self.nonsense("malformed reasons") from None
        return tuple(Skip(each.worker, each.reason, each.layout) for each in found)

    def names(self) -> tuple[str, ...]:
        try:
            return msgspec.json.decode(self.blob(), type=tuple[str, ...])
        except UNREADABLE:
            raise self.nonsense("malformed names") from None

    def texts(self) -> tuple[str, ...]:
        """All fields that are left."""
        return tuple(self.text() for _ in range(self._next, len(self._values)))

    def nonsense(self, found: str) -> BusError:
        return BusError(
            f"the store answered {self._operation} with {found}",
            advice="check that only coldstart writes under this namespace",
        )


class ShardFields(Fields):
    """The reply of a script about one shard: these begin with the store's epoch."""

    def __init__(self, reply: object, operation: str) -> None:
        super().__init__(reply, operation)
        self.epoch = self.text()


def adverts(fields: ShardFields) -> tuple[Advert, ...]:
    """The answer to a survey of a shard; a malformed advert is its writer's loss, not ours."""
    found: list[Advert] = []
    while fields:
        json, used, struck = fields.blob(), fields.number(), bool(fields.number())
        with suppress(*UNREADABLE):
            advert = msgspec.json.decode(json, type=Advert)
            if is_sound(advert):
                found.append(msgspec.structs.replace(advert, used=used, struck=struck))
    return tuple(sorted(found, key=lambda advert: advert.worker))


def claim_outcome(fields: ShardFields) -> ClaimOutcome:
    """The answer to a claim."""
    epoch = fields.epoch
    match fields.text():
        case "conflicted":
            return Conflicted(roots=fields.names(), epoch=epoch)
        case "granted":
            root, skipped = fields.text(), fields.skips()
            source, fence = fields.advert(), fields.number()
            return Granted(source, fence, root, epoch, skipped, fields.part())
        case "elected":
            return Elected(root=fields.text(), epoch=epoch, skipped=fields.skips())
        case "deferred":
            root, skipped = fields.text(), fields.skips()
            return Deferred(leader=fields.text(), root=root, epoch=epoch, skipped=skipped, queue=fields.queue())
        case kind:
            raise fields.nonsense(f"the outcome {kind[:20]!r}")


def stated(fields: ShardFields, first: int) -> Stated:
    """The answer to a question for stated digests, of the chunks from ``first`` on."""
    root, blob, each = fields.text(), fields.blob(), 1 + DIGEST_BYTES
    return Stated(
        root,
        {
            first + at // each: blob[at + 1 : at + each]
            for at in range(0, len(blob) - DIGEST_BYTES, each)
            if blob[at] == 1
        },
    )


def recorded(fields: ShardFields) -> tuple[Recorded, ...]:
    """The answer to a question for journal entries; the first part of an id is the store's clock, in milliseconds."""
    found: list[Recorded] = []
    while fields:
        identifier, body = fields.text(), fields.blob()
        milliseconds = identifier.partition("-")[0]
        if not milliseconds.isdecimal() or len(milliseconds) > 15:
            raise fields.nonsense("a malformed id")
        found.append(Recorded(identifier, int(milliseconds) / 1000, body))
    return tuple(found)


class Mail(msgspec.Struct):
    """What one read brought: usable letters, the last id of each stream, and what was dropped."""

    letters: tuple[Letter, ...] = ()
    inbox: str = ""
    fleet: str = ""
    dropped: int = 0


def mail(reply: object, inbox: bytes, fleet: bytes) -> Mail:
    """The answer to a read of two streams; unusable entries are passed over, never an error."""
    if reply is None:
        return Mail()
    if not isinstance(reply, dict):
        raise Fields([], "listen").nonsense(f"a {type(reply).__name__}")
    result = Mail()
    letters: list[Letter] = []
    for name, entries in reply.items():
        for identifier, pairs in _entries(entries):
            if name == fleet:
                result.fleet = identifier
            elif name == inbox:
                result.inbox = identifier
                letter = _letter(pairs)
                if letter is None:
                    result.dropped += 1
                else:
                    letters.append(letter)
    result.letters = tuple(letters)
    return result


def _entries(entries: object) -> list[tuple[str, list[bytes]]]:
    try:
        found = msgspec.convert(entries, list[tuple[bytes, list[bytes]]])
        return [(identifier.decode("ascii"), pairs) for identifier, pairs in found]
    except (msgspec.ValidationError, UnicodeDecodeError):
        raise Fields([], "listen").nonsense("a malformed stream entry") from None


def _letter(pairs: list[bytes]) -> Letter | None:
    fields = dict(zip(pairs[::2], pairs[1::2], strict=False))
    body = fields.get(b"body")
    fence = fields.get(b"fence", b"0")
    if body is None or len(body) > MAX_LETTER_BYTES or not fence.isdigit() or len(fence) > 18:
        return None
    told = fields.get(b"granted")
    if told is None:
        return Letter(body=body, fence=int(fence))
    try:
        grant = msgspec.json.decode(told, type=_Grant)
        if not -1 <= grant.part < PARTS:
            return None
        source = msgspec.structs.replace(msgspec.json.decode(grant.source, type=Advert), used=grant.used)
        granted = Granted(source, grant.fence, grant.root, grant.epoch, part=grant.part)
        transfer = fields.get(b"transfer", b"").decode()
        return Letter(body, transfer=transfer, granted=granted) if is_id(transfer) and is_sound(source) else None
    except UNREADABLE:
        return None
