"""Sizes and lives that every bus keeps, and the names it accepts.

Decides what is too large to send and which text may become part of a key. It knows neither
Redis nor memory, so that the fake and the real bus cannot drift apart here. The rules of choice
stand twice on purpose, in ``ledger.py`` and in ``scripts/``: one contract suite holds both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldstart.errors import BusError
from coldstart.group import MAX_REASON, Paper
from coldstart.identity import MAX_TRUTH_BYTES, is_id
from coldstart.ports import PARTS, Advert, Claim

MAX_LETTER_BYTES = 64 * 1024
"""Letters, hellos and journal entries; a handshake needs about 2 KiB."""

INBOX_LETTERS = 256
"""Older letters of an inbox are trimmed; a source answers within a second or is given up."""

FLEET_ENTRIES = 1000
JOURNAL_ENTRIES = 4096
"""Of a shard; a cold start writes one to three, and its sources one now and then."""

MAX_RECORDED = 1024
"""Journal entries in one answer."""

MAX_SKIPS = 32
"""Passed-over workers that a claim reports."""

SCAN = 64
"""Adverts that a claim looks at before it is content with the best one found so far."""

MAX_PREFERRED = 8
"""Preferred workers that a claim looks at before all others."""

MAX_WAITING = 20_000
"""Claims that stand in one line; later ones are deferred without a place."""

MAX_WAITING_BYTES = 4096
"""A claim with more than so much hello and names gets no place in line, so that a full line fits in 80 MiB."""

LOOKS = 64
"""Claims in line that one operation looks at; those further back have to wait for the next one."""

MAX_GRANTS = 8
"""Claims in line that one operation serves."""

MAX_CROWD = 64
"""A claim may ask for no larger crowd: the store counts it whenever a part could be granted."""

MOVED_SECONDS = 300.0
"""The last grant of a line is remembered so long: longer ``share_seconds`` count from a claim's arrival alone."""

MAX_CHUNKS = 65_536
"""Chunks of which digests can be stated: 1.1 MiB."""

DIGEST_BYTES = 16

MAX_CONFLICTING_ROOTS = 16

KEEP_SECONDS = 7 * 24 * 3600.0
"""Life of truths and of a shard's bookkeeping, renewed by every advert."""

INBOX_SECONDS = 3600.0
"""Life of an inbox that nobody listens to; a listener renews it."""

NONCE_SECONDS = 120.0
"""How long a repeated letter is recognised."""

SHARD_SECONDS = 3600.0
"""What ``shards()`` calls lately; also the life of a strike, renewed by every advert that it still concerns."""

GROUP_SECONDS = 3600.0
"""Life of a group's record after the last paper of any of its ranks."""

MAX_ANSWERS = 16

MAX_READERS = 10_000
"""A joiner that would share storage with more readers is not admitted."""

_TRACE = re.compile(r"\A[0-9a-f-]{0,64}\Z")
_PLACE = re.compile(r"\A[0-9]{1,19}-[0-9]{1,19}\Z")

MAX_RATE = 10**15
"""Bytes per second that an advert may claim."""

MAX_TEXT = 256
"""Characters of a host, a device or a rack in an advert."""

MAX_TRANSPORTS = 16
"""Names of transports in an advert, as in a hello."""

MAX_SEAL = 8192
"""Characters of an advert's seal: it holds the advert again."""


def check_ids(**names: str) -> None:
    """Refuse names that could leave their place in a key."""
    for role, text in names.items():
        if not is_id(text):
            raise BusError(f"{role} {text[:40]!r} cannot name anything on the bus", advice="use [A-Za-z0-9_.:-]{1,96}")


def check_claim(claim: Claim) -> None:
    """Refuse a claim that names what cannot be, or whose hello nobody would read."""
    check_ids(shard=claim.shard, layout=claim.layout, worker=claim.worker, transfer=claim.transfer)
    if claim.inbox:
        check_ids(inbox=claim.inbox)
    if not (-1 <= claim.part < PARTS and 0 <= claim.crowd <= MAX_CROWD):
        raise BusError(
            f"a claim of part {claim.part} in a crowd of {claim.crowd} cannot be",
            advice=f"ask for -1 or a part below {PARTS}, in a crowd of 0 to {MAX_CROWD}",
        )
    check_letter(claim.hello, "hello")


def is_sound(advert: Advert) -> bool:
    """Whether an advert from the store names what can be, in sizes that can be."""
    ids = (advert.worker, advert.inbox, advert.incarnation, advert.layout)
    texts = (advert.host, advert.device, advert.rack, *advert.transports)
    return (
        all(map(is_id, ids))
        and all(len(text) <= MAX_TEXT for text in texts)
        and len(advert.transports) <= MAX_TRANSPORTS
        and len(advert.parts) <= PARTS
        and len(advert.seal) <= MAX_SEAL
        and 0 <= advert.rate <= MAX_RATE
    )


def check_advert(shard: str, advert: Advert) -> None:
    """Refuse an advert that names what cannot be."""
    check_ids(shard=shard, layout=advert.layout, worker=advert.worker, inbox=advert.inbox)
    check_ids(incarnation=advert.incarnation)
    if not all(0 <= part < PARTS for part in advert.parts):
        raise BusError(f"an advert of the parts {advert.parts} cannot be", advice=f"there are 0 to {PARTS - 1}")
    if not 0 <= advert.rate <= MAX_RATE:
        raise BusError(f"an advert of {advert.rate} bytes per second cannot be", advice=f"use 0 to {MAX_RATE}")
    if not is_sound(advert):
        raise BusError(
            f"the advert of {advert.worker} has a name that is too long, or too many",
            advice=f"use {MAX_TEXT} characters and {MAX_TRANSPORTS} transports at most",
        )


def check_letter(body: bytes, what: str) -> None:
    """Refuse a message that receivers would drop."""
    if len(body) > MAX_LETTER_BYTES:
        raise BusError(
            f"{what} of {len(body)} bytes is over the limit of {MAX_LETTER_BYTES}",
            advice="large values travel as truth records, not as letters",
        )


def check_place(after: str, most: int) -> None:
    """Refuse a place in the journal that is none."""
    if not _PLACE.match(after):
        raise BusError(f"{after[:40]!r} is no place in a journal", advice="use the id of an entry, or 0-0")
    if not 1 <= most <= MAX_RECORDED:
        raise BusError(f"{most} journal entries cannot be asked for", advice=f"use 1 to {MAX_RECORDED}")


def check_truth(truth: bytes) -> None:
    """Refuse a truth record that receivers would refuse."""
    if len(truth) > MAX_TRUTH_BYTES:
        raise BusError(f"truth record of {len(truth)} bytes is over the limit", advice="use larger chunks")


def check_digests(digests: Mapping[int, bytes]) -> None:
    """Refuse digests of chunks that cannot be, and what is no digest."""
    for chunk, digest in digests.items():
        if not 0 <= chunk < MAX_CHUNKS or len(digest) != DIGEST_BYTES:
            raise BusError(
                f"chunk {chunk} with a digest of {len(digest)} bytes cannot be stated",
                advice=f"state {DIGEST_BYTES} bytes for chunks 0 to {MAX_CHUNKS - 1}; use larger chunks",
            )


def queue_seconds(claim: Claim) -> float:
    """How long a claim may stand in line: as long as it asks for, unless it is too large to be kept."""
    names = (claim.transfer, claim.worker, claim.inbox, *claim.exclude, *claim.transports, *claim.prefer)
    size = len(claim.hello) + sum(map(len, names))
    return claim.queue_seconds if size <= MAX_WAITING_BYTES else 0.0


def check_paper(group: str, paper: Paper) -> None:
    """Refuse a vote that could leave its place in a key or fill the record."""
    check_ids(group=group, member=paper.member, incarnation=paper.incarnation)
    if len(paper.answers) + len(paper.heard) > MAX_ANSWERS:
        raise BusError(f"a paper with more than {MAX_ANSWERS} answers and verdicts is over the limit")
    if not _TRACE.match(paper.trace):
        raise BusError(f"{paper.trace[:40]!r} is no traceparent")
    said = [(answer.question, answer.reason) for answer in paper.answers]
    for question, reason in (*said, *((verdict.question, verdict.reason) for verdict in paper.heard)):
        check_ids(question=question)
        if len(reason) > MAX_REASON:
            raise BusError(f"a reason of {len(reason)} characters is over the limit of {MAX_REASON}")
    for verdict in paper.heard:
        if verdict.by:
            check_ids(member=verdict.by)
