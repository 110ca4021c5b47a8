"""What can happen to a joiner: it starts, finds and loses sources, bytes land and are verified, its group decides."""

from __future__ import annotations

from coldstart.events.common import AttemptEvent, Event
from coldstart.group import Verdict
from coldstart.links.rates import Passage
from coldstart.plan import Chunks
from coldstart.ports import Advert, Queue, Skip


class Started(Event, frozen=True):
    """Skeleton and memory are ready; ``chunks`` are to be filled.

    ``partial``: storage can be read chunk by chunk; else the family's own loader brings everything
    at its end and shows no progress before. ``chunk_bytes``: of each chunk but the last.
    ``transports``: names of ours, in order of preference; ``connecting``: those of them that connect before the
    first byte is asked for, ``growing``: whose pulls can be asked for more while they are under way,
    ``abortable``: whose pulls can be ended at any time. ``loaded``: the host has filled the memory itself; it is
    only to be proven and lent.
    ``storage_rate``: bytes per second that this storage has given before; 0: not known.
    """

    chunks: int
    partial: bool = True
    chunk_bytes: int = 0
    transports: tuple[str, ...] = ()
    connecting: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    loaded: bool = False
    storage_rate: float = 0.0
    abortable: tuple[str, ...] = ()


class SourceClaimed(AttemptEvent, frozen=True):
    """A slot is ours and the source has our hello. ``root`` names the truth, if any is published.

    ``part``: what is to be read there, in a crowd; -1: everything. ``rate``: bytes per second that the link from
    there has given; 0: not known.
    """

    source: Advert
    root: str
    skipped: tuple[Skip, ...] = ()
    part: int = -1
    rate: float = 0.0


class LoaderElected(AttemptEvent, frozen=True):
    """Nobody has these weights: we read storage, alone, for everybody."""

    root: str = ""
    skipped: tuple[Skip, ...] = ()


class ClaimDeferred(AttemptEvent, frozen=True):
    """``leader`` is reading storage; or, where it is empty, every source is busy.

    ``queue`` is what the store knows of the line; ``rate`` the best that the links from its sources have given, in
    bytes per second; 0: not known.
    """

    leader: str
    skipped: tuple[Skip, ...] = ()
    queue: Queue | None = None
    rate: float = 0.0


class ClaimFailed(AttemptEvent, frozen=True):
    """Coordination is down, or no peer could be read anyhow."""

    reason: str


class TruthDisputed(AttemptEvent, frozen=True):
    """Storage readers published different truths earlier; none is believed."""

    roots: tuple[str, ...]


class StorageOpened(AttemptEvent, frozen=True):
    """We may read storage beside ``readers`` others, although there are peers."""

    readers: int


class StorageRefused(AttemptEvent, frozen=True):
    """We may not: ``readers`` do already; or coordination is down."""

    readers: int = 0


class TruthReceived(AttemptEvent, frozen=True):
    """The truth record is here and matches its root; ``root`` where that was not known before."""

    root: str = ""


class TruthMissed(AttemptEvent, frozen=True):
    """The truth record could not be had, or is not what its root says."""

    reason: str


class OfferReceived(AttemptEvent, frozen=True):
    """The source answered and proved that it means this transfer."""

    transport: str
    ticket: bytes
    number: int
    """The source's random number; our acceptance returns it plus one."""
    have: Chunks | None = None
    """What it can lend so far; None: everything."""


class Connected(AttemptEvent, frozen=True):
    """The transport has set up what a pull needs."""


class ConnectFailed(AttemptEvent, frozen=True):
    """The transport cannot reach the source."""

    reason: str


class OfferRefused(AttemptEvent, frozen=True):
    """The source refuses, or revoked what it had offered."""

    reason: str


class SourceProgressed(AttemptEvent, frozen=True):
    """A source that still receives is alive and can lend ``have`` now; None: everything."""

    have: Chunks | None = None


class BytesLanded(AttemptEvent, frozen=True):
    """``nbytes`` more are in the target memory, not verified yet."""

    nbytes: int


class ChunkVerified(AttemptEvent, frozen=True):
    """The digest of a chunk, computed from the target memory, equals the truth.

    Where no truth is published yet it equals what the fleet's storage reader has stated; a chunk that we
    read from storage ourselves then becomes the truth.
    """

    chunk: int


class ChunkCorrupted(AttemptEvent, frozen=True):
    """A chunk landed whole and its digest is wrong."""

    chunk: int


class PullEnded(AttemptEvent, frozen=True):
    """A pull or a storage read returned and all its digests are reported.

    ``chunks`` is what it was asked for, one :class:`~coldstart.effects.Pull` after the other; None: everything that
    was. ``reason`` is empty on success. If not ``quiet``, something may still write into the target.
    ``route`` is what carried the bytes, where the transport can tell; ``passage`` how fast they came from a peer.
    """

    reason: str = ""
    quiet: bool = True
    route: str = ""
    passage: Passage | None = None
    chunks: Chunks | None = None

    def left_of(self, pulling: Chunks) -> Chunks:
        """What is still on its way of ``pulling``."""
        return Chunks() if self.chunks is None else pulling - self.chunks


class DigestsStated(AttemptEvent, frozen=True):
    """The fleet knows the digests of ``chunks``, which we have read from storage: they may be lent."""

    chunks: Chunks


class StatementRefused(AttemptEvent, frozen=True):
    """Another storage reader has stated other digests."""

    reason: str


class MemoryReplaced(AttemptEvent, frozen=True):
    """The old target is in quarantine; the carried tensors have fresh memory, in which ``kept`` are verified."""

    kept: Chunks = Chunks()


class MemoryRefused(AttemptEvent, frozen=True):
    """There is no fresh memory to be had."""

    reason: str


class TruthPublished(AttemptEvent, frozen=True):
    """Our digests are the published truth, under this root."""

    root: str


class TruthUnpublished(AttemptEvent, frozen=True):
    """Coordination is down; our digests are published when it is back."""

    reason: str


class TruthConflicted(AttemptEvent, frozen=True):
    """Another storage reader published other digests for the same shard and layout."""

    roots: tuple[str, ...]


class SourceChanged(AttemptEvent, frozen=True):
    """The source's weights were changed while we read from it, or since; what is verified equals the truth."""

    source: str
    reason: str


class CheckPassed(AttemptEvent, frozen=True):
    """The builder's self-check found nothing; ``probe`` says what came of its numeric probe, if it has one."""

    probe: str = ""


class CheckFailed(AttemptEvent, frozen=True):
    """The module is not right although its bytes are."""

    reason: str


class Drained(Event, frozen=True):
    """The source side is closed."""


class GroupEvent(Event, frozen=True):
    """Base of what is heard of our group; it may come in any state but the first."""


class GroupHeard(GroupEvent, frozen=True):
    """These questions are decided, for all ranks."""

    verdicts: tuple[Verdict, ...]


class GroupLost(GroupEvent, frozen=True):
    """The group's record has been out of reach for so long that the other ranks count us as gone."""

    reason: str
