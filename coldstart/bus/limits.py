"""Sizes and lives that every bus keeps, and the names it accepts.

Decides what is too large to send and which text may become part of a key. It knows neither
Redis nor memory, so that the fake and the real bus cannot drift apart here. The rules of choice
stand twice on purpose, in ``ledger.py`` and in ``scripts.py``: one contract suite holds both.
"""

from __future__ import annotations

from coldstart.errors import BusError
from coldstart.group import MAX_REASON, Paper
from coldstart.identity import MAX_TRUTH_BYTES, is_id

MAX_LETTER_BYTES = 64 * 1024
"""Letters, hellos and journal entries; a handshake needs about 2 KiB."""

INBOX_LETTERS = 256
"""Older letters of an inbox are trimmed; a source answers within a second or is given up."""

FLEET_ENTRIES = 1000
JOURNAL_ENTRIES = 4096

MAX_SKIPS = 32
"""Passed-over workers that a claim reports."""

SCAN = 64
"""Adverts that a claim looks at before it is content with the best one found so far."""

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


def check_ids(**names: str) -> None:
    """Refuse names that could leave their place in a key."""
    for role, text in names.items():
        if not is_id(text):
            raise BusError(f"{role} {text[:40]!r} cannot name anything on the bus", advice="use [A-Za-z0-9_.:-]{1,96}")


def check_letter(body: bytes, what: str) -> None:
    """Refuse a message that receivers would drop."""
    if len(body) > MAX_LETTER_BYTES:
        raise BusError(
            f"{what} of {len(body)} bytes is over the limit of {MAX_LETTER_BYTES}",
            advice="large values travel as truth records, not as letters",
        )


def check_truth(truth: bytes) -> None:
    """Refuse a truth record that receivers would refuse."""
    if len(truth) > MAX_TRUTH_BYTES:
        raise BusError(f"truth record of {len(truth)} bytes is over the limit", advice="use larger chunks")


def check_paper(group: str, paper: Paper) -> None:
    """Refuse a vote that could leave its place in a key or fill the record."""
    check_ids(group=group, member=paper.member, incarnation=paper.incarnation)
    if len(paper.answers) + len(paper.heard) > MAX_ANSWERS:
        raise BusError(f"a paper with more than {MAX_ANSWERS} answers and verdicts is over the limit")
    said = [(answer.question, answer.reason) for answer in paper.answers]
    for question, reason in (*said, *((verdict.question, verdict.reason) for verdict in paper.heard)):
        check_ids(question=question)
        if len(reason) > MAX_REASON:
            raise BusError(f"a reason of {len(reason)} characters is over the limit of {MAX_REASON}")
    for verdict in paper.heard:
        if verdict.by:
            check_ids(member=verdict.by)
