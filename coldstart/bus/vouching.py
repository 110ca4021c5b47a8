"""Proofs that members state for truths: for a record, for its name, and for digests before there is one.

Decides where a proof stands and when it is stated anew. A proof is stated as digests are, under the name of a layout
of its own for each key: so the store needs no rules for it, and while keys are changed both kinds stand side by
side. It must not know what a truth holds. What is done with the answers is in ``sealed.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import anyio

from coldstart.bus.notary import Notary, place_of
from coldstart.errors import BusError
from coldstart.ports import Bus

VOUCH_SECONDS = 3600.0
"""A source sees to it so often that the truth of its weights can be proven; at once when the signing key changes."""


class Vouching:
    """One member's proofs, stated on ``bus``, which is not a sealed one."""

    def __init__(self, bus: Bus, notary: Notary) -> None:
        self._bus, self._notary = bus, notary
        self._proven: dict[tuple[str, str], tuple[str, float]] = {}
        """By shard and layout: key and time of the last proof that is known to stand."""
        self._believed: set[tuple[str, str, str]] = set()
        """Shard, layout and root of truths that members have published."""

    async def vouch(self, shard: str, layout: str, root: str, truth: bytes) -> None:
        """Prove a truth that we know to be right, by the key that signs now. Raises BusError."""
        key = self._notary.signing[0]
        proof = self._notary.proof(key, "truth", shard, layout, truth)
        await self._bus.state(shard, place_of(key, "truth", layout), {_number_of(truth): proof})
        proof = self._notary.proof(key, "root", shard, layout, root)
        await self._bus.state(shard, place_of(key, "root", layout, root), {0: proof})

    async def believed(self, shard: str, layout: str, root: str) -> str:
        """``root``, if a member has published it; else as if there were none. Raises BusError."""
        if not root or (shard, layout, root) in self._believed:
            return root
        for key in self._notary.signing:
            proofs = (await self._bus.stated(shard, place_of(key, "root", layout, root))).digests
            if self._notary.proves(proofs.get(0), key, "root", shard, layout, root):
                self._believed.add((shard, layout, root))
                return root
        self._notary.refused("root unproven", f"the root {root[:12]} of {shard[:8]} has no proof by a key of ours")
        return ""

    async def check_conflict(self, shard: str, layout: str, roots: Sequence[str]) -> None:
        """Raises BusError for a conflict that strangers have made: it must stop nobody."""
        proven = [root for root in roots if await self.believed(shard, layout, root)]
        if len(proven) < 2:
            told = f"the store tells of {len(roots)} truths of shard {shard[:8]}"
            raise BusError(
                f"{told}, and members have published {len(proven)}",
                advice="somebody without the fleet's keys writes to it: delete the shard's keys, and see to its ACL",
            )

    async def proves(self, shard: str, layout: str, truth: bytes) -> bool:
        """Whether a holder of any of our keys has vouched for this record. Raises BusError."""
        number = _number_of(truth)
        for key in self._notary.signing:
            stated = await self._bus.stated(shard, place_of(key, "truth", layout), number)
            if self._notary.proves(stated.digests.get(number), key, "truth", shard, layout, truth):
                self._proven[shard, layout] = (key.ident, anyio.current_time())
                return True
        return False

    async def is_vouched(self, shard: str, layout: str, root: str) -> bool:
        """Whether what stands can be proven, by the key that signs now; sees to that where any key proves it.

        Raises BusError.
        """
        first = self._notary.signing[0].ident
        ident, at = self._proven.get((shard, layout), ("", 0.0))
        if ident == first and anyio.current_time() - at < VOUCH_SECONDS:
            return True
        truth = await self._bus.fetch_truth(shard, layout)
        if truth is None:
            return True  # none, or a conflict: nothing that could be proven
        # The store's word for the name of a proven record is no reason to sign that name.
        if not (await self.proves(shard, layout, truth) and await self.believed(shard, layout, root)):
            return False
        if self._proven[shard, layout][0] != first:
            await self.vouch(shard, layout, root, truth)
            self._proven[shard, layout] = (first, anyio.current_time())
        return True

    async def vouch_digests(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> None:
        """Prove digests that we have stated. Raises BusError."""
        key, notary = self._notary.signing[0], self._notary
        proofs = {
            chunk: notary.proof(key, "digest", shard, layout, chunk, digest) for chunk, digest in digests.items()
        }
        if not await self._bus.state(shard, place_of(key, "digest", layout), proofs):
            notary.refused("digest forged", f"others stand for proofs of the key {key.ident}")

    async def proven(self, shard: str, layout: str, digests: Mapping[int, bytes], first: int) -> Mapping[int, bytes]:
        """Those of ``digests``, which are of chunks from ``first`` on, that members have stated. Raises BusError."""
        found: dict[int, bytes] = {}
        for key in self._notary.signing:
            if len(found) == len(digests):
                break
            proofs = (await self._bus.stated(shard, place_of(key, "digest", layout), first)).digests
            for chunk in digests.keys() - found.keys():
                about = (shard, layout, chunk, digests[chunk])
                if self._notary.proves(proofs.get(chunk), key, "digest", *about):
                    found[chunk] = digests[chunk]
        return {chunk: found[chunk] for chunk in sorted(found)}


def _number_of(truth: bytes) -> int:
    """Where the proof of a record stands among those of other records of one truth, which differ in their probes."""
    return int.from_bytes(hashlib.blake2b(truth, digest_size=2).digest(), "little")
