"""The bus on Redis or Valkey: each operation of the port as one script.

Decides which words a script is given and what is checked before. What a call means is decided inside the
store by ``scripts/``; what its answer means by ``replies.py``; how it gets there by ``calls.py`` and, for
what waits, ``ear.py``. It must not know phases or transports, nor redis-py (``connections.py``).

An error means unknown, never not done, and the caller repeats the same nonce.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Self

import anyio
import msgspec

from coldstart.bus import polls, replies, scripts
from coldstart.bus.address import Tls, parse
from coldstart.bus.calls import Calls
from coldstart.bus.connections import Routes, Server, Word
from coldstart.bus.description import Description, described
from coldstart.bus.ear import Ear, Streams
from coldstart.bus.limits import (
    KEEP_SECONDS,
    MAX_READERS,
    SHARD_SECONDS,
    check_advert,
    check_claim,
    check_digests,
    check_ids,
    check_letter,
    check_paper,
    check_place,
    check_truth,
    queue_seconds,
)
from coldstart.errors import BusError, ConfigError
from coldstart.group import Paper, Tally
from coldstart.ports import Admission, Advert, Claim, ClaimOutcome, Cursor, Heard, Recorded, Standing, Stated

CALL_SECONDS = 2.0
"""Deadline of one call, connecting included: the whole budget that coordination may cost."""

INDEX_SECONDS = 60.0
"""In a cluster, a shard's place in an index is renewed so often: it is a call of its own there."""

_NAMESPACE = re.compile(r"\A[A-Za-z0-9_.:-]{1,64}\Z")


class RedisBus:
    """One worker's way to the store. Open it with :meth:`open`, close it with :meth:`aclose`.

    ``dropped`` counts letters that were oversized or malformed and therefore not delivered.
    """

    def __init__(self, server: Server, namespace: str, local_address: str, seconds: float) -> None:
        self._namespace = namespace
        self._local_address = local_address
        self._routes = Routes()
        self._calls = Calls(server, self._routes, seconds)
        self._ear = Ear(server, self._routes, self._calls, seconds)
        self._listening = False
        self._renewed: dict[tuple[str, str], float] = {}

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str = "cs",
        *,
        seconds: float = CALL_SECONDS,
        probe: bool = True,
        tls: Tls | None = None,
    ) -> Self:
        """A bus on the server at ``url`` (``redis://``, ``rediss://`` or ``unix://``).

        Args:
            namespace: first part of every key.
            seconds: deadline of one call.
            probe: connect now; false defers every failure but a malformed URL to the first call.
            tls: files for ``rediss://``.

        Raises:
            ConfigError: the URL or the namespace is malformed.
            BusError: the server refuses, is silent, or does not accept the credentials.
        """
        if not _NAMESPACE.match(namespace):
            raise ConfigError(f"namespace {namespace[:70]!r} is malformed", advice="use [A-Za-z0-9_.:-]{1,64}")
        address = parse(url, tls)
        server = Server(address)
        with anyio.move_on_after(seconds):
            bus = cls(server, namespace, await address.local(), seconds)
            if probe:
                try:
                    await bus.shards()
                except BusError:
                    await bus.aclose()
                    raise
            return bus
        raise server.late("connecting", seconds)

    @property
    def local_address(self) -> str:
        return self._local_address

    async def warm(self) -> None:
        """Connect now what the first handshake needs, so that it need not wait for it.

        Raises:
            BusError: the server refuses, is silent, or does not accept the credentials.
        """
        await self._ear.warm()
        await self._calls.warm(2)

    @property
    def dropped(self) -> int:
        return self._ear.dropped

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_claim(claim)
        words = msgspec.json.encode(_claim_words(claim))
        return replies.claim_outcome(
            await self._on_shard(scripts.CLAIM, claim.shard, words, claim.transfer, claim.hello)
        )

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        check_ids(shard=shard, source=source or "any", transfer=transfer)
        check_letter(letter, "letter")
        fields = await self._on_shard(scripts.RELEASE, shard, source, transfer, letter)
        return fields.advert() if fields else None

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        check_ids(shard=shard, layout=layout, worker=worker)
        fields = await self._on_shard(scripts.LEAD, shard, layout, worker, _milliseconds(seconds))
        return fields.number() == 1

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        check_ids(shard=shard, layout=layout, worker=worker)
        most = min(most, MAX_READERS)
        fields = await self._on_shard(scripts.ADMIT, shard, layout, worker, most, _milliseconds(seconds))
        return Admission(bool(fields.number()), fields.number())

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        check_advert(shard, advert)
        for transfer in (*held, *ended):
            check_ids(transfer=transfer)
        fields = await self._indexed(
            scripts.ADVERTISE,
            self._index,
            SHARD_SECONDS,
            shard,
            advert.worker,
            msgspec.json.encode(msgspec.structs.replace(advert, used=0, struck=False, unproven="")),
            _milliseconds(seconds),
            advert.layout,
            advert.incarnation,
            advert.proof,
            len(held),
            *held,
            *ended,
        )
        return Standing(fields.epoch, fields.text(), bool(fields.number()))

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        await self._on_shard(scripts.WITHDRAW, shard, worker, incarnation)

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        check_letter(letter, "letter")
        await self._on_shard(scripts.STRIKE, shard, worker, incarnation, proof, letter)

    async def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        check_ids(shard=shard, layout=layout, root=root)
        check_truth(truth)
        return (await self._on_shard(scripts.PUBLISH_TRUTH, shard, layout, root, truth, int(again))).texts()

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """The published truth; None before there is one, and in a conflict, where none is believed."""
        check_ids(shard=shard, layout=layout)
        fields = await self._on_shard(scripts.FETCH_TRUTH, shard, layout)
        return fields.blob() if fields else None

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        check_ids(shard=shard, layout=layout)
        check_digests(digests)
        words: list[Word] = [layout]
        for chunk, digest in digests.items():
            words += chunk, digest
        return (await self._on_shard(scripts.STATE, shard, *words)).number() == 1

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        check_ids(shard=shard, layout=layout)
        first = max(first, 0)
        return replies.stated(await self._on_shard(scripts.STATED, shard, layout, first), first)

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        check_ids(shard=shard, inbox=inbox, nonce=nonce)
        check_letter(body, "letter")
        await self._on_shard(scripts.SEND, shard, inbox, nonce, body)

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        check_ids(shard=shard, inbox=inbox)
        if self._listening:
            raise BusError("two listeners on one bus object", advice="open a bus per listener")
        self._listening = True
        try:
            life, prefix, _ = self._shard_words(shard)
            return await self._ear.hear(Streams(life, prefix, inbox, fleet), cursor, seconds)
        finally:
            self._listening = False

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        check_ids(shard=shard)
        for entry in entries:
            check_letter(entry, "journal entry")
        await self._indexed(scripts.RECORD, self._journals, KEEP_SECONDS, shard, *entries)

    async def recorded(self, shard: str, after: str = "0-0", most: int = 256) -> Sequence[Recorded]:
        check_ids(shard=shard)
        check_place(after, most)
        return replies.recorded(await self._on_shard(scripts.RECORDED, shard, after, most))

    async def journals(self) -> Sequence[str]:
        return await self._in_index(self._journals, KEEP_SECONDS)

    async def vote(self, group: str, paper: Paper) -> Tally:
        check_paper(group, paper)
        prefix = f"{self._namespace}:{{{group}}}:"
        return polls.tally(await self._calls.run(polls.VOTE, f"{prefix}verdicts", *polls.words(prefix, paper)))

    async def shards(self) -> Sequence[str]:
        return await self._in_index(self._index, SHARD_SECONDS)

    async def advert(self, shard: str, worker: str) -> Advert | None:
        check_ids(shard=shard, worker=worker)
        fields = await self._on_shard(scripts.ADVERT, shard, worker)
        return fields.advert() if fields else None

    async def adverts(self, shard: str) -> Sequence[Advert]:
        check_ids(shard=shard)
        return replies.adverts(await self._on_shard(scripts.ADVERTS, shard))

    async def time(self) -> float:
        fields = replies.Fields(await self._calls.run(scripts.TIME, self._index), "time")
        return fields.number() + fields.number() / 1e6

    async def aclose(self) -> None:
        await self._calls.aclose()
        await self._ear.aclose()

    # ---------------------------------------------------------------------------------- calling

    @property
    def _index(self) -> str:
        return f"{self._namespace}:shards"

    @property
    def _journals(self) -> str:
        return f"{self._namespace}:journals"

    def _shard_words(self, shard: str) -> tuple[str, str, str]:
        """What every script about a shard begins with; the random word names a new life of the store."""
        prefix = f"{self._namespace}:{{{shard}}}:"
        return f"{prefix}life", prefix, secrets.token_hex(8)

    async def _on_shard(self, script: scripts.Script, shard: str, *words: Word) -> replies.ShardFields:
        return replies.ShardFields(await self._calls.run(script, *self._shard_words(shard), *words), script.name)

    async def _indexed(
        self, script: scripts.Script, index: str, seconds: float, shard: str, *words: Word
    ) -> replies.ShardFields:
        """Run a script, and keep the shard in an index for so long: in one go, where one server takes both."""
        key, *begin = self._shard_words(shard)
        life, now = _milliseconds(seconds), anyio.current_time()
        if not self._routes.clustered:
            reply = await self._calls.run_both(
                (script, key, (*begin, *words)), (scripts.INDEX, index, (shard, life))
            )
        else:
            reply = await self._calls.run(script, key, *begin, *words)
            if now >= self._renewed.get((index, shard), -math.inf) + INDEX_SECONDS:
                await self._calls.run(scripts.INDEX, index, shard, life)
                self._renewed[index, shard] = now
        return replies.ShardFields(reply, script.name)

    async def _in_index(self, index: str, seconds: float) -> tuple[str, ...]:
        reply = await self._calls.run(scripts.SHARDS, index, _milliseconds(seconds))
        return tuple(sorted(replies.Fields(reply, "shards").texts()))

    async def describe(self) -> Description:
        """What the server says about itself: product, version, memory and clock; for ``coldstart doctor``."""
        async with self._calls.link("describe") as link:
            return described(await link.call("INFO"), await link.call("TIME"))


def _milliseconds(seconds: float) -> int:
    return max(0, math.ceil(seconds * 1000))


def _claim_words(claim: Claim) -> dict[str, object]:
    """A claim as the scripts take it: times in milliseconds, and none in line for what is too large for it."""
    return {
        "layout": claim.layout,
        "worker": claim.worker,
        "exclude": claim.exclude,
        "transports": claim.transports,
        "slot_ms": _milliseconds(claim.slot_seconds),
        "lead_ms": _milliseconds(claim.lead_seconds),
        "luck": claim.luck,
        "have": claim.have,
        "prefer": claim.prefer,
        "host": claim.host,
        "rack": claim.rack,
        "inbox": claim.inbox,
        "queue_ms": _milliseconds(queue_seconds(claim)),
        "share_ms": _milliseconds(claim.share_seconds),
        "part": claim.part,
        "crowd": claim.crowd,
    }
