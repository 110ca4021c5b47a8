"""What the store knows of workers, and what a joiner that asks for a source is answered."""

from __future__ import annotations

import msgspec

EXCLUDED = "excluded"
"""Why a worker was passed over that the claim itself names, or that makes it."""


class Advert(msgspec.Struct, frozen=True):
    """A worker's leased record of what it holds and can lend.

    ``layout`` is the lineage of the weights (:func:`coldstart.identity.lineage`), ``inbox`` names
    the stream of this incarnation; ``generation`` grows when the weights
    change; ``have`` of ``total`` chunks are verified and may be pulled; ``proof`` grows whenever
    this incarnation has digested its memory anew and found it right. ``rack`` names what workers with a
    fast way to each other have in common; empty where nobody said so. ``parts`` are those of which it has
    at least one verified chunk; empty for who is complete, or receives everything from one source.
    """

    worker: str
    inbox: str
    incarnation: str
    generation: int
    layout: str
    slots: int
    have: int
    total: int
    transports: tuple[str, ...]
    host: str
    device: str
    since: float = 0.0
    proof: int = 0
    rack: str = ""
    parts: tuple[int, ...] = ()
    used: int = 0
    """Slots in use; filled in by the bus."""
    struck: bool = False
    """Doubted by a joiner since its last proof, so nobody is sent there; filled in by the bus."""
    rate: int = 0
    """Bytes per second at which its own weights came from a peer; 0: not known, or they did not."""
    cap: int = 0
    """Bytes per second that it sends at most, to all together; 0: not limited, or limited elsewhere."""
    seal: str = ""
    """All of this again, sealed by its worker, where the fleet has keys (``bus/sealed.py``)."""
    unproven: str = ""
    """Why it is not to be believed; filled in by a bus that knows keys."""


class Skip(msgspec.Struct, frozen=True):
    """A worker that was considered and passed over, and why.

    Reasons of the bus: ``excluded``, ``layout``, ``transports``, ``struck``, ``empty``, ``behind`` (it has
    no more than the joiner, and not all), ``part`` (it has nothing of the one that is wanted), ``busy``,
    ``shared`` (it lends to somebody already).
    """

    worker: str
    reason: str
    layout: str = ""


class Claim(msgspec.Struct, frozen=True):
    """One request for a source: discovery, slot, fence and the joiner's hello in one operation.

    Idempotent by ``transfer``: a repeated claim returns the answer that gave it a source or the lead.
    If a source is granted, ``hello`` is put into its inbox together with the fence.

    Among usable sources the first of ``prefer`` wins; then the nearest (same host, same rack, others),
    the least loaded, the one with more free slots, the one with more chunks, and luck.

    A claim that is deferred may stand in line (``queue_seconds``). Whenever a source has room, those in
    line are served in the order of their arrival, before any new claim that the same source would suit:
    the hello goes to the source and a :class:`Letter` with the grant to ``inbox``. Claiming again with
    the same transfer keeps the place, replaces the claim's other fields, and tells of a grant whose
    letter was lost. The place is lost when the time is over, by an answer other than
    :class:`Deferred`, and by :meth:`Bus.release`.

    A stream has :data:`PARTS` parts: chunk c belongs to part c % PARTS. In a crowd a joiner is given one part,
    and asks with a second claim for the other: a source then lends each slot for one part only, so that with
    every hop there are twice as many who hold a chunk, where a chain would add one. Claims for everything
    take the parts by turns in the order in which they come to their line, so that neither part is rare; one that
    does not stand there would take the next. Who has nothing of that part is passed over in a crowd, and nobody
    is elected for want of it.

    Args:
        layout: the joiner's lineage; sources of another one are skipped.
        exclude: workers never to be chosen (failed before; the joiner itself).
        transports: at least one must be shared with the source.
        slot_seconds: life of the slot, on the server's clock.
        lead_seconds: life of the loader's lease if this joiner is elected; 0: never elect.
        luck: breaks ties between equal sources; 0 <= luck < 2**31.
        have: chunks that the joiner holds; a source that is not complete must have more.
        prefer: workers to be taken before all others, best first; the first few are looked at.
        host, rack: where the joiner is, in the words of :class:`Advert`; empty is near to nobody.
        inbox: where the letter goes if the grant comes later; without one, only claiming again tells.
        queue_seconds: how long to stand in line if deferred; 0: not at all.
        share_seconds: time in line before which a source that lends to somebody already will not do:
            who receives now will lend in a moment, and then serves a newcomer better. Every grant of the
            layout begins it anew. For a grant of one part, a source does that lends nothing but parts.
        part: the part that is wanted, or -1 for any. Who has nothing of it is skipped, ``have`` does not
            count, and this claim is never elected.
        crowd: with so many other claims in its line, only its one part is granted, and also where the last grant
            of the layout was of a part and is more recent than ``share_seconds``; 0: always everything.
    """

    shard: str
    layout: str
    worker: str
    transfer: str
    hello: bytes
    exclude: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()
    slot_seconds: float = 30.0
    lead_seconds: float = 3.0
    luck: int = 0
    have: int = 0
    prefer: tuple[str, ...] = ()
    host: str = ""
    rack: str = ""
    inbox: str = ""
    queue_seconds: float = 0.0
    share_seconds: float = 0.0
    part: int = -1
    crowd: int = 0


class Granted(msgspec.Struct, frozen=True):
    """A slot at ``source`` is ours; the hello is in its inbox. ``root`` names the truth, or is empty.

    ``part`` is the only one to be read there; -1 for everything.
    """

    source: Advert
    fence: int
    root: str
    epoch: str
    skipped: tuple[Skip, ...] = ()
    part: int = -1


class Elected(msgspec.Struct, frozen=True):
    """No source has this layout: we hold the loader's lease and read storage for everybody."""

    root: str
    epoch: str
    skipped: tuple[Skip, ...] = ()


class Queue(msgspec.Struct, frozen=True):
    """Where a claim stands in line, and before whom: facts for an estimate of the wait.

    Args:
        ahead: claims before it, those that gave up and were not yet noticed among them.
        slots, used: of the complete sources that would do if they were free, as far as they were looked at.
        rate: the best :attr:`Advert.rate` of these; 0: not known.
        readers: others that read storage now: whoever leads, and those that :meth:`Bus.admit` has admitted.
        hosts: where these sources are, :data:`MAX_HOSTS` of them at most.
    """

    ahead: int
    slots: int
    used: int
    rate: int = 0
    readers: int = 0
    hosts: tuple[str, ...] = ()


MAX_HOSTS = 8


class Admission(msgspec.Struct, frozen=True):
    """Whether a joiner may read storage beside ``readers`` others."""

    admitted: bool
    readers: int


class Deferred(msgspec.Struct, frozen=True):
    """Nothing to pull from at present: ``leader`` is loading (or empty: all sources are busy, or lack our part).

    ``queue`` is there for a claim that stands in line for sources that are complete.
    """

    leader: str
    root: str
    epoch: str
    skipped: tuple[Skip, ...] = ()
    queue: Queue | None = None


class Conflicted(msgspec.Struct, frozen=True):
    """Storage readers published different truths for this shard and layout; nobody is believed."""

    roots: tuple[str, ...]
    epoch: str


ClaimOutcome = Granted | Elected | Deferred | Conflicted
