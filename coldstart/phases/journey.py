"""What a joiner carries through all phases of a cold start.

Decides nothing but how a verified chunk is counted. What a phase needs beside it is in ``states.py``.
"""

from __future__ import annotations

import msgspec

from coldstart.estimate import Estimate
from coldstart.group import Accord
from coldstart.plan import Chunks, Limits
from coldstart.policies import AtOnce, source_bound


class Journey(msgspec.Struct, frozen=True):
    """What a joiner carries through all phases.

    Args:
        limits: how long and how often.
        total: chunks of the layout.
        partial: storage can be read chunk by chunk.
        chunk_bytes: size of a chunk.
        verified: chunks whose digest was right.
        origins: where each verified chunk came from, by worker or ``states.STORAGE``.
        attempt: number of the current try; grows, never repeats.
        transports: ours, as long as none has failed.
        connecting: those of them that connect before a byte is asked for.
        growing: those of them whose pulls can be asked for more while they are under way.
        abortable: those of them whose pulls can be ended at any time.
        failed: transports that failed before anything landed; not asked for until the source is left.
        tries: sources that were given a chance.
        excluded: workers never asked again.
        patience: seconds that may still be lost on peers and coordination.
        followed: seconds spent waiting for loaders.
        asides: further sources that were sought beside a first one; they number their attempts from -1 down.
        root: name of the published truth, empty while unknown.
        fetched: name of the truth whose record is here.
        detours: why each source or path was left, in order.
        storage_rate: bytes per second that this storage gave before; 0: not known.
        choice: the last estimate of what is quicker, peers or storage, and what was decided.
        asked: the attempt in which the store was asked to admit us to storage, the last time it was.
        accord: what is said and decided in the rank's group; None outside of any.
        link: bytes per second that the link from the last source has given at best; 0: not known.
        narrow: a further source has been tried in vain.
        at_once: the policy by which further sources are sought outside of crowds.
    """

    limits: Limits
    total: int = 0
    partial: bool = True
    chunk_bytes: int = 0
    verified: Chunks = Chunks()
    origins: tuple[tuple[str, Chunks], ...] = ()
    attempt: int = 0
    transports: tuple[str, ...] = ()
    connecting: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    abortable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    tries: int = 0
    excluded: tuple[str, ...] = ()
    patience: float = 0.0
    followed: float = 0.0
    asides: int = 0
    root: str = ""
    fetched: str = ""
    detours: tuple[str, ...] = ()
    storage_rate: float = 0.0
    choice: Estimate | None = None
    asked: int = 0
    accord: Accord | None = None
    link: float = 0.0
    narrow: bool = False
    at_once: AtOnce = source_bound

    @property
    def missing(self) -> Chunks:
        return Chunks.first(self.total) - self.verified

    @property
    def complete(self) -> bool:
        return len(self.verified) == self.total

    def with_chunk(self, chunk: int, origin: str) -> Journey:
        """The journey with one more verified chunk; a repeated chunk changes nothing."""
        if chunk in self.verified:
            return self
        origins = dict(self.origins)
        origins[origin] = origins.get(origin, Chunks()).add(chunk)
        return msgspec.structs.replace(self, verified=self.verified.add(chunk), origins=tuple(origins.items()))

    def keeping(self, chunks: Chunks) -> Journey:
        """The journey with only ``chunks`` of the verified ones."""
        origins = ((origin, Chunks(had.bits & chunks.bits)) for origin, had in self.origins)
        left = tuple((origin, had) for origin, had in origins if had)
        return msgspec.structs.replace(self, verified=Chunks(self.verified.bits & chunks.bits), origins=left)
