"""A pipeline of the user's own: components, each on the ranks that host it, some of which load in their constructors.

Decides which components a rank builds, what the checkpoint calls their tensors, and where the values
of a component come from that the checkpoint does not have. All else is an ordinary module
(``module.py``): a rank's module is an ``nn.ModuleDict`` of its components, so that names are
prefixed by the component's, and only equal ranks exchange weights.

    pipeline = PipelineSkeleton(
        {"text": Text, "unet": Component(UNet, prefix="model.diffusion_model."), "vae": Component(Vae, eager=True)},
        hosts={"text": 0, "unet": 1, "vae": (0, 1)},
    )
    async with coldstart.join(path, skeleton=pipeline, rank=Rank(pp=index, pp_size=2)) as replica:
        replica.module["unet"]

A component that loads weights *eagerly*, in its constructor, is built with loaders that give shapes and
no values (``unread.py``): nothing of its weights is read while peers serve. Only where storage must be read
and the checkpoint lacks its tensors is the constructor run as it is, on the CPU, and what it has loaded
copied. What such a constructor reads is not part of the checkpoint's fingerprint: two workers whose files
differ find that out when digests are compared, and ``revision=`` keeps such versions apart on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import nn

from coldstart.errors import ConfigError, SkeletonError
from coldstart.identity import Rank
from coldstart.ports import Checkpoint
from coldstart.skeletons.adoption import elements, layout_of
from coldstart.skeletons.classify import Declared, Inventory
from coldstart.skeletons.module import TOLERANCE, ModuleSkeleton, of_rank
from coldstart.skeletons.stored import fill, find_names
from coldstart.skeletons.unread import without_reading

Factory = Callable[[], nn.Module] | Callable[[Rank], nn.Module]


@dataclass(frozen=True)
class Component:
    """One node of the graph.

    Args:
        factory: makes it; one that needs an argument gets the rank.
        prefix: what the checkpoint puts before its names: its subfolder's name and a dot in a checkpoint of
            several models. None for the component's own name and a dot.
        eager: whether its constructor loads its weights.
    """

    factory: Factory
    prefix: str | None = None
    eager: bool = False


class PipelineSkeleton(ModuleSkeleton[nn.ModuleDict]):
    """Builds the components that a rank hosts.

    Args:
        components: by name, in the order in which they are built and streamed; a bare factory is a component of
            the usual kind.
        hosts: the pipeline ranks (``Rank.pp``) of each component; one that is not named is on every rank.
        name, dtype, runtime, probe, tolerance: see :class:`coldstart.skeletons.module.ModuleSkeleton`.

    Raises:
        ConfigError: ``hosts`` names no component, or no rank, or one below 0; else as there.
    """

    def __init__(
        self,
        components: Mapping[str, Component | Factory],
        *,
        hosts: Mapping[str, int | Collection[int]] | None = None,
        name: str = "pipeline",
        dtype: str = "",
        runtime: Collection[str] = (),
        probe: Callable[[nn.ModuleDict], torch.Tensor] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        super().__init__(
            nn.ModuleDict, name=name, dtype=dtype, runtime=runtime, probe=probe, tolerance=tolerance
        )
        self._components = {
            key: each if isinstance(each, Component) else Component(each) for key, each in components.items()
        }
        self._hosts = {key: _ranks_of(key, where) for key, where in (hosts or {}).items()}
        if unknown := sorted(self._hosts.keys() - self._components.keys()):
            raise ConfigError(f"hosts names {unknown[0]!r}, which is no component of the pipeline")
        if below := [key for key, where in self._hosts.items() if any(index < 0 for index in where)]:
            raise ConfigError(f"hosts puts {below[0]!r} on a rank below 0")
        self._ranks: WeakKeyDictionary[nn.Module, Rank] = WeakKeyDictionary()
        self._unfilled: WeakKeyDictionary[nn.Module, list[torch.Tensor]] = WeakKeyDictionary()

    @property
    def identity(self) -> str:
        """Also which component is where: it decides what a rank's stream is made of."""
        placed = ",".join(f"{key}@{'+'.join(map(str, sorted(self._hosts.get(key, ()))))}" for key in self._components)
        return f"{super().identity}/{placed}"

    def hosted(self, rank: Rank) -> tuple[str, ...]:
        """Names of the components that ``rank`` builds."""
        return tuple(key for key in self._components if key not in self._hosts or rank.pp in self._hosts[key])

    # ------------------------------------------------------------------------------ building

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> nn.ModuleDict:
        hosted = self.hosted(rank)
        if lost := sorted(key for key, where in self._hosts.items() if max(where, default=0) >= rank.pp_size):
            raise ConfigError(f"component {lost[0]!r} is on a rank that a pipeline of {rank.pp_size} does not have")
        if not hosted:
            raise ConfigError(f"rank pp={rank.pp} hosts no component", advice="name it in hosts")
        module, unfilled = nn.ModuleDict(), []
        for key in hosted:
            made, left_out = self._component(key, rank)
            module[key] = made
            unfilled += left_out
        self._ranks[module], self._unfilled[module] = rank, unfilled
        return module

    def _component(self, key: str, rank: Rank) -> tuple[nn.Module, list[torch.Tensor]]:
        component = self._components[key]
        if not component.eager:
            return _checked(key, of_rank(component.factory)(rank)), []
        with without_reading() as unfilled:
            return _checked(key, of_rank(component.factory)(rank)), unfilled.tensors

    def inventory(self, module: nn.ModuleDict, declared: Declared) -> Inventory:
        """A tensor that a constructor was to fill from a file, and that is not carried, has no value here."""
        inventory = super().inventory(module, declared)
        unfilled = {id(tensor) for tensor in self._unfilled.get(module, ())}
        items = tuple(
            item.refused("is filled from a file by its constructor, but is not registered as persistent state")
            if item.treatment == "recomputed" and id(item.tensor) in unfilled
            else item
            for item in inventory.items
        )
        return replace(inventory, items=items)

    # --------------------------------------------------------------------------- checkpoint

    def absent(self, module: nn.ModuleDict, inventory: Inventory, checkpoint: Checkpoint) -> frozenset[str]:
        """What an eager constructor loads is carried, whether the checkpoint has it or not."""
        found = super().absent(module, inventory, checkpoint)
        return frozenset(name for name in found if not self._components[name.partition(".")[0]].eager)

    def find_names(
        self, module: nn.ModuleDict, carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint
    ) -> Mapping[str, str]:
        names: dict[str, str] = {}
        for key in module:
            prefix = self._components[key].prefix
            own = [name.removeprefix(f"{key}.") for name in carried if name.startswith(f"{key}.")]
            found = find_names(own, checkpoint, f"{key}." if prefix is None else prefix)
            names.update({f"{key}.{name}": stored for name, stored in found.items()})
        return names

    def load(self, module: nn.ModuleDict, checkpoint: Checkpoint) -> None:
        """From the checkpoint what it has, and from eager constructors the rest.

        Raises:
            SkeletonError: neither has it, or it has another shape or dtype.
        """
        carried = self.carried(module)
        names = self.find_names(module, carried, checkpoint)
        here = layout_of(carried)
        reached = {tensor.storage for tensor in here.tensors if tensor.name in names}
        missing = {t.name for t in here.tensors if t.storage >= 0 and t.storage not in reached}
        for key in module:
            own = {name: carried[name] for name in carried if name in missing and name.startswith(f"{key}.")}
            if own and self._components[key].eager:
                self._construct(key, own, self._ranks[module])
                missing -= own.keys()
        storages = {tensor.storage for tensor in here.tensors if tensor.name in missing} | reached
        rest = {tensor.name: carried[tensor.name] for tensor in here.tensors if tensor.storage in storages}
        fill(rest, checkpoint, {name: names[name] for name in rest if name in names}, cast=self._dtype is not None)

    def _construct(self, key: str, wanted: Mapping[str, torch.Tensor], rank: Rank) -> None:
        """Run the constructor as it is, and copy what it has loaded."""
        with torch.device("cpu"):
            loaded = _checked(key, of_rank(self._components[key].factory)(rank))
        values = {
            **dict(loaded.named_parameters(remove_duplicate=False)),
            **dict(loaded.named_buffers(remove_duplicate=False)),
        }
        for name, tensor in wanted.items():
            value = values.get(name.removeprefix(f"{key}."))
            if value is None or value.shape != tensor.shape or (value.dtype != tensor.dtype and self._dtype is None):
                raise SkeletonError(f"the constructor of {key} gives another {name} when it reads its weights")
            if value.dtype == tensor.dtype and value.stride() == tensor.stride():
                elements(tensor).copy_(elements(value))
            else:
                tensor.copy_(value)


def _ranks_of(key: str, where: object) -> frozenset[int]:
    several = where if isinstance(where, Collection) else [where]
    if not all(isinstance(index, int) for index in several):
        raise ConfigError(f"hosts puts {key!r} on {where!r}", advice="give a rank, or several")
    return frozenset(several)


def _checked(key: str, made: object) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise SkeletonError(f"component {key} was made as a {type(made).__name__}", advice="return an nn.Module")
    return made
