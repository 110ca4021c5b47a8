"""Checkpoints as they are read, and the builders that make modules without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from coldstart.classification import Classification
from coldstart.identity import Rank
from coldstart.ports.transports import Availability
from coldstart.probe import Probe

ModuleT = TypeVar("ModuleT")
TakenT = TypeVar("TakenT", contravariant=True)
"""A module that is only looked at."""


SAMPLE_BYTES: Final = 4096
"""Of each tensor of a checkpoint so many bytes are part of its fingerprint: all of one that is no longer."""


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


class StoredRange(msgspec.Struct, frozen=True):
    """``length`` bytes of the stored tensor that a checkpoint calls ``tensor``, from its byte ``offset`` on."""

    tensor: str
    offset: int
    length: int


class Cast(msgspec.Struct, frozen=True):
    """What is stored under a name, or in ranges of whole numbers, perhaps in another floating-point dtype than carried.

    For loaders that do nothing with it but ``.to(dtype)``. From float32, float16 or bfloat16 to another of these it is
    done as the bytes are read; what has the carried dtype already is read as it is.
    """

    stored: str | tuple[StoredRange, ...]


StoredAs = str | tuple[StoredRange, ...] | Cast
"""Where a checkpoint has one tensor: under a name; or, of one that is made of others, in ranges of them, in order."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint directory (or single file) whose headers have been read and checked.

    ``fingerprint`` identifies the content, ``config`` is the parsed ``config.json`` if any.
    ``modified`` has each file's time of last write, in ns, as it was before the fingerprint was made:
    a file with another one is not what the fingerprint says.

    Of a pipeline, ``components`` has each component's own checkpoint, ``tensors`` all of theirs with the
    component's name before them, and ``config`` is the parsed ``model_index.json``.

    ``origin`` is the URL of one that is in an object store, else empty. ``path`` is then where its small files are;
    its weights are there only while a builder loads them.
    """

    path: Path
    fingerprint: str
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    config: Mapping[str, object] | None = None
    modified: Mapping[Path, int] = {}
    components: Mapping[str, Checkpoint] = {}
    origin: str = ""


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

    def stored_names(self, module: ModuleT, checkpoint: Checkpoint) -> Mapping[str, StoredAs] | None:
        """Where the checkpoint has each carried tensor, if it has all of them, at most in another dtype; else None.

        That is a name of the checkpoint's, or ranges of its tensors, in :class:`Cast` where loading may change the
        dtype. Carried names that are aliases of a mapped one may be left out.
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


@runtime_checkable
class Leaving(Protocol):
    """What a builder may offer beside :class:`Skeleton`: word that its module may leave the carried memory behind."""

    @property
    def leaves_memory(self) -> bool:
        """Whether that memory is lent although the module has other by now; only its digests are looked at then."""
        ...


class SkeletonFactory(Protocol):
    """What an entry point in ``coldstart.skeletons`` loads to."""

    api: int

    def probe(self) -> Availability: ...

    def open(self, *, dtype: str = "", **options: str) -> Skeleton[object]:
        """``dtype`` is the requested dtype (empty for the checkpoint's own)."""
        ...
