"""The interfaces between the runner and everything that touches the world.

Plugins implement these. Together with ``coldstart.layout`` and ``coldstart.errors`` this
module is the plugin API; :data:`API` is its number. Skeleton builders may also build on
``coldstart.skeletons.module``, ``.adoption`` and ``.stored``, which count with it.

It holds Protocols and the frozen values that cross them, no behaviour. It must not know any
implementation; ``registry.py`` finds those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from coldstart.classification import Classification as Classification
from coldstart.classification import ClassifiedTensor as ClassifiedTensor
from coldstart.group import Paper, Tally
from coldstart.identity import Rank as Rank
from coldstart.layout import PARTS as PARTS
from coldstart.layout import Layout, Span
from coldstart.probe import Probe as Probe

API = 1
"""Number of the plugin API; a plugin that states another number is refused by name."""

ModuleT = TypeVar("ModuleT")
TakenT = TypeVar("TakenT", contravariant=True)
"""A module that is only looked at."""

Link = Literal["nvlink", "rdma", "tcp", "storage", "memory"]


# ------------------------------------------------------------------------------------- memory


class Region(msgspec.Struct, frozen=True):
    """A piece of memory as native transports see it.

    ``device`` is ``cpu`` or ``cuda:N``; ``address`` and ``length`` are in bytes; ``offset`` is
    where the region stands in the stream.
    """

    device: str
    address: int
    length: int
    offset: int


@runtime_checkable
class Memory(Protocol):
    """One worker's carried bytes, addressed by their offset in the layout's stream.

    Padding between storages reads as zeros and may be written with anything.
    All methods may be called from any thread.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def device(self) -> str: ...

    def regions(self, span: Span) -> Sequence[Region]:
        """The memory behind ``span``, for transports that move bytes by address."""
        ...

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """Views that together hold the ``span.length`` bytes of ``span``, in order.

        CPU memory is lent in place; device memory is copied to pinned staging first.
        """
        ...

    def writing(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """Writable views for ``span``; when the block ends without error the bytes are in place.

        For device memory the views are pinned staging, copied and synchronised on exit.
        """
        ...


# ---------------------------------------------------------------------------------- transports


class Traits(msgspec.Struct, frozen=True):
    """What a transport is like; the runner asks these, never the class.

    Args:
        one_sided: the source's process does no work per byte.
        needs_peer: bytes come from another worker (false for storage).
        abortable: when a cancelled ``pull`` returns, nothing writes into the target any more.
            If false, the target of an abandoned pull is quarantined.
        sees_readers: :meth:`Transport.reading` can tell; then a joiner that it does not see is gone.
        device_kinds: kinds of memory it reads and writes, such as ``("cpu", "cuda")``.
        link: what carries the bytes.
    """

    one_sided: bool
    needs_peer: bool
    abortable: bool
    device_kinds: tuple[str, ...]
    link: Link
    sees_readers: bool = False


class Availability(msgspec.Struct, frozen=True):
    """Whether something can run here; ``reason`` says why not, or what was found."""

    usable: bool
    reason: str = ""


class Grant(msgspec.Struct, frozen=True):
    """The right of one joiner to pull from this source.

    ``transfer`` is the transfer's id, ``fence`` grows with every claim of the shard,
    ``seconds`` bounds the grant's life.
    """

    transfer: str
    joiner: str
    fence: int
    seconds: float


Landed = Callable[[Span], None]
"""Called by ``pull`` for each range that is complete in the target. Any thread, any order."""


@runtime_checkable
class Transport(Protocol):
    """Moves bytes from a source's memory into a joiner's.

    A transport is opened by its factory (:class:`TransportFactory`) and closed by ``aclose``.
    """

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Source: open ``memory`` to the holder of ``grant``; the returned ticket says how.

        The ticket is opaque, at most 16 KiB, and worthless after ``revoke``. Raises
        TransportError when this transport cannot offer now.
        """
        ...

    async def revoke(self, transfer: str) -> None:
        """Source: end a grant at once and return when nothing reads for it; idempotent."""
        ...

    def reading(self, transfer: str) -> bool:
        """Source: whether a joiner is connected for this grant now; false where that cannot be told."""
        ...

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Joiner: fetch ``spans`` into ``into``; returns when all of them have landed.

        Landed ranges cover all of ``spans``, padding included.

        Cancelling it is how a stalled attempt ends; see :attr:`Traits.abortable`. Raises
        TransportError with a reason when the source ends, refuses or breaks the protocol. A pull
        that ends by itself, either way, is quiet: nothing writes into the target any more.
        """
        ...

    async def aclose(self) -> None:
        """Release sockets, threads and registrations; idempotent."""
        ...


class TransportSettings(msgspec.Struct, frozen=True):
    """What the operator decides about transports.

    Args:
        host: address that peers reach this worker at; also the one bound to.
        connections: parallel connections per pull.
        lend_bytes_per_second: cap on what this worker sends, 0 for none.
        io_seconds: a socket that moves nothing for so long is dead.
        device: where this worker's weights are, such as ``cpu`` or ``cuda:0``; what is slow the
            first time there may be begun when the transport is opened.
    """

    host: str = "127.0.0.1"
    connections: int = 2
    lend_bytes_per_second: float = 0.0
    io_seconds: float = 10.0
    device: str = "cpu"


@runtime_checkable
class Preparing(Protocol):
    """What a transport may offer beside :class:`Transport`: work that is better done before it is needed."""

    async def prepare(self, memory: Memory) -> None:
        """Register ``memory``, open what will be needed; called once, while a source is being sought.

        A hint: ``offer`` and ``pull`` do or await what is missing, also for memory that was
        replaced. What it raises is logged, and nothing else comes of it.
        """
        ...


@runtime_checkable
class Keeping(Protocol):
    """What a transport may offer beside :class:`Transport`: connections that outlive a pull.

    A joiner that receives while its source still receives pulls many times with one ticket.
    """

    def keep(self, ticket: bytes) -> None:
        """Joiner: what a pull with ``ticket`` has set up serves the next one, until :meth:`disconnect`.

        Raises TransportError for a ticket that is none.
        """
        ...

    async def disconnect(self, ticket: bytes) -> None:
        """Joiner: take down what was kept for ``ticket``, when no pull is under way; idempotent, soon back."""
        ...


@runtime_checkable
class Connecting(Protocol):
    """What a transport may offer beside :class:`Transport`: set-up that is done before the first byte is asked for.

    Worth it where set-up takes longer than a round trip; it is kept as :class:`Keeping` says.
    """

    async def connect(self, ticket: bytes, into: Memory) -> None:
        """Joiner: set up all that pulls with ``ticket`` into ``into`` need; not a byte of it is written.

        They use it until :meth:`disconnect`, a failure, or the end of the grant; a pull that finds nothing set up
        does it for itself, and takes it down. Cancelling ends it soon. Raises TransportError as ``pull`` does.
        """
        ...

    async def disconnect(self, ticket: bytes) -> None:
        """Joiner: take down what was set up for ``ticket``, when no pull is under way; idempotent, soon back."""
        ...


@runtime_checkable
class Routing(Protocol):
    """What a transport may offer beside :class:`Transport`: the truth about the path its bytes take."""

    @property
    def route(self) -> str:
        """What the last pull really ran over, as read back from the library (``nvlink``, ``rdma``, ``tcp``)."""
        ...


class TransportFactory(Protocol):
    """What an entry point in ``coldstart.transports`` loads to."""

    api: int

    def probe(self) -> Availability:
        """Cheap and without side effects: are library and hardware here?"""
        ...

    def open(self, settings: TransportSettings) -> Transport: ...


# ------------------------------------------------------------------------ checkpoint, skeletons


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a checkpoint keeps one tensor: contiguous, little-endian, row-major.

    ``name`` is the file's own. ``dtype`` is spelled as torch spells it (``float32``); ``offset`` and
    ``nbytes`` are in bytes from the start of ``file``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint directory (or single file) whose headers have been read and checked.

    ``fingerprint`` identifies the content, ``config`` is the parsed ``config.json`` if any.
    ``modified`` has each file's time of last write, in ns, as it was before the fingerprint was made:
    a file with another one is not what the fingerprint says.

    Of a pipeline, ``components`` has each component's own checkpoint, ``tensors`` all of theirs with the
    component's name before them, and ``config`` is the parsed ``model_index.json``.
    """

    path: Path
    fingerprint: str
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    config: Mapping[str, object] | None = None
    modified: Mapping[Path, int] = {}
    components: Mapping[str, Checkpoint] = {}


@runtime_checkable
class Skeleton(Protocol, Generic[ModuleT]):
    """Builds a module with every tensor in place and no weights in it.

    The runner calls, in this order and in a worker thread: ``build``; then it gives the
    carried tensors their memory; then ``finalise``; the weights arrive; then ``self_check``.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """Everything about this builder that changes the bytes in memory, as short text."""
        ...

    def build(self, checkpoint: Checkpoint | None, rank: Rank, device: str) -> ModuleT:
        """The module: carried tensors on meta or uninitialised, all others computed on ``device``.

        Raises SkeletonError naming state that can be neither carried nor rebuilt.
        """
        ...

    def classify(self, module: ModuleT) -> Classification:
        """Every tensor that ``module`` holds, however it holds it, in exactly one class.

        ``build`` refuses what is ``unsupported``: state that is in no class is never guessed at.
        """
        ...

    def carried(self, module: ModuleT) -> Mapping[str, object]:
        """Name to tensor for everything that travels, every alias under its own name.

        The order is the order of the stream and must be the same in every process.
        """
        ...

    def finalise(self, module: ModuleT) -> None:
        """Restore what the change of memory broke: ties, flags, eval mode."""
        ...

    def self_check(self, module: ModuleT) -> Sequence[str]:
        """Problems that the digest cannot see (a tensor left on meta, a broken tie); empty is good."""
        ...

    def stored_names(self, module: ModuleT, checkpoint: Checkpoint) -> Mapping[str, str] | None:
        """Carried name to checkpoint name where the checkpoint maps one to one, else None.

        Carried names that are aliases of a mapped one may be left out.
        """
        ...

    def load(self, module: ModuleT, checkpoint: Checkpoint) -> None:
        """Fill every carried tensor in place by the ordinary way of this family.

        Used only where ``stored_names`` is None.
        """
        ...


@runtime_checkable
class Answering(Protocol, Generic[ModuleT]):
    """What a builder may offer beside :class:`Skeleton`, to show that a module computes the right thing."""

    def ordinary(self, checkpoint: Checkpoint) -> ModuleT:
        """The module as people load it without coldstart. Blocks."""
        ...

    def answers(self, module: ModuleT, checkpoint: Checkpoint, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text (or per tensor, for a module that computes nothing); the same for equal weights."""
        ...


@runtime_checkable
class Receiving(Protocol, Generic[TakenT]):
    """What a builder may offer beside :class:`Skeleton`: work that needs the carried values."""

    def received(self, module: TakenT) -> None:
        """Every carried byte is in place and verified; called before ``self_check``, perhaps more than once."""
        ...


@runtime_checkable
class Probing(Protocol, Generic[TakenT]):
    """What a builder may offer beside :class:`Skeleton`: numbers by which a worker knows that it computes the same.

    The worker that publishes the truth publishes them with it; every other one compares its own, after its
    bytes were verified, and does not serve if they differ.
    """

    def probe(self, module: TakenT) -> Probe | None:
        """A fixed tiny forward over a fixed input; None for none. Blocks; gradients are off and the seed is set.

        Leaves nothing behind in ``module`` that a request would see. One that raises where others have numbers
        is a refusal, too; where nobody has any, it is only said.
        """
        ...


class SkeletonFactory(Protocol):
    """What an entry point in ``coldstart.skeletons`` loads to."""

    api: int

    def probe(self) -> Availability: ...

    def open(self, *, dtype: str = "", **options: str) -> Skeleton[object]:
        """``dtype`` is the requested dtype (empty for the checkpoint's own)."""
        ...


# -------------------------------------------------------------------------------------- digest


class Digester(Protocol):
    """Full-coverage digests of ranges of memory."""

    @property
    def algorithm(self) -> str: ...

    def digest(self, memory: Memory, span: Span) -> bytes:
        """16 bytes over every byte of ``span`` as it stands in device memory. Blocks; call in a thread."""
        ...


@runtime_checkable
class BatchDigester(Protocol):
    """What a digester may offer beside :class:`Digester`: many spans in one call, where that costs less."""

    def at_once(self, memory: Memory) -> int:
        """How many chunks of ``memory`` one call should be given at most; 1 where a thread each is better."""
        ...

    def digests(self, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        """The digest of each of ``spans``, in their order. Blocks; call in a thread."""
        ...


# ----------------------------------------------------------------------------------------- bus


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


class Cursor(msgspec.Struct, frozen=True):
    """Where a listener stands in its two streams; bound to one life of the store by ``epoch``."""

    inbox: str = "0-0"
    fleet: str = "0-0"
    epoch: str = ""


class Letter(msgspec.Struct, frozen=True):
    """One message from an inbox; ``fence`` is set by the claim that sent it, else 0.

    A letter with ``granted`` is the store's own, with an empty body: the claim that stood in line for
    ``transfer`` has got a source.
    """

    body: bytes
    fence: int = 0
    transfer: str = ""
    granted: Granted | None = None


class Heard(msgspec.Struct, frozen=True):
    """What a listener got: letters for it, and whether the fleet changed; with the cursor to go on from.

    ``renewed`` says that the store lost its memory (another epoch): adverts must be made again.
    """

    cursor: Cursor
    letters: tuple[Letter, ...] = ()
    fleet_changed: bool = False
    renewed: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What a store knows: which life it is in, the root of the published truth, and whether we are struck.

    A store that fell back to an earlier state is in the same life and may have lost the truth.
    """

    epoch: str
    root: str
    struck: bool = False


class Stated(msgspec.Struct, frozen=True):
    """What is known of a truth that is being made: the digests stated so far, by chunk.

    Once the truth is published, ``root`` names it and ``digests`` is empty: it is fetched as a whole.
    """

    root: str = ""
    digests: Mapping[int, bytes] = {}


class Bus(Protocol):
    """Coordination: hints, leases and letters. Nothing in it is needed for safety.

    Every method has a deadline of its own and raises BusError when the store is down, silent
    or refuses; it never retries in secret. Whether a failed write was applied is unknown.
    Times are measured on the store's clock. Losing everything costs only slower starts.
    """

    @property
    def local_address(self) -> str:
        """The address of this machine on the route to the store (``127.0.0.1`` for a local one)."""
        ...

    async def claim(self, claim: Claim) -> ClaimOutcome:
        """Find a source and take a slot, or be elected to read storage: one atomic operation."""
        ...

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        """Give a slot back; returns the source's advert as it stands now, if it is still alive.

        Args:
            source: empty takes the claim back wherever it stands: in line, or at a source by now.
            letter: for the source, before the slot can be granted again: put into the inbox that the hello
                went to or, where the store does not know that (any more), into the source's present one.
        """
        ...

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        """Renew the loader's lease; false when somebody else holds it. ``seconds=0`` gives it up."""
        ...

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        """Admit ``worker`` to storage although there are sources, if fewer than ``most`` others read it.

        It then counts among the readers for ``seconds``; asked again, it is counted anew. ``seconds=0``: it
        has done, or will not read after all. Storage is shared: this is what keeps a crowd from it.
        """
        ...

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        """Make or renew a leased advert; returns what the store knows that it should know.

        Args:
            held: transfers that still go on here: their slots live at least as long as the advert.
            ended: transfers that are over: their slots are free, should their joiners not have said so.
        """
        ...

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        """Take the advert back at once; idempotent. The advert of a later incarnation stays."""
        ...

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        """Doubt a worker's bytes: no claim is granted there until it advertises with a proof above ``proof``.

        ``letter`` is put into its inbox, together with the doubt, so that it hears of it. Idempotent.
        Another incarnation of the worker is not concerned, nor is an unknown worker.
        """
        ...

    async def publish_truth(self, shard: str, layout: str, root: str, truth: bytes) -> tuple[str, ...]:
        """Publish once; returns the roots known after it: ``(root,)``, or several in a conflict."""
        ...

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None: ...

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        """State digests (16 bytes, by chunk) of a truth that is being made, for those who receive meanwhile.

        What stands for a chunk stays. Returns false, and changes nothing, if any of ``digests`` differs
        from what stands. Once a truth is published there is nothing left to state, and this does nothing.
        """
        ...

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        """The published root, or else the digests stated for chunks from ``first`` on; in a conflict neither."""
        ...

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        """Put a letter into an inbox, once per nonce."""
        ...

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        """Wait up to ``seconds`` for letters or, with ``fleet``, a fleet change. One listener per bus object."""
        ...

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        """Append to the shard's journal stream (bounded), in order."""
        ...

    async def vote(self, group: str, paper: Paper) -> Tally:
        """Say what a rank has to say to its group, and that it lives; returns what has been decided.

        A verdict is written once: yes when ``paper.size`` members have said yes, no as soon as one says
        no, or when somebody answers after a member was not heard of for ``paper.seconds``. A quarter of
        that in which nobody was heard is held against nobody. Idempotent.
        """
        ...

    async def shards(self) -> Sequence[str]:
        """Keys of all shards that had an advert lately."""
        ...

    async def adverts(self, shard: str) -> Sequence[Advert]:
        """Live adverts of a shard, with slots in use."""
        ...

    async def aclose(self) -> None: ...


# ------------------------------------------------------------------------------------- consensus


class Consensus(Protocol):
    """A host's own way to have its ranks agree, such as a collective of its process group."""

    async def all_agree(self, question: str, yes: bool, seconds: float) -> bool:
        """Whether every rank says yes to ``question``; every rank is asked the same ones in the same order.

        Ends within ``seconds``. May raise anything when a rank is gone; it is not asked again then.
        """
        ...
