"""The truth of a shard, over the bus: fetched and checked, published, compared in words.

Decides which record may be verified against: of our shard, our layout, our digest algorithm,
and named by the root that was announced. It must not know chunks in memory, nor phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from coldstart.errors import BusError, IntegrityError
from coldstart.identity import MAX_TRUTH_BYTES, UNREADABLE, Truth, decode_truth
from coldstart.identity import lineage as lineage_of
from coldstart.layout import Layout, differences
from coldstart.ports import Probe, Skip
from coldstart.station import Station
from coldstart.telemetry import logger


class Truths:
    """What one worker knows of the truth; ``known`` is what its weights were verified against.

    Args:
        layout, algorithm: of this worker's memory and digests.
    """

    def __init__(self, station: Station, layout: Layout, algorithm: str) -> None:
        self._station, self._layout, self._algorithm = station, layout, algorithm
        self.known: Truth | None = None
        self.published = False
        """Whether the store has had the known truth, and no other."""
        self._own = False
        """Whether the known truth is our record, and perhaps not the one that was published first."""
        self._stated: dict[int, bytes] = {}
        """Digests of single chunks, from whoever reads storage, before there is a truth."""
        self._followed = False
        """Whether somebody else read storage, and publishes the truth."""

    async def named(self, root: str) -> Truth:
        """The truth called ``root``.

        Raises:
            BusError: the store is down.
            IntegrityError: the record is missing, malformed, or not ours to verify against.
        """
        if self.known is not None and self.known.root == root:
            return self.known
        station = self._station
        if station.bus is None:
            raise BusError(station.no_bus)
        data = await station.bus.fetch_truth(station.key, station.lineage)
        if data is None:
            raise IntegrityError(f"the truth of {station.shard} is announced but missing")
        return self._taken(data, root)

    def _taken(self, data: bytes, root: str = "") -> Truth:
        """The record in ``data``, checked, as what is known from now on."""
        truth = decode_truth(data, shard=self._station.key, root=root)
        if truth.layout != self._layout:
            raise IntegrityError(f"layout differs: {'; '.join(differences(self._layout, truth.layout))}")
        if truth.algorithm != self._algorithm:
            raise IntegrityError(f"truth is in {truth.algorithm} digests, this worker computes {self._algorithm}")
        self.known, self.published, self._own = truth, True, False
        return truth

    async def published_now(self) -> Truth | None:
        """The truth that is published for our shard and layout, if any. Raises as :meth:`named` does."""
        station = self._station
        if station.bus is None:
            return None
        data = await station.bus.fetch_truth(station.key, station.lineage)
        return None if data is None else self._taken(data)

    def expected(self, chunk: int) -> bytes | None:
        """The digest that ``chunk`` must have, if anybody knows it."""
        if self.known is not None:
            return self.known.digest(chunk)
        return self._stated.get(chunk)

    async def learn(self, chunks: Iterable[int]) -> str:
        """Find out what is known of ``chunks`` by now: the truth, whose root is returned, or single digests.

        Raises as :meth:`named` does.
        """
        station = self._station
        first = next((chunk for chunk in chunks if chunk not in self._stated), -1)
        if self.known is None and first >= 0:
            if station.bus is None:
                raise BusError(station.no_bus)
            self._followed = True
            stated = await station.bus.stated(station.key, station.lineage, first)
            if stated.root:
                await self.named(stated.root)
            else:
                self._stated.update(stated.digests)
        return self.known.root if self.known is not None else ""

    async def state(self, digests: Mapping[int, bytes]) -> bool:
        """State digests of what we have read from storage; false if another reader has stated others.

        Raises:
            BusError: the store is down; whether they were stated is unknown.
        """
        station = self._station
        if station.bus is None:
            raise BusError(station.no_bus)
        stated = await station.bus.state(station.key, station.lineage, digests)
        if stated:
            self._stated.update(digests)
        return stated

    def make(self, digests: Sequence[bytes], probe: Probe | None = None) -> Truth:
        """Our own truth, from the digests of all chunks as storage gave them."""
        self.published, self._own = False, True
        self.known = Truth(self._station.key, self._layout, self._algorithm, b"".join(digests), probe)
        return self.known

    async def probe(self) -> Probe | None:
        """What was published with the known truth, by whoever published it first.

        Raises:
            BusError: it was never published, or the store is down.
            IntegrityError: as :meth:`named` does.
        """
        station, truth = self._station, self.known
        if truth is None or not self.published or station.bus is None:
            raise BusError(station.no_bus or "the truth is not published")
        if self._own:
            data = await station.bus.fetch_truth(station.key, station.lineage)
            return None if data is None else self._taken(data, truth.root).probe
        return truth.probe

    async def publish(self) -> tuple[str, ...]:
        """Publish what is known; returns the roots that are published now: ours alone, unless in conflict.

        Raises:
            BusError: the store is down; whether it was published is unknown.
        """
        station, truth = self._station, self.known
        if station.bus is None or truth is None:
            raise BusError(station.no_bus or "there is no truth to publish")
        if self._followed and (await station.bus.stated(station.key, station.lineage)).root == truth.root:
            self.published = True  # by whoever read storage; the record is large
            return (truth.root,)
        roots = await station.bus.publish_truth(station.key, station.lineage, truth.root, truth.encode())
        self.published = roots == (truth.root,)
        return roots

    async def explained(self, skipped: Sequence[Skip]) -> tuple[Skip, ...]:
        """``skipped`` with the first differences in words where the layout was the reason."""
        words = {skip.layout: "" for skip in skipped if skip.reason == "layout"}
        for lineage in words:
            words[lineage] = await self._compared(lineage)
        return tuple(
            msgspec.structs.replace(skip, reason=words[skip.layout]) if skip.reason == "layout" else skip
            for skip in skipped
        )

    async def _compared(self, lineage: str) -> str:
        """How those of ``lineage`` differ from us."""
        station = self._station
        assert station.bus is not None
        try:
            data = await station.bus.fetch_truth(station.key, lineage) or b""
            theirs = msgspec.msgpack.decode(data[:MAX_TRUTH_BYTES], type=Truth)
        except IntegrityError:
            return "its messages are not authenticated with a key of ours"
        except (BusError, *UNREADABLE):
            return f"layout differs: theirs is {lineage[:8]}, ours {station.lineage[:8]}"
        found = self._difference(theirs, lineage)
        logger().warning("layout differs", shard=str(station.shard), differences=found)
        return found

    def _difference(self, theirs: Truth, lineage: str) -> str:
        if found := differences(self._layout, theirs.layout):
            return f"layout differs: {'; '.join(found)}"
        if theirs.algorithm != self._algorithm:
            return f"layout differs: its digests are {theirs.algorithm}, ours {self._algorithm}"
        if lineage == lineage_of(theirs.layout, theirs.algorithm, sealed=True):
            return "its messages are authenticated, ours are not: give this worker its keys (COLDSTART_KEYS)"
        return f"layout differs: theirs is {lineage[:8]}, ours {self._station.lineage[:8]}"
