"""A bus of workers that share keys: everything written is sealed, and nothing is believed that is not.

Decides which operation seals what, and what a reader is told instead of something unproven. It is a bus around
another one, so that whoever uses it need not know of keys; seals and proofs are made in ``notary.py``.

    letters, hellos     sealed, opened once, within their time; others are dropped and counted
    adverts             carry a sealed copy, which is what readers are told; else ``unproven`` says why not
    truths              their proof is stated beside them, under the writer's key; without one there is no truth
    stated digests      the same, for each chunk
    verdicts            a yes counts only with a proof of each rank's own yes
    slots, leads, fences, strikes, the index, the journal    as they are: they cost time, never wrong weights
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from coldstart.bus.notary import Notary, place_of
from coldstart.errors import BusError, IntegrityError, Unproven
from coldstart.group import Paper, Tally, Verdict
from coldstart.ports import (
    Admission,
    Advert,
    Bus,
    Claim,
    ClaimOutcome,
    Cursor,
    Granted,
    Heard,
    Letter,
    Recorded,
    Standing,
    Stated,
)

VOUCH_SECONDS = 3600.0
"""A source sees to it so often that the truth of its weights can be proven; at once when the signing key changes."""

REPEAT_SECONDS = 2.0
"""A rank's yes is stated again so often while it votes: the store may have lost it."""


class SealedBus:
    """``inner`` with seals; closing it closes ``inner``. ``dropped`` counts letters that were not believed."""

    def __init__(self, inner: Bus, notary: Notary) -> None:
        self.inner, self._notary = inner, notary
        self.dropped = 0
        self._vouched: dict[tuple[str, str], tuple[str, float]] = {}
        """By shard and layout: key and time of the last proof that is known to stand."""
        self._said: dict[tuple[str, str, int], float] = {}
        self._agreed: set[tuple[str, str, int]] = set()
        """By group, question and size: where every rank's yes is proven."""

    @property
    def local_address(self) -> str:
        return self.inner.local_address

    # ---------------------------------------------------------------------------- sources and slots

    async def claim(self, claim: Claim) -> ClaimOutcome:
        hello = await self._notary.sealed(claim.hello, claim.shard, "hello")
        outcome = await self.inner.claim(msgspec.structs.replace(claim, hello=hello))
        return await self._granted(claim.shard, outcome) if isinstance(outcome, Granted) else outcome

    async def _granted(self, shard: str, granted: Granted) -> Granted:
        return msgspec.structs.replace(granted, source=await self._notary.told(shard, granted.source))

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
        if standing.root and not await self._is_vouched(shard, advert.layout):
            return msgspec.structs.replace(standing, root="")  # as good as none: whoever knows it publishes it again
        return standing

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        await self.inner.withdraw(shard, worker, incarnation)

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        await self.inner.strike(shard, worker, incarnation, proof, await self._notary.sealed(letter, shard, "doubt"))

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
            return msgspec.structs.replace(letter, granted=await self._granted(shard, letter.granted))
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
        await self._vouch(shard, layout, truth)
        roots = await self.inner.publish_truth(shard, layout, root, truth, again=again)
        with suppress(BusError):  # it is published; the next advert looks again
            if roots == (root,) and not await self._is_vouched(shard, layout):
                # What stands under this root was published by somebody whose key is not believed (any more).
                return await self.inner.publish_truth(shard, layout, root, truth, again=True)
        return roots

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """As :meth:`coldstart.ports.Bus.fetch_truth`; raises IntegrityError for one that nobody with our keys made."""
        truth = await self.inner.fetch_truth(shard, layout)
        if truth is None or await self._is_proven(shard, layout, truth):
            return truth
        self._notary.refused("truth unproven", f"the truth of {shard[:8]} stands without a proof by a key of ours")
        raise IntegrityError(
            f"the truth of shard {shard[:8]} is not proven by a key that is known here",
            advice="give all workers the same file of keys (COLDSTART_KEYS)",
        )

    async def _vouch(self, shard: str, layout: str, truth: bytes) -> None:
        key = self._notary.signing[0]
        proof = self._notary.proof(key, "truth", shard, layout, truth)
        await self.inner.state(shard, place_of(key, "truth", layout), {_number_of(truth): proof})

    async def _is_proven(self, shard: str, layout: str, truth: bytes) -> bool:
        """Whether a holder of any of our keys has vouched for this record."""
        number = _number_of(truth)
        for key in self._notary.signing:
            stated = await self.inner.stated(shard, place_of(key, "truth", layout), number)
            if self._notary.proves(stated.digests.get(number), key, "truth", shard, layout, truth):
                self._vouched[shard, layout] = (key.ident, anyio.current_time())
                return True
        return False

    async def _is_vouched(self, shard: str, layout: str) -> bool:
        """Whether what stands can be proven, by the key that signs now; sees to that where any key proves it."""
        first = self._notary.signing[0].ident
        ident, at = self._vouched.get((shard, layout), ("", 0.0))
        if ident == first and anyio.current_time() - at < VOUCH_SECONDS:
            return True
        truth = await self.inner.fetch_truth(shard, layout)
        if truth is None:
            return True  # none, or a conflict: nothing that could be proven
        if not await self._is_proven(shard, layout, truth):
            return False
        if self._vouched[shard, layout][0] != first:
            await self._vouch(shard, layout, truth)
            self._vouched[shard, layout] = (first, anyio.current_time())
        return True

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        if not await self.inner.state(shard, layout, digests):
            return False
        key = self._notary.signing[0]
        proofs = {
            chunk: self._notary.proof(key, "digest", shard, layout, chunk, digest) for chunk, digest in digests.items()
        }
        if proofs and not await self.inner.state(shard, place_of(key, "digest", layout), proofs):
            self._notary.refused("digest forged", f"others stand for proofs of the key {key.ident}")
        return True

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        told = await self.inner.stated(shard, layout, first)
        if told.root or not told.digests:
            return told
        proven: dict[int, bytes] = {}
        for key in self._notary.signing:
            proofs = (await self.inner.stated(shard, place_of(key, "digest", layout), first)).digests
            for chunk, digest in told.digests.items():
                if chunk not in proven and self._notary.proves(
                    proofs.get(chunk), key, "digest", shard, layout, chunk, digest
                ):
                    proven[chunk] = digest
            if len(proven) == len(told.digests):
                break
        return Stated("", {chunk: proven[chunk] for chunk in sorted(proven)})

    # ------------------------------------------------------------------------------------ groups

    async def vote(self, group: str, paper: Paper) -> Tally:
        for answer in paper.answers:
            if answer.yes and paper.member.isdecimal():
                self._said.setdefault((group, answer.question, int(paper.member)), -REPEAT_SECONDS)
        await self._say_again(group)
        tally = await self.inner.vote(group, paper)
        heard = {verdict.question for verdict in paper.heard}
        verdicts = [
            verdict
            for verdict in tally.verdicts
            if not verdict.yes or verdict.question in heard or await self._is_agreed(group, verdict, paper.size)
        ]
        return msgspec.structs.replace(tally, verdicts=tuple(verdicts))

    async def _say_again(self, group: str) -> None:
        """State the proofs of this rank's yes, for whoever hears a verdict later."""
        now, key = anyio.current_time(), self._notary.signing[0]
        for (named, question, member), at in list(self._said.items()):
            if named == group and now - at >= REPEAT_SECONDS:
                proof = self._notary.proof(key, "vote", group, question, member)
                await self.inner.state(group, place_of(key, "vote", question), {member: proof})
                self._said[named, question, member] = now

    async def _is_agreed(self, group: str, verdict: Verdict, size: int) -> bool:
        """Whether each of ``size`` ranks is proven to have said yes."""
        about = (group, verdict.question, size)
        if about in self._agreed:
            return True
        missing = set(range(size))
        for key in self._notary.signing:
            proofs = (await self.inner.stated(group, place_of(key, "vote", verdict.question))).digests
            missing -= {
                member
                for member in missing
                if self._notary.proves(proofs.get(member), key, "vote", group, verdict.question, member)
            }
        if missing:
            ranks = ", ".join(str(member) for member in sorted(missing)[:8])
            self._notary.refused("vote unproven", f"{verdict} in group {group}: no proof of a yes by rank {ranks}")
            return False
        self._agreed.add(about)
        return True

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


def _number_of(truth: bytes) -> int:
    """Where the proof of a record stands among those of other records of one truth, which differ in their probes."""
    return int.from_bytes(hashlib.blake2b(truth, digest_size=2).digest(), "little")
