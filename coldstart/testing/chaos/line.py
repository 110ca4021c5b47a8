"""A worker's way to the store, on which single operations are slow, fail, or lose their answers.

Decides what a call sees of its trouble, within the deadline that every bus keeps. It must not know
which trouble comes when (``faults.py``), nor what the operations mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from coldstart.errors import BusError
from coldstart.group import Paper, Tally
from coldstart.ports import Admission, Advert, Bus, Claim, ClaimOutcome, Cursor, Heard, Recorded, Standing, Stated

DEADLINE = 1.5
"""Seconds after which a call has failed; whether it was done is unknown."""

OPERATIONS = (
    "claim", "release", "lead", "advert", "advertise", "withdraw", "strike", "publish_truth", "fetch_truth", "state",
    "stated", "send", "listen", "record",
)  # fmt: skip

AnswerT = TypeVar("AnswerT")


class Trouble(msgspec.Struct, frozen=True):
    """What is wrong with an operation: ``to`` and ``back`` are seconds on the way to the store and back.

    One that ``fails`` is not done; one that is ``lost`` is done, and its answer never comes.
    """

    to: float = 0.0
    back: float = 0.0
    fails: bool = False
    lost: bool = False


class Line:
    """A bus around another; ``troubles`` are by operation, ``usual`` is what there is otherwise."""

    def __init__(self, inner: Bus, usual: Mapping[str, Trouble]) -> None:
        self._inner, self._usual = inner, usual
        self.troubles: dict[str, Trouble] = {}

    @property
    def local_address(self) -> str:
        return self._inner.local_address

    async def claim(self, claim: Claim) -> ClaimOutcome:
        return await self._call("claim", partial(self._inner.claim, claim))

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        return await self._call("release", partial(self._inner.release, shard, source, transfer, letter))

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        return await self._call("lead", partial(self._inner.lead, shard, layout, worker, seconds))

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        return await self._call("admit", partial(self._inner.admit, shard, layout, worker, most, seconds))

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        return await self._call("advertise", partial(self._inner.advertise, shard, advert, seconds, held, ended))

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        await self._call("withdraw", partial(self._inner.withdraw, shard, worker, incarnation))

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        await self._call("strike", partial(self._inner.strike, shard, worker, incarnation, proof, letter))

    async def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        publish = partial(self._inner.publish_truth, shard, layout, root, truth, again=again)
        return await self._call("publish_truth", publish)

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        return await self._call("fetch_truth", partial(self._inner.fetch_truth, shard, layout))

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        return await self._call("state", partial(self._inner.state, shard, layout, digests))

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        return await self._call("stated", partial(self._inner.stated, shard, layout, first))

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        await self._call("send", partial(self._inner.send, shard, inbox, body, nonce))

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        return await self._call("listen", partial(self._inner.listen, shard, inbox, cursor, seconds, fleet=fleet))

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        await self._call("record", partial(self._inner.record, shard, entries))

    async def recorded(self, shard: str, after: str = "0-0", most: int = 256) -> Sequence[Recorded]:
        return await self._inner.recorded(shard, after, most)

    async def journals(self) -> Sequence[str]:
        return await self._inner.journals()

    async def vote(self, group: str, paper: Paper) -> Tally:
        return await self._inner.vote(group, paper)

    async def shards(self) -> Sequence[str]:
        return await self._inner.shards()

    async def advert(self, shard: str, worker: str) -> Advert | None:
        return await self._call("advert", partial(self._inner.advert, shard, worker))

    async def adverts(self, shard: str) -> Sequence[Advert]:
        return await self._inner.adverts(shard)

    async def time(self) -> float:
        return await self._inner.time()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _call(self, operation: str, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        trouble = self.troubles.get(operation) or self._usual.get(operation)
        if trouble is None:
            return await call()
        await anyio.sleep(min(trouble.to, DEADLINE))
        if trouble.fails or trouble.to >= DEADLINE:
            raise BusError(f"{operation} fails here")
        answer = await call()
        left = DEADLINE - trouble.to
        if trouble.lost or trouble.back >= left:
            await anyio.sleep(left)
            raise BusError(f"no answer to {operation}")
        await anyio.sleep(trouble.back)
        return answer
