"""What a module is made of, and what becomes of it: carried, recomputed, runtime or unsupported.

Decides by registration and by what a builder declares, never by value: parameters and persistent
buffers are carried, every alias under its own name; non-persistent buffers and tensors in plain
attributes are computed locally, because a peer's may have changed while it served. Where that
cannot be known to be right, the state is unsupported. It must not know checkpoints, nor how the
module was built. What is not registered is found by ``walk.py``; builders turn what is
unsupported into one SkeletonError (``module.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from coldstart.classification import Classification, ClassifiedTensor, Kind, Treatment
from coldstart.skeletons.adoption import byte_range, not_plain
from coldstart.skeletons.extra import keepers
from coldstart.skeletons.walk import Found, TooMuch, unregistered
from coldstart.skeletons.wrappers import by_part, is_wrapper, obstacle, parts, wrappers

_SHARDED = "FullyShardedDataParallel"
_BY_FACTORY = "is not registered as state: the factory computes it here"


@dataclass(frozen=True)
class Declared:
    """What a builder knows that registration does not say.

    Args:
        local: names of persistent buffers that are computed here after all.
        runtime: patterns (``*`` and ``?``) of names that serving fills, and that need no value at the start.
        extra: names of extra state that is carried, to the tensor that carries it.
        held: tensors that no submodule registers, but that are weights, by the names they are carried under.
        wrappers: whether tensors made of other tensors may travel as these (``wrappers.py``).
        names: all there was when the module was built; None while it is being built.
    """

    local: Collection[str] = ()
    runtime: Collection[str] = ()
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    held: Mapping[str, torch.Tensor] = field(default_factory=dict)
    wrappers: bool = False
    names: Collection[str] | None = None


@dataclass(frozen=True)
class Shared:
    """A local tensor whose bytes lie inside a carried one; ``offset`` in bytes from its first."""

    tensor: torch.Tensor
    carried: str
    offset: int


@dataclass(frozen=True)
class Item:
    """One tensor with its class; ``tensor`` is None for state that is none.

    ``derived`` tensors are made again before every forward, so that their memory means nothing.
    """

    name: str
    kind: Kind
    treatment: Treatment
    tensor: torch.Tensor | None
    reason: str = ""
    derived: bool = False

    def refused(self, reason: str) -> Item:
        return replace(self, treatment="unsupported", reason=reason)


@dataclass(frozen=True)
class Inventory:
    """Every tensor of a module, by dotted name, each in exactly one class.

    ``shared`` are those of the recomputed ones that lie on carried memory.
    """

    items: tuple[Item, ...]
    shared: Mapping[str, Shared]

    @property
    def carried(self) -> Mapping[str, torch.Tensor]:
        """What travels, in the order of the stream."""
        return self._of("carried")

    @property
    def local(self) -> Mapping[str, torch.Tensor]:
        """What is computed here before the weights arrive, and has memory of its own."""
        derived = {item.name for item in self.items if item.derived}
        return {name: each for name, each in self._of("recomputed").items() if name not in {*self.shared, *derived}}

    @property
    def problems(self) -> tuple[str, ...]:
        """In words, what can be neither carried nor rebuilt."""
        return self.classification.refusals

    @property
    def classification(self) -> Classification:
        """The same without the tensors."""
        return Classification(tuple(_written(item) for item in self.items))

    def _of(self, treatment: Treatment) -> dict[str, torch.Tensor]:
        wanted = [item for item in self.items if item.treatment == treatment]
        return {item.name: item.tensor for item in wanted if item.tensor is not None}


def take_inventory(module: nn.Module, declared: Declared | None = None) -> Inventory:
    """Walk ``module`` and put everything it holds into its class."""
    declared = declared or Declared()
    items = [*_registered(module, declared)]
    items += [Item(name, "nested attribute", "carried", tensor) for name, tensor in declared.held.items()]
    try:
        items += _unregistered(module, items, declared)
    except TooMuch as error:
        reason = "holds more objects than are looked through; keep data that is no weight out of the module"
        items.append(Item(str(error), "nested attribute", "unsupported", None, reason))
    names = Counter(item.name for item in items if item.treatment == "carried")
    items = [
        item.refused("is the name of two tensors; rename one") if names[item.name] > 1 else _judged(item, declared)
        for item in items
    ]
    shared: dict[str, Shared] = {}
    if not any(item.treatment == "unsupported" for item in items):
        shared, problems = _sharing(items)
        items = [_with_memory(item, shared, problems) for item in items]
    return Inventory(tuple(items), shared)


# ------------------------------------------------------------------------------------- what there is


def _registered(module: nn.Module, declared: Declared) -> Iterator[Item]:
    """Parameters, buffers and extra state of every submodule, under every name."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, parameter in owner._parameters.items():
            for full, tensor in _travelling(_join(path, name), parameter, declared):
                yield Item(full, "parameter", "carried", tensor)
        for name, buffer in owner._buffers.items():
            if name in owner._non_persistent_buffers_set:
                if buffer is not None:
                    reason = "is not stored, and so computed here"
                    yield Item(_join(path, name), "non-persistent buffer", "recomputed", buffer, reason)
                continue
            for full, tensor in _travelling(_join(path, name), buffer, declared):
                if full not in declared.local:
                    yield Item(full, "persistent buffer", "carried", tensor)
                else:
                    yield Item(full, "persistent buffer", "recomputed", tensor, "is not in the checkpoint")
        if type(owner).__name__ == _SHARDED:
            reason = "is sharded by FSDP; build a rank's part before it is wrapped, and cold-start that"
            yield Item(path or "the module", "attribute", "unsupported", None, reason)
    for name, owner in keepers(module):
        yield _extra(name, owner, declared)


def _travelling(name: str, tensor: torch.Tensor | None, declared: Declared) -> Iterable[tuple[str, torch.Tensor]]:
    """What of a registered tensor travels: itself, or the parts of a wrapper."""
    if tensor is None:
        return ()
    if not declared.wrappers or _is_runtime(name, declared):
        return ((name, tensor),)
    return by_part(name, tensor).items()


def _extra(name: str, owner: nn.Module, declared: Declared) -> Item:
    if name in declared.local:
        return Item(name, "extra state", "recomputed", declared.extra.get(name), "is not in the checkpoint")
    if name in declared.extra:
        return Item(name, "extra state", "carried", declared.extra[name])
    who = f"{name.removesuffix('_extra_state').removesuffix('.') or 'the module'} ({type(owner).__name__})"
    reason = f"is refused: {who} keeps extra state outside its tensors; declare a codec (extra_state=)"
    return Item(name, "extra state", "unsupported", None, reason)


def _unregistered(module: nn.Module, registered: list[Item], declared: Declared) -> Iterator[Item]:
    """What is in plain attributes, unless it is a registered tensor by another way."""
    wrapped = dict(wrappers(module))
    known = {id(item.tensor) for item in registered} | {id(wrapper) for wrapper in wrapped.values()}
    known.update(id(part) for wrapper in wrapped.values() for part in parts(wrapper).values())
    inside = tuple(f"{name}." for name in wrapped)
    storages = {
        item.tensor.untyped_storage()._cdata
        for item in registered
        if item.treatment == "carried" and item.tensor is not None and not not_plain(item.tensor)
    }
    derived = _derived(module)
    for found in unregistered(module):
        kind: Kind = "attribute" if found.bare else "nested attribute"
        if isinstance(found.value, nn.Module):
            reason = "is a module with tensors in a plain attribute; register it (nn.ModuleList)"
            yield Item(found.name, kind, "unsupported", None, reason)
        elif id(found.value) in known:
            continue
        elif found.name in derived:
            reason = "is computed by a hook before every forward"
            yield Item(found.name, kind, "recomputed", found.value, reason, derived=True)
        elif found.name.startswith(inside) and declared.wrappers:
            reason = "is kept by a tensor made of others besides those it names; keep it out of it"
            yield Item(found.name, kind, "unsupported", found.value, reason)
        elif _is_weight(found, storages):
            reason = "is a parameter in a plain attribute; register it (nn.ParameterList)"
            yield Item(found.name, kind, "unsupported", found.value, reason)
        else:
            yield Item(found.name, kind, "recomputed", found.value, _BY_FACTORY)


def _is_weight(found: Found, carried: Collection[int]) -> bool:
    """Whether it is a parameter that nothing registered, or the memory of, is carried."""
    value = found.value
    if not isinstance(value, nn.Parameter):
        return False
    return bool(not_plain(value)) or value.untyped_storage()._cdata not in carried


def _derived(module: nn.Module) -> set[str]:
    """Plain attributes that a hook computes again before every forward.

    ``weight_norm``, ``spectral_norm`` (their older forms) and pruning name them in the hook.
    """
    found: set[str] = set()
    for path, owner in module.named_modules():
        for hook in owner._forward_pre_hooks.values():
            name = getattr(hook, "name", None) or getattr(hook, "_tensor_name", None)
            if isinstance(name, str):
                found.add(_join(path, name))
    return found


# --------------------------------------------------------------------------------- what becomes of it


def _judged(item: Item, declared: Declared) -> Item:
    """``item`` in its final class, as far as one tensor alone can say."""
    if item.treatment == "unsupported":
        return item
    if _is_runtime(item.name, declared):
        if item.kind == "parameter":
            return item.refused("is declared as runtime but is a parameter; make it a buffer")
        return replace(item, treatment="runtime", reason="is declared by the builder: serving fills it")
    if declared.names is not None and item.name not in declared.names:
        return item.refused("appeared after the module was built; declare it as runtime, or make it in the constructor")
    if item.tensor is None or item.derived:
        return item
    reason = not_plain(item.tensor)
    if is_wrapper(item.tensor) and not (declared.wrappers or obstacle(item.tensor)):
        reason += "; let its parts travel (tensor_subclasses=True)"
    if reason and (item.treatment == "carried" or item.tensor.is_meta):
        return item.refused(f"is {reason}")
    return item


def _is_runtime(name: str, declared: Declared) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in declared.runtime)


def _with_memory(item: Item, shared: Mapping[str, Shared], problems: Mapping[str, str]) -> Item:
    if item.name in problems:
        return item.refused(problems[item.name])
    if item.name in shared:
        return replace(item, reason=f"lies on the memory of {shared[item.name].carried}, which is carried")
    return item


def _sharing(items: Collection[Item]) -> tuple[dict[str, Shared], dict[str, str]]:
    """Local tensors on carried memory; and problems: half on it, or without memory of their own."""
    owners: dict[int, list[tuple[int, int, str]]] = {}
    for item in items:
        if item.treatment == "carried" and item.tensor is not None and item.tensor.numel():
            owners.setdefault(_storage(item.tensor), []).append((*byte_range(item.tensor), item.name))
    shared: dict[str, Shared] = {}
    problems: dict[str, str] = {}
    for item in items:
        tensor = item.tensor
        if item.treatment == "carried" or item.derived or tensor is None or not_plain(tensor) or not tensor.numel():
            continue
        low, high = byte_range(tensor)
        touched = [each for each in owners.get(_storage(tensor), ()) if low < each[1] and each[0] < high]
        around = [(start, owner) for start, end, owner in touched if start <= low and high <= end]
        if around and item.treatment == "recomputed":
            shared[item.name] = Shared(tensor, around[0][1], low - around[0][0])
        elif touched:
            problems[item.name] = f"is not carried but holds the memory of {touched[0][2]}, which is"
        elif tensor.is_meta:
            problems[item.name] = "was computed from parameters, which have no values yet; compute it when used"
    return shared, problems


def _storage(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _written(item: Item) -> ClassifiedTensor:
    tensor = item.tensor
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return ClassifiedTensor(item.name, item.kind, item.treatment, reason=item.reason)
    return ClassifiedTensor(
        name=item.name,
        kind=item.kind,
        treatment=item.treatment,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        nbytes=tensor.numel() * tensor.itemsize,
        reason=item.reason,
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
