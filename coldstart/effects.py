"""Everything the machines may ask of the world: imperatives.

A machine returns effects; the runner performs them and answers with events, never with
exceptions. Nothing here acts. The decisions that lead to them are in ``phases/`` and
``source.py``.
"""

from __future__ import annotations

import msgspec

from coldstart.events import Timer
from coldstart.group import Question
from coldstart.plan import Chunks
from coldstart.ports import Advert


class Effect(msgspec.Struct, frozen=True, tag=True):
    """Base of all effects."""


# ----------------------------------------------------------------------------------- either side


class Arm(Effect, frozen=True):
    """Start a timer, or start it anew. Answered by Expired unless disarmed."""

    timer: Timer
    seconds: float
    subject: str = ""


class Disarm(Effect, frozen=True):
    """Stop a timer."""

    timer: Timer
    subject: str = ""


# ---------------------------------------------------------------------------------------- joiner


class ClaimSource(Effect, frozen=True):
    """Find a source and take a slot, or stand in line for one. Answered by SourceClaimed, LoaderElected,
    ClaimDeferred, ClaimFailed or TruthDisputed; one that was deferred may be answered by SourceClaimed at any
    time, and is kept in line by asking again. The transports in ``without`` are not asked for. ``have`` chunks
    are here already; a source that lends to another will do after ``share`` seconds in line. Where ``crowd`` others
    stand in line, a part of the stream will do (0: never); ``part`` asks for that one and never leads. Without
    ``queue`` it stands in no line and never leads: who has nothing goes first."""

    attempt: int
    exclude: tuple[str, ...]
    without: tuple[str, ...] = ()
    have: int = 0
    share: float = 0.0
    crowd: int = 0
    part: int = -1
    queue: bool = True


class FetchTruth(Effect, frozen=True):
    """Get the digests to verify against. Answered by TruthReceived or TruthMissed."""

    attempt: int
    root: str


class Connect(Effect, frozen=True):
    """Set up what moves the bytes, before any is asked for. Answered by Connected or ConnectFailed; given up, and
    taken down, with the slot."""

    attempt: int
    source: Advert
    transport: str
    ticket: bytes


class ShowLife(Effect, frozen=True):
    """Accept the offer, and say that we live until the slot is given back. Not answered."""

    attempt: int
    source: Advert
    number: int


class Pull(Effect, frozen=True):
    """Fetch chunks that the source has, behind what it was asked for before. Answered by BytesLanded, ChunkVerified,
    ChunkCorrupted and at last PullEnded, one for each Pull or one for several of the same attempt. Without a published
    truth, by TruthReceived where there is one by now; chunks whose digest nobody has stated yet are left out."""

    attempt: int
    source: Advert
    transport: str
    ticket: bytes
    chunks: Chunks


class ReadStorage(Effect, frozen=True):
    """Read chunks from the checkpoint. Answered like Pull, and by TruthMissed before any chunk where
    the truth called ``root`` cannot be had. ``leading`` says that we hold the loader's lease, to be
    renewed while bytes land."""

    attempt: int
    chunks: Chunks
    root: str
    leading: bool


class StateDigests(Effect, frozen=True):
    """Tell the fleet the digests of ``chunks``, which we have read from storage before any truth was known.
    Answered by DigestsStated or StatementRefused, or not at all while the store is down."""

    attempt: int
    chunks: Chunks


class Share(Effect, frozen=True):
    """Let the source's machine lend what is verified so far, of these ``parts`` (empty: of all). Not answered."""

    have: Chunks
    parts: tuple[int, ...] = ()


class EndSharing(Effect, frozen=True):
    """What was shared is lent no more. Not answered."""


class Abandon(Effect, frozen=True):
    """End a pull or read now. Its PullEnded comes when it is quiet."""

    attempt: int


class ReplaceMemory(Effect, frozen=True):
    """Quarantine the target, which somebody may still write to; take the verified chunks ``keep`` along and
    verify them again. Answered by MemoryReplaced or MemoryRefused."""

    attempt: int
    keep: Chunks


class Strike(Effect, frozen=True):
    """Tell the store and the source that ``chunk`` came with wrong bytes. Not answered."""

    attempt: int
    source: Advert
    chunk: int


class Release(Effect, frozen=True):
    """Give the slot back and tell the source why; without a ``source``, leave the line. Not answered."""

    attempt: int
    source: str
    outcome: str


class PublishTruth(Effect, frozen=True):
    """Publish our digests. Answered by TruthPublished, TruthUnpublished or TruthConflicted."""

    attempt: int


class Check(Effect, frozen=True):
    """Release the last source's slot, see whether its weights are still the same, and run the builder's
    self-check. Answered by CheckPassed, CheckFailed or SourceChanged."""

    attempt: int
    source: Advert | None


class Admit(Effect, frozen=True):
    """Ask to be one of at most ``most`` who read storage although there are peers, and to count as such for
    ``seconds``. Answered by StorageOpened or StorageRefused."""

    attempt: int
    most: int
    seconds: float


class LeaveStorage(Effect, frozen=True):
    """Count among these no more. Not answered."""


class Resign(Effect, frozen=True):
    """Give up the loader's lease. Not answered."""


class Vote(Effect, frozen=True):
    """Answer a question of our group. Answered by GroupHeard when it is decided, or by GroupLost."""

    question: Question
    yes: bool
    reason: str = ""


class StartLending(Effect, frozen=True):
    """Hand the verified weights to the source's machine. Not answered."""


class StopLending(Effect, frozen=True):
    """Drain the source's machine. Answered by Drained."""


# ---------------------------------------------------------------------------------------- source


class Advertise(Effect, frozen=True):
    """Make or renew the advert. Answered by Advertised, AdvertFailed or StoreRenewed.

    ``afresh``: the store knows nothing of us, so publish the truth first. The slots of the
    transfers in ``held`` are kept, those in ``ended`` are free. Unless it ``lends``, the advert
    says that nothing can be had here. ``have`` is what can be had so far, of these ``parts`` (empty: of all);
    None: everything.
    """

    generation: int
    proof: int
    have: Chunks | None = None
    parts: tuple[int, ...] = ()
    afresh: bool = False
    lends: bool = True
    held: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


class Withdraw(Effect, frozen=True):
    """Take the advert back. Not answered."""


class OpenOffer(Effect, frozen=True):
    """Open our memory to one joiner, if a look finds it as it was. Answered by OfferOpened, OfferFailed,
    WeightsDamaged or WeightsMoved."""

    transfer: str
    joiner: str
    fence: int
    transport: str
    trace: str
    generation: int


class SendOffer(Effect, frozen=True):
    """Send the ticket to the joiner. Not answered."""

    transfer: str
    joiner: str
    transport: str
    ticket: bytes
    number: int
    generation: int
    have: Chunks | None = None


class SendProgress(Effect, frozen=True):
    """Tell a joiner what can be had here by now; None: everything. Not answered."""

    transfer: str
    joiner: str
    number: int
    have: Chunks | None


class SendRefusal(Effect, frozen=True):
    """Tell the joiner why not, or no more. Not answered."""

    transfer: str
    joiner: str
    number: int
    reason: str


class CloseGrant(Effect, frozen=True):
    """Revoke a grant at its transport. Answered by GrantClosed."""

    transfer: str
    transport: str
    outcome: str


class Inspect(Effect, frozen=True):
    """Digest ``chunks`` of our own memory anew, or all of them. Answered by WeightsProven, WeightsDamaged or
    WeightsMoved."""

    generation: int
    chunks: Chunks | None = None


class Scrub(Effect, frozen=True):
    """Look at our own weights, digest what somebody wrote to, and the ``chunks`` that are due. Answered by Scrubbed,
    ScrubFailed, WeightsDamaged or WeightsMoved."""

    generation: int
    chunks: Chunks


class ReportDrained(Effect, frozen=True):
    """Tell the joiner's machine that lending has ended. Not answered."""
