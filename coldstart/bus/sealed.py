"""A bus of workers that share keys: everything written is sealed, and nothing is believed that is not.

Decides which operation seals what, and what a reader is told instead of something unproven. It is a bus around
another one, so that whoever uses it need not know of keys. Seals are made in ``notary.py``, proofs of truths in
``vouching.py``, those of votes in ``pledges.py``.

    letters, hellos     sealed, opened once, within their time; others are dropped and counted
    adverts             carry a sealed copy, which is what readers are told; else ``unproven`` says why not
    truths              their proof is stated beside them, under the writer's key; without one there is no truth,
                        nor a conflict that would stop anybody
    stated digests      the same, for each chunk
    verdicts            a yes counts only with a proof of each rank's own yes
    slots, leads, fences, strikes, the index, the journal    as they are: they cost time, never wrong weights
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import assert_never

import msgspec

from coldstart.bus.notary import Notary
from coldstart.bus.pledges import Pledges
from coldstart.bus.vouching import Vouching
from coldstart.errors import BusError, IntegrityError, Unproven
from coldstart.group import Paper, Tally
from coldstart.ports import (
    Admission,
    Advert,
    Bus,
    Claim,
    ClaimOutcome,
    Conflicted,
    Cursor,
    Deferred,
    Elected,
    Granted,
    Heard,
    Letter,
    Recorded,
    Standing,
    Stated,
)


class SealedBus:
    """``inner`` with seals; closing it closes ``inner``. ``dropped`` counts letters that were not believed."""

    def __init__(self, inner: Bus, notary: Notary) -> None:
        self.inner, self._notary = inner, notary
        self.dropped = 0
        self._vouching, self._pledges = Vouching(inner, notary), Pledges(inner, notary)

    @property
    def local_address(self) -> str:
        return self.inner.local_address

    # ---------------------------------------------------------------------------- sources and slots

    async def claim(self, claim: Claim) -> ClaimOutcome:
        hello = await self._notary.sealed(claim.hello, claim.shard, "hello")
        outcome = await self.inner.claim(msgspec.structs.replace(claim, hello=hello))
        match outcome:
            case Granted():
                return await self._granted(claim.shard, claim.layout, outcome)
            case Conflicted():
                await self._vouching.check_conflict(claim.shard, claim.layout, outcome.roots)
                return outcome
            case Elected() | Deferred():
                root = await self._vouching.believed(claim.shard, claim.layout, outcome.root)
                return msgspec.structs.replace(outcome, root=root)
            case _:
                assert_never(outcome)

    async def _granted(self, shard: str, layout: str, granted: Granted) -> Granted:
        source = await self._notary.told(shard, granted.source)
        root = await self._vouching.believed(shard, layout, granted.root)
        return msgspec.structs.replace(granted, source=source, root=root)

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        sealed = await self._notary.sealed(letter, shard, "end") if letter else b""
        advert = await self.inner.release(shard, source, transfer, sealed)
        if advert is None:
            return None
        told = await self._notary.told(shard, advert)
        return None if told.unproven else told

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        bare = msgspec.structs.replace(advert, used=0, struck=False, seal="", unproven="")
        sealed = await self._notary.advert(shard, bare, seconds)
        standing = await self.inner.advertise(shard, sealed, seconds, held, ended)
        if standing.root and not await self._vouching.is_vouched(shard, advert.layout, standing.root):
            return msgspec.structs.replace(standing, root="")  # as good as none: whoever knows it publishes it again
        return standing

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        await self.inner.withdraw(shard, worker, incarnation)

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        await self.inner.strike(shard, worker, incarnation, proof, await self._notary.sealed(letter, shard, "doubt"))

    async def advert(self, shard: str, worker: str) -> Advert | None:
        advert = await self.inner.advert(shard, worker)
        return None if advert is None else await self._notary.told(shard, advert)

    async def adverts(self, shard: str) -> Sequence[Advert]:
        return tuple([await self._notary.told(shard, advert) for advert in await self.inner.adverts(shard)])

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        return await self.inner.lead(shard, layout, worker, seconds)

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        return await self.inner.admit(shard, layout, worker, most, seconds)

    # ----------------------------------------------------------------------------------- letters

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        await self.inner.send(shard, inbox, await self._notary.sealed(body, shard, "letter", inbox), nonce)

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        await self._notary.now()  # or letters would be taken from the store and could not be judged
        heard = await self.inner.listen(shard, inbox, cursor, seconds, fleet=fleet)
        letters = [await self._opened(shard, inbox, letter) for letter in heard.letters]
        return msgspec.structs.replace(heard, letters=tuple([letter for letter in letters if letter is not None]))

    async def _opened(self, shard: str, inbox: str, letter: Letter) -> Letter | None:
        if letter.granted is not None:
            granted = await self._granted(shard, letter.granted.source.layout, letter.granted)
            return msgspec.structs.replace(letter, granted=granted)
        try:
            body = await self._notary.letter(letter.body, shard, inbox)
        except Unproven as error:
            self.dropped += 1
            self._notary.refused(f"letter {error.reason}", f"a letter to {inbox}: {error}")
            return None
        return msgspec.structs.replace(letter, body=body)

    # ------------------------------------------------------------------------------------ truths

    async def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        await self._vouching.vouch(shard, layout, root, truth)
        roots = await self.inner.publish_truth(shard, layout, root, truth, again=again)
        if roots != (root,):
            await self._vouching.check_conflict(shard, layout, roots)
            return roots
        with suppress(BusError):  # it is published; the next advert looks again
            if not await self._vouching.is_vouched(shard, layout, root):
                # What stands under this root was published by somebody whose key is not believed (any more).
                return await self.inner.publish_truth(shard, layout, root, truth, again=True)
        return roots

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """As :meth:`coldstart.ports.Bus.fetch_truth`; raises IntegrityError for one that nobody with our keys made."""
        truth = await self.inner.fetch_truth(shard, layout)
        if truth is None or await self._vouching.proves(shard, layout, truth):
            return truth
        self._notary.refused("truth unproven", f"the truth of {shard[:8]} stands without a proof by a key of ours")
        raise IntegrityError(
            f"the truth of shard {shard[:8]} is not proven by a key that is known here",
            advice="give all workers the same file of keys (COLDSTART_KEYS)",
        )

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        if not await self.inner.state(shard, layout, digests):
            return False
        await self._vouching.vouch_digests(shard, layout, digests)
        return True

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        told = await self.inner.stated(shard, layout, first)
        if told.root:
            return Stated(await self._vouching.believed(shard, layout, told.root))
        return Stated("", await self._vouching.proven(shard, layout, told.digests, first))

    # ------------------------------------------------------------------------------------ groups

    async def vote(self, group: str, paper: Paper) -> Tally:
        await self._pledges.give(group, paper)
        tally = await self.inner.vote(group, paper)
        return msgspec.structs.replace(tally, verdicts=await self._pledges.proven(group, paper, tally))

    # -------------------------------------------------------------------------------- as they are

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        await self.inner.record(shard, entries)

    async def recorded(self, shard: str, after: str = "0-0", most: int = 256) -> Sequence[Recorded]:
        return await self.inner.recorded(shard, after, most)

    async def journals(self) -> Sequence[str]:
        return await self.inner.journals()

    async def shards(self) -> Sequence[str]:
        return await self.inner.shards()

    async def time(self) -> float:
        return await self.inner.time()

    async def aclose(self) -> None:
        await self.inner.aclose()
