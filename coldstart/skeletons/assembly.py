"""Everything that needs torch before a cold start can begin: skeleton, arena, digester, storage.

Decides how a skeleton that was asked for by name, factory or object becomes a module whose
carried tensors lie in an arena, and how its checkpoint is read. Blocking; ``wiring.py`` calls
it in a worker thread, which also keeps the import of torch off the event loop. It must not know
peers or the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TypeVar, assert_never, cast

import anyio.to_thread
import msgspec
import torch
from torch import nn

from coldstart import registry
from coldstart.arena import Arena, device_of
from coldstart.classification import Classification
from coldstart.digest import ChunkDigester
from coldstart.errors import ConfigError, SkeletonError
from coldstart.glance import Watch
from coldstart.identity import ModelVersion, Shard
from coldstart.inplace import InPlace
from coldstart.layout import Layout, Span
from coldstart.ports import (
    Answering,
    Checkpoint,
    Digester,
    Landed,
    Leaving,
    Probe,
    Probing,
    Rank,
    Receiving,
    Skeleton,
    StoredAs,
    Transport,
)
from coldstart.shelves.location import ShelfSettings
from coldstart.shelves.open import Found, find
from coldstart.skeletons import automatic
from coldstart.skeletons.adoption import adopt, in_place, layout_of
from coldstart.skeletons.automatic import Chosen
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.skeletons.watch import ModuleWatch
from coldstart.skeletons.wrappers import differing
from coldstart.transports.sampled import compare
from coldstart.transports.storage import Placement, StorageTransport, Unplaced, check_unmodified, place

Module = nn.Module
"""What a builder makes; named here so that the facade need not import torch."""

ChosenT = TypeVar("ChosenT", bound=nn.Module)
SkeletonChoice = str | Skeleton[ChosenT] | Callable[[], ChosenT] | Callable[[Rank], ChosenT]
"""A name (``auto``, ``tensors``, ``transformers``, ...), a builder, or a factory of a module, or of a rank's."""


class Order(msgspec.Struct, frozen=True):
    """What is to be built. ``checkpoint`` is a path, or the URL of a prefix in an object store."""

    checkpoint: str | Path
    skeleton: SkeletonChoice[nn.Module] = "auto"
    dtype: str = ""
    device: str = "cpu"
    rank: Rank = Rank()
    revision: str = ""
    loaded: nn.Module | None = None
    """A module that somebody else has loaded; it is lent where it lies."""
    shelves: ShelfSettings = ShelfSettings()
    digester: Digester | None = None
    """Another one than the usual."""


class Built(msgspec.Struct, frozen=True):
    """A module without weights, and all that is needed to fill it."""

    module: nn.Module
    skeleton: Skeleton[nn.Module]
    checkpoint: Checkpoint
    shard: Shard
    arena: Arena | InPlace
    digester: Digester
    storage: StorageReader | Loaded
    self_check: Callable[[], Sequence[str]]
    watch: Watch | None
    probe: Callable[[], Probe | None] | None = None
    notice: str = ""
    """Why there are bare tensors where the host may have expected a module."""


class StorageReader:
    """Reads the checkpoint into the arena: only what is missing where its bytes, or numbers, are those of the arena.

    ``partial`` says which; ``reason`` why not.
    """

    loaded = False

    def __init__(self, skeleton: Skeleton[nn.Module], module: nn.Module, found: Found, arena: Arena) -> None:
        self._skeleton, self._module, self._found, self._arena = skeleton, module, found, arena
        checkpoint = found.checkpoint
        names = skeleton.stored_names(module, checkpoint)
        placed = place(arena.layout, names, checkpoint) if names is not None else None
        self._transport = _transport(found, placed) if isinstance(placed, Placement) else None
        self.partial = self._transport is not None
        self.reason = _why_whole(skeleton, module, checkpoint, placed)

    async def sample(self) -> None:
        """Nothing is here that was not read."""

    async def read(self, spans: Sequence[Span], landed: Landed) -> None:
        """Bring ``spans`` into the arena, or all of it where the family's own loader must be used."""
        if self._transport is not None:
            await self._transport.pull(b"", spans, self._arena, landed)
            return
        async with _on_disk(self._found) as checkpoint:
            await anyio.to_thread.run_sync(self._load, checkpoint)
        landed(Span(0, self._arena.layout.nbytes))

    def _load(self, checkpoint: Checkpoint) -> None:
        with torch.no_grad(), _exits_are_errors():
            self._skeleton.load(self._module, checkpoint)
        check_unmodified(checkpoint)


def _transport(found: Found, placed: Placement) -> Transport:
    """What reads the weights of ``found`` from where they are."""
    if found.prefix is None:
        return StorageTransport(found.checkpoint, placed)
    objects = import_module("coldstart.transports.objects")
    return cast(Transport, objects.ObjectTransport(found.prefix, placed))


def _on_disk(found: Found) -> AbstractAsyncContextManager[Checkpoint]:
    """The checkpoint as a directory of this machine, for the block."""
    if found.prefix is None:
        return nullcontext(found.checkpoint)
    whole = import_module("coldstart.transports.whole")
    return cast("AbstractAsyncContextManager[Checkpoint]", whole.fetched(found.prefix, found.checkpoint))


class Loaded:
    """The storage of weights that are in memory already. Those that map byte for byte can be seen to be storage's."""

    partial, loaded, reason = True, True, ""

    def __init__(self, memory: InPlace, stored: Transport | None) -> None:
        self._memory, self._stored = memory, stored

    async def sample(self) -> None:
        """See that what is here is the checkpoint's, as far as a sample tells."""
        if self._stored is not None:
            await compare(self._memory, self._stored)

    async def read(self, spans: Sequence[Span], landed: Landed) -> None:
        """Everything asked for is here; whether it is right is for the digest to say."""
        for span in spans:
            landed(span)


@contextmanager
def _exits_are_errors() -> Iterator[None]:
    """Code of others that calls ``sys.exit``: in a worker thread it would end no process, only be waited for."""
    try:
        yield
    except SystemExit as error:
        raise SkeletonError(f"the builder's code asked the process to exit ({error.code!r})") from error


@_exits_are_errors()
def build(order: Order) -> Built:
    """Read the checkpoint's headers, build the skeleton and give it its memory.

    Raises:
        CheckpointError: missing, truncated or hostile files.
        UnknownPlugin, PluginUnavailable: the skeleton's name, or the library for object stores.
        SkeletonError: state that can be neither carried nor rebuilt.
        ConfigError: the device is not there, or has no room.
    """
    found = find(order.checkpoint, order.shelves)
    checkpoint = found.checkpoint
    skeleton = _skeleton(order, checkpoint)
    digester = order.digester or ChunkDigester()
    device = str(device_of(order.device))
    if device != "cpu" and isinstance(digester, ChunkDigester):
        # A kernel takes a second or two to make ready; the skeleton is built meanwhile.
        Thread(target=digester.prepare, args=(device,), daemon=True).start()
    module = skeleton.build(checkpoint, order.rank, order.device)
    carried = dict(skeleton.carried(module))
    if not carried:
        raise SkeletonError(f"{order.checkpoint} gives a module without weights", advice="check the checkpoint")
    if order.loaded is not None:
        names = skeleton.stored_names(module, checkpoint)
        return _in_place(order, _lendable(module, order.loaded), skeleton, found, carried, digester, names)
    arena = adopt(module, carried, order.device)
    skeleton.finalise(module)
    leaves = isinstance(skeleton, Leaving) and skeleton.leaves_memory
    watch = None if leaves else ModuleWatch(module, arena)

    @_exits_are_errors()
    def self_check() -> Sequence[str]:
        if watch is not None:
            watch.begin()  # every byte has been digested, and what follows is the host's own code
        if isinstance(skeleton, Receiving):
            skeleton.received(module)
        return skeleton.self_check(module)

    return Built(
        module=module,
        skeleton=skeleton,
        checkpoint=checkpoint,
        shard=_shard(order, skeleton, found),
        arena=arena,
        digester=digester,
        storage=StorageReader(skeleton, module, found, arena),
        self_check=self_check,
        watch=watch,
        probe=_probe(skeleton, module, device_of(order.device)),
        notice=_notice(order, checkpoint),
    )


def _lendable(built: nn.Module, given: object) -> nn.Module:
    """``given``, a loaded module that may be lent as what ``built`` is the skeleton of."""
    if not isinstance(given, nn.Module):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise ConfigError(f"{what} cannot be lent", advice="give the nn.Module that holds the weights")
    if other := differing(built, given):
        raise SkeletonError(f"{other} of the loaded module is not what its builder makes of it")
    return given


def _in_place(
    order: Order,
    module: nn.Module,
    skeleton: Skeleton[nn.Module],
    found: Found,
    wanted: Mapping[str, object],
    digester: Digester,
    names: Mapping[str, StoredAs] | None,
) -> Built:
    """A loaded module as a source: of the tensors that a skeleton of it carries, where they lie."""
    unregistered = skeleton.held(module) if isinstance(skeleton, ModuleSkeleton) else {}
    memory = in_place(module, wanted, order.device, unregistered)
    watch = ModuleWatch(module, memory)
    placed = place(memory.layout, names, found.checkpoint) if names is not None else None
    watch.begin()  # the host may be using the module already: a write from now on is one that digests may have missed

    def self_check() -> Sequence[str]:
        moved = watch.look().moved
        return (moved,) if moved else ()

    return Built(
        module=module,
        skeleton=skeleton,
        checkpoint=found.checkpoint,
        shard=_shard(order, skeleton, found),
        arena=memory,
        digester=digester,
        storage=Loaded(memory, _transport(found, placed) if isinstance(placed, Placement) else None),
        self_check=self_check,
        watch=watch,
        notice=_notice(order, found.checkpoint),
    )


def _probe(
    skeleton: Skeleton[nn.Module], module: nn.Module, device: torch.device
) -> Callable[[], Probe | None] | None:
    """The builder's probe, always run from the same seed; not of a lent module, which may be serving."""
    if not isinstance(skeleton, Probing):
        return None

    @_exits_are_errors()
    def run() -> Probe | None:
        if isinstance(skeleton, Receiving):
            skeleton.received(module)
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            return skeleton.probe(module)

    return run


def _shard(order: Order, skeleton: Skeleton[nn.Module], found: Found) -> Shard:
    version = ModelVersion(
        name=found.name,
        checkpoint=found.checkpoint.fingerprint,
        skeleton=skeleton.identity,
        dtype=order.dtype,
        revision=order.revision,
    )
    return Shard(version, order.rank)


class Inspected(msgspec.Struct, frozen=True):
    """What a builder makes of a checkpoint, without its weights.

    ``whole_read`` says why storage could only be read as a whole; empty where it maps byte for byte. ``lacking`` says
    which weights the checkpoint has no value for, ``unused`` which of its tensors are none of the module's, as far as
    can be known without reading it.
    """

    skeleton: str
    model: str
    classification: Classification
    whole_read: str
    lacking: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    notice: str = ""
    """As :class:`Built` has it."""


def inspect(order: Order) -> Inspected:
    """Build the skeleton, on the CPU and without memory for its weights, and say what is in it. Blocks.

    A module that :func:`build` would refuse is classified, too. Raises as :func:`build` does otherwise.
    """
    checkpoint = find(order.checkpoint, order.shelves).checkpoint
    skeleton = _skeleton(order, checkpoint)
    survey = skeleton.survey if isinstance(skeleton, ModuleSkeleton) else skeleton.build
    module = survey(checkpoint, order.rank, "cpu")
    found = skeleton.classify(module)
    whole = ""
    wanting: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    if not found.refusals:
        names = skeleton.stored_names(module, checkpoint)
        placed = None if names is None else place(_layout(skeleton, module), names, checkpoint)
        whole = _why_whole(skeleton, module, checkpoint, placed)
        if isinstance(skeleton, ModuleSkeleton):
            wanting = tuple(skeleton.lacking(module, checkpoint))
            unused = tuple(skeleton.unused(module, checkpoint)) if isinstance(placed, Placement) else ()
    notice = _notice(order, checkpoint)
    return Inspected(skeleton.name, type(module).__name__, found, whole, wanting, unused, notice)


def ordinary_answers(path: Path, skeleton: str, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
    """What an ordinarily loaded module answers, or None where the builder cannot say. Blocks."""
    checkpoint = find(path, ShelfSettings()).checkpoint
    builder = _skeleton(Order(path, skeleton), checkpoint)
    if not isinstance(builder, Answering):
        return None
    return builder.answers(builder.ordinary(checkpoint), checkpoint, texts)


def answers(built: Built, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
    """What a cold-started module answers, or None where its builder cannot say. Blocks."""
    if not isinstance(built.skeleton, Answering):
        return None
    return built.skeleton.answers(built.module, built.checkpoint, texts)


def _skeleton(order: Order, checkpoint: Checkpoint) -> Skeleton[nn.Module]:
    choice = order.skeleton
    if isinstance(choice, str):
        name = _automatic(checkpoint).name if choice == "auto" else choice
        factory = registry.skeleton(name)
        return cast("Skeleton[nn.Module]", factory.open(dtype=order.dtype))
    if isinstance(choice, Skeleton) and not isinstance(choice, type):
        if order.dtype:
            raise ConfigError("dtype= is for builders that are named, and functions", advice="give it to your builder")
        return choice
    if callable(choice) and not isinstance(choice, nn.Module):
        return ModuleSkeleton(choice, dtype=order.dtype)
    what = "a module" if isinstance(choice, nn.Module) else repr(choice)
    raise ConfigError(f"skeleton is {what}", advice="give a name, a builder, or a function that makes the module")


def _automatic(checkpoint: Checkpoint) -> Chosen:
    return automatic.chosen(checkpoint.config, registry.names("skeletons"))


def _notice(order: Order, checkpoint: Checkpoint) -> str:
    return _automatic(checkpoint).notice if order.skeleton == "auto" else ""


def _why_whole(
    skeleton: Skeleton[nn.Module], module: nn.Module, checkpoint: Checkpoint, placed: Placement | Unplaced | None
) -> str:
    """Why storage cannot be read chunk by chunk, in words; empty if it can."""
    if placed is None and isinstance(skeleton, ModuleSkeleton):
        placed = place(_layout(skeleton, module), skeleton.find_stored(module, checkpoint), checkpoint)
        if isinstance(placed, Placement):
            return f"{skeleton.name} transforms weights as it loads them"
    match placed:
        case Placement():
            return ""
        case Unplaced(reason=reason):
            return reason
        case None:
            return f"{skeleton.name} transforms weights as it loads them"
        case _:
            assert_never(placed)


def _layout(skeleton: Skeleton[nn.Module], module: nn.Module) -> Layout:
    carried = skeleton.carried(module).items()
    return layout_of({name: value for name, value in carried if isinstance(value, torch.Tensor)})
