"""A skeleton from any ``nn.Module`` factory.

Decides how an ordinary factory becomes a module without weights: its parameters lose their
memory as they are registered (``meta.py``), its buffers are computed on the target device, and
everything else is recorded so that it can be put right and checked after the weights have moved
into the arena. Builders for model libraries derive from :class:`ModuleSkeleton` and say only
how the module is made and what the checkpoint calls its tensors.

It must not know a model library, nor how bytes arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from math import inf
from typing import Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from coldstart.arena import device_of
from coldstart.classification import Classification
from coldstart.errors import ColdstartError, ConfigError, SkeletonError, in_a_line
from coldstart.identity import Rank
from coldstart.layout import Layout, differences
from coldstart.ports import Checkpoint, StoredAs
from coldstart.probe import MOST_NUMBERS, Probe
from coldstart.skeletons.adoption import exchange, layout_of, view_of
from coldstart.skeletons.classify import Declared, Inventory, Shared, take_inventory
from coldstart.skeletons.extra import ExtraState, encoded, put_back
from coldstart.skeletons.meta import MetaParameters
from coldstart.skeletons.stored import cast_to, fill, find_names, lacking, one_to_one, used
from coldstart.skeletons.wrappers import digest_of

TOLERANCE = 0.01
"""Wide enough for other kernels on other hardware in bfloat16; a wrong layout is off by the whole of a number."""

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class _Built:
    """What a module was like when it left the factory."""

    device: torch.device
    layout: Layout
    declared: Declared
    shared: Mapping[str, Shared]
    dtypes: Mapping[str, torch.dtype]
    """Of what is computed here."""
    wrappers: str
    """Digest of what tensor subclasses are besides their bytes."""


class ModuleSkeleton(Generic[M]):
    """Builds the module that ``factory`` makes; implements :class:`coldstart.ports.Skeleton`.

    Parameters and persistent buffers are carried. Non-persistent buffers and tensors in plain
    attributes, wherever they hide, keep the values the factory gives them, and so do persistent
    buffers that the checkpoint lacks. What is none of these is refused by name. :meth:`classify`
    shows it all.

    Args:
        factory: makes the module, with its usual initialisation, on the device in effect. One that needs an
            argument gets the rank, as the stages of a pipeline do.
        name: name of the builder; by default that of the factory.
        checkpoint_prefix: what the checkpoint puts before this module's names.
        dtype: floating-point parameters are made in this dtype (``bfloat16``) and converted
            when a checkpoint is loaded; empty keeps what the factory makes. Buffers keep theirs.
        runtime: patterns (``*`` and ``?``) of names, such as ``layers.*.cache``, that serving fills and that need no
            value at the start.
        tensor_subclasses: whether parameters that are made of other tensors (traceable wrapper subclasses, such as
            torchao's quantised weights) travel as these; without it, they are refused.
        extra_state: how extra state (``nn.Module.get_extra_state``) becomes bytes and back; without it, a module that
            keeps some is refused.
        probe: a tiny forward whose result must be the same in all workers (:class:`coldstart.ports.Probing`); the
            first 256 numbers of it are compared.
        tolerance: how far they may differ, as a share of the largest.

    Raises:
        ConfigError: ``dtype`` is no floating-point dtype of torch, ``tolerance`` no number from 0 on, or ``runtime``
            one text.
    """

    def __init__(
        self,
        factory: Callable[[], M] | Callable[[Rank], M],
        *,
        name: str = "",
        checkpoint_prefix: str = "",
        dtype: str = "",
        runtime: Collection[str] = (),
        tensor_subclasses: bool = False,
        extra_state: ExtraState | None = None,
        probe: Callable[[M], torch.Tensor] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        if isinstance(runtime, str):  # a collection of letters, one of which may be a *
            raise ConfigError(f"runtime is {runtime!r}", advice=f"it takes several patterns: [{runtime!r}]")
        if not isinstance(tolerance, int | float) or not 0 <= tolerance < inf:
            raise ConfigError(f"tolerance is {tolerance!r}", advice="give a share of the largest number, such as 0.01")
        self._factory = of_rank(factory)
        self._name = name or _name_of(factory)
        self._prefix = checkpoint_prefix
        self._dtype = floating_dtype(dtype) if dtype else None
        self._undeclared = Declared(runtime=tuple(runtime), wrappers=tensor_subclasses)
        self._wrappers = ""
        self._extra_state = extra_state
        self._probe, self._tolerance = probe, tolerance
        self._built: WeakKeyDictionary[nn.Module, _Built] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self._name

    @property
    def identity(self) -> str:
        """Once a module is built, with what its tensor subclasses are besides their bytes (:attr:`wrappers`)."""
        dtype = str(self._dtype).removeprefix("torch.") if self._dtype else ""
        return "/".join(part for part in (self._name, self._prefix, dtype, self.wrappers) if part)

    @property
    def wrappers(self) -> str:
        """A digest of the classes and contexts of tensor subclasses, for :attr:`identity`; empty if there are none."""
        return self._wrappers

    # ------------------------------------------------------------------------------ building

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> M:
        """Run the factory; derived builders make their module here. Parameters are meta already."""
        return self._factory(rank)

    def prepare(self, module: M) -> None:
        """Put right what depends on parameters being without memory, before the inventory is taken."""

    def build(self, checkpoint: Checkpoint | None, rank: Rank, device: str) -> M:
        """See :meth:`coldstart.ports.Skeleton.build`.

        A factory that looks at its parameters' values cannot run without them; it is run again
        with real parameters, which are given up before the arena is allocated.
        """
        module = self.survey(checkpoint, rank, device)
        if refusals := self.classify(module).refusals:
            more = f" (and {len(refusals) - 3} more)" if len(refusals) > 3 else ""
            raise SkeletonError(
                f"{self._name} has state that can be neither carried nor rebuilt: {'; '.join(refusals[:3])}{more}"
            )
        return module

    def survey(self, checkpoint: Checkpoint | None, rank: Rank, device: str) -> M:
        """Like :meth:`build`, but for state that is unsupported: it is for :meth:`classify` to tell."""
        target = device_of(device)
        meta = MetaParameters(self._dtype)
        with self._naming_itself(checkpoint):
            module = self._made(checkpoint, rank, target, meta)
            made: object = module  # a factory may do as it likes, whatever its annotation says
            if not isinstance(made, nn.Module):
                kind = type(made).__name__
                raise SkeletonError(f"the {self._name} factory made a {kind}", advice="it must return an nn.Module")
            meta.sweep(module)
            self.prepare(module)
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                # Some constructors ignore the device in effect (torch.Tensor(...), from_numpy).
                if buffer is not None and not buffer.is_meta and buffer.device != target:
                    owner._buffers[name] = buffer.to(target)
        self._record(module, checkpoint, target)
        return module

    def _made(self, checkpoint: Checkpoint | None, rank: Rank, device: torch.device, meta: MetaParameters) -> M:
        try:
            with meta.while_building():
                return self._on(device, checkpoint, rank)
        except RuntimeError:
            return self._on(device, checkpoint, rank)

    @contextmanager
    def _naming_itself(self, checkpoint: Checkpoint | None) -> Iterator[None]:
        """Whatever a factory or a library raises, as an error that says which builder, and of what."""
        try:
            yield
        except ColdstartError:
            raise
        except Exception as error:
            source = f" of {checkpoint.path}" if checkpoint is not None else ""
            raise SkeletonError(f"{self._name} cannot make its module{source}: {in_a_line(error)}") from error

    def _on(self, device: torch.device, checkpoint: Checkpoint | None, rank: Rank) -> M:
        with torch.inference_mode(False), torch.no_grad(), device:
            return self.make(checkpoint, rank)

    def _record(self, module: M, checkpoint: Checkpoint | None, device: torch.device) -> None:
        extra = encoded(module, self._extra_state, device) if self._extra_state else {}
        declared = replace(self._undeclared, extra=extra, held=self.held(module))
        inventory = self.inventory(module, declared)
        if checkpoint is not None and not inventory.problems:
            declared = replace(declared, local=self.absent(module, inventory, checkpoint))
            inventory = self.inventory(module, declared)
        declared = replace(declared, names=frozenset(item.name for item in inventory.items))
        dtypes = {name: tensor.dtype for name, tensor in inventory.local.items()}
        self._wrappers = self._digest_of_wrappers(module)
        layout = layout_of({} if inventory.problems else inventory.carried)
        self._built[module] = _Built(device, layout, declared, inventory.shared, dtypes, self._wrappers)

    def absent(self, module: M, inventory: Inventory, checkpoint: Checkpoint) -> frozenset[str]:
        """Persistent buffers that the checkpoint lacks: those it has no alias of, and that have values here."""
        stored = self.find_names(module, inventory.carried, checkpoint)
        kept = layout_of(inventory.carried)
        reached = {tensor.storage for tensor in kept.tensors if tensor.name in stored}
        return frozenset(
            tensor.name
            for tensor in kept.tensors
            if tensor.storage not in reached and not inventory.carried[tensor.name].is_meta
        )

    # ---------------------------------------------------------------------- after the arena

    def held(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        """Weights that no submodule registers, by the names they are carried under; for builders to override.

        Asked of a module of this family at any time, also of one that this builder has not made.
        """
        return {}

    def inventory(self, module: M, declared: Declared) -> Inventory:
        """What the module is made of; builders that name tensors differently override it."""
        return take_inventory(module, declared)

    def classify(self, module: M) -> Classification:
        """Every tensor of ``module`` in its class, at any time, also of one that this builder has not built."""
        return self._inventory(module).classification

    def carried(self, module: M) -> Mapping[str, torch.Tensor]:
        return self._inventory(module).carried

    def finalise(self, module: M) -> None:
        """Put local tensors that lay on carried memory back onto it; evaluation mode."""
        carried = self.carried(module)
        with torch.no_grad(), torch.inference_mode(False):
            for shared in self._built[module].shared.values():
                owner, tensor = carried[shared.carried], shared.tensor
                offset = int(owner.storage_offset()) * owner.itemsize + shared.offset
                memory = view_of(owner.untyped_storage(), tensor.dtype, offset, tensor.shape, tensor.stride())
                exchange(module, tensor, memory)
        with self._naming_itself(None):
            module.eval()

    def received(self, module: M) -> None:
        """Give submodules their extra state; see :meth:`coldstart.ports.Receiving.received`."""
        if self._extra_state is not None:
            declared = self._built[module].declared
            arrived = {name: tensor for name, tensor in declared.extra.items() if name not in declared.local}
            put_back(module, self._extra_state, arrived)

    def self_check(self, module: M) -> Sequence[str]:
        """See :meth:`coldstart.ports.Skeleton.self_check`; everything the module holds must be in a class."""
        built = self._built[module]
        inventory = self._inventory(module)
        problems = list(inventory.problems)
        everything = {**inventory.carried, **inventory.local}
        problems += [f"{name} is still on meta" for name, tensor in everything.items() if tensor.is_meta]
        registered = {*inventory.carried, *(name for name, _ in module.named_buffers(remove_duplicate=False))}
        problems += [
            f"{name} is on {everything[name].device}, not on {built.device}"
            for name in registered & everything.keys()
            if everything[name].device not in (built.device, torch.device("meta"))
        ]
        problems += [
            f"{name} became {tensor.dtype}, it was built as {built.dtypes[name]}"
            for name, tensor in inventory.local.items()
            if built.dtypes.get(name, tensor.dtype) != tensor.dtype
        ]
        if missing := sorted(built.shared.keys() - inventory.shared.keys()):
            problems.append(f"{missing[0]} no longer lies on the memory of {built.shared[missing[0]].carried}")
        if self._digest_of_wrappers(module) != built.wrappers:
            problems.append("its tensor subclasses are not those that it was built with")
        if not problems:
            problems += differences(layout_of(inventory.carried, built.layout.chunk_bytes), built.layout)
            homes = {tensor.untyped_storage()._cdata for tensor in inventory.carried.values() if tensor.numel()}
            if len(homes) > 1:
                problems.append(f"carried tensors lie in {len(homes)} allocations, not in one arena")
        return problems

    def probe(self, module: M) -> Probe | None:
        """See :meth:`coldstart.ports.Probing.probe`."""
        if self._probe is None:
            return None
        made: object = self._probe(module)
        if not isinstance(made, torch.Tensor):
            raise TypeError(f"a tensor is needed, not a {type(made).__name__}")
        given = made.detach()
        given = torch.view_as_real(given) if given.is_complex() else given
        numbers = given.flatten()[:MOST_NUMBERS].double().cpu().tolist()
        return Probe(_name_of(self._probe), tuple(numbers), self._tolerance)

    def _digest_of_wrappers(self, module: M) -> str:
        return digest_of(module) if self._undeclared.wrappers else ""

    def _inventory(self, module: M) -> Inventory:
        built = self._built.get(module)
        declared = built.declared if built else self._undeclared
        return self.inventory(module, replace(declared, held=self.held(module)))

    # --------------------------------------------------------------------------- checkpoint

    def find_names(
        self, module: M, carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint
    ) -> Mapping[str, str]:
        """Carried name to checkpoint name, for those there are; libraries that rename override it."""
        return find_names(carried, checkpoint, self._prefix)

    def find_stored(self, module: M, checkpoint: Checkpoint) -> Mapping[str, StoredAs]:
        """Where the checkpoint has each carried tensor, as it is or not; libraries that merge some override it."""
        carried = self.carried(module)
        names = self.find_names(module, carried, checkpoint)
        return names if self._dtype is None else cast_to(carried, checkpoint, names)

    def stored_names(self, module: M, checkpoint: Checkpoint) -> Mapping[str, StoredAs] | None:
        return one_to_one(self.carried(module), checkpoint, self.find_stored(module, checkpoint))

    def lacking(self, module: M, checkpoint: Checkpoint) -> Sequence[str]:
        """In words, which carried tensors ``checkpoint`` has no value for, as far as names and shapes tell."""
        carried = self.carried(module)
        return lacking(carried, checkpoint, self.find_names(module, carried, checkpoint))

    def unused(self, module: M, checkpoint: Checkpoint) -> Sequence[str]:
        """The tensors of ``checkpoint`` that are none of the module's, where it maps one to one."""
        return sorted(checkpoint.tensors.keys() - used(self.find_stored(module, checkpoint).values()))

    def load(self, module: M, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint's tensors in place, converting them only if a dtype was asked for."""
        carried = self.carried(module)
        fill(carried, checkpoint, self.find_names(module, carried, checkpoint), cast=self._dtype is not None)


def floating_dtype(name: str) -> torch.dtype:
    """The torch dtype called ``name``; raises ConfigError if it is none or not floating-point."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"{name!r} is not a floating-point dtype", advice="use one such as bfloat16 or float16")
    return dtype


def of_rank(factory: Callable[[], M] | Callable[[Rank], M]) -> Callable[[Rank], M]:
    """``factory`` as a function of the rank, whether it needs to know it or not."""
    try:
        needed = [each for each in signature(factory).parameters.values() if each.default is each.empty]
    except (TypeError, ValueError):  # made in C: it says nothing of itself
        needed = []
    if any(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in needed):
        return cast("Callable[[Rank], M]", factory)
    alone = cast("Callable[[], M]", factory)
    return lambda rank: alone()


def _name_of(factory: object) -> str:
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{named.__module__}.{named.__qualname__}"
