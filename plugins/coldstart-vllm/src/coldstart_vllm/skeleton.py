"""A module that vLLM has made, as a skeleton: its parameters lose their memory and get coldstart's.

Decides what is carried (vLLM's model format: what ``load_weights`` fills, before it is processed for
kernels), what is kept of the values that vLLM's constructors gave, and when a filled module may become
the truth for others. vLLM's own loader fills it (``fill``), in vLLM's own thread (``relay.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import torch
from torch import nn

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint, Rank
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.module import ModuleSkeleton
from coldstart_vllm.witness import changes, state_of

SMALL_BYTES = 64 * 1024
"""Parameters up to this size keep what their constructor has given them until something better comes: scales
that a checkpoint may lack have meaningful defaults."""

Fill = Callable[[nn.Module], Set[str] | None]
"""vLLM's default loader: fills the module, returns the names that it has loaded, or None if the model does not say."""


class EngineSkeleton(ModuleSkeleton[nn.Module]):
    """Implements :class:`coldstart.ports.Skeleton` for one module that exists already.

    Args:
        module: fresh from its constructor, on its device.
        identity: everything that changes bytes; see ``facts.py``.

    ``filled`` is true once ``fill`` has ended well: the module is then as vLLM alone would have it,
    even where a cold start of it fails.
    """

    def __init__(self, module: nn.Module, identity: str, fill: Fill, *, leaves_memory: bool = False) -> None:
        super().__init__(lambda: module, name="vllm")
        self._identity, self._fill = identity, fill
        self.leaves_memory = leaves_memory
        """See :class:`coldstart.ports.Leaving`: vLLM replaces tensors, and what was verified is lent all the same."""
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._kept: dict[str, torch.Tensor] = {}
        self.filled = False

    @property
    def identity(self) -> str:
        return self._identity

    def impossible(self, module: nn.Module) -> tuple[str, ...]:
        """State that can be neither carried nor rebuilt, in words; looks only."""
        return tuple(self.classify(module).refusals)

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> nn.Module:
        module = super().make(checkpoint, rank)
        self._kept = {
            name: parameter.detach().clone()
            for name, parameter in module.named_parameters()
            if parameter.nbytes <= SMALL_BYTES and not parameter.is_meta
        }
        return module

    def finalise(self, module: nn.Module) -> None:
        """See :meth:`coldstart.ports.Skeleton.finalise`.

        Raises:
            SkeletonError: torch gave a parameter new memory only as a new object; vLLM may hold the old one.
        """
        super().finalise(module)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter is not self._parameters.get(name):
                raise SkeletonError(f"{name} cannot be given other memory: something depends on where it lies")
        with torch.no_grad(), torch.inference_mode(False):
            for name, values in self._kept.items():
                if values.numel():
                    elements(self._parameters[name]).copy_(elements(values))

    def stored_names(self, module: nn.Module, checkpoint: Checkpoint) -> Mapping[str, str] | None:
        """None always: what vLLM makes of a stored tensor is vLLM's to know, even where name and shape are equal."""
        return None

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        """Fill by vLLM's default loader, and prove that what the carried tensors hold is all that it did.

        Raises:
            SkeletonError: it has not filled all of them, or has done more.
        """
        carried = self.carried(module)
        before = state_of(module, carried.values())
        loaded = self._fill(module)
        if missing := self._not_filled(carried, loaded):
            raise SkeletonError(missing)
        self.filled = True
        if changed := changes(before, state_of(module, carried.values())):
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise SkeletonError(
                f"load_weights of {type(module).__name__} does more than fill tensors: it changes "
                f"{', '.join(changed[:3])}{more}"
            )

    def _not_filled(self, carried: Mapping[str, torch.Tensor], loaded: Set[str] | None) -> str:
        """Why the carried tensors cannot be trusted to hold what they should; empty if they can."""
        if loaded is None:
            return "the model does not say which weights its load_weights has filled"
        places = {carried[name].data_ptr() for name in loaded if name in carried}
        kept = {self._parameters[name].data_ptr() for name in self._kept}
        for name, tensor in carried.items():
            if tensor.numel() and tensor.data_ptr() not in places | kept and name in self._parameters:
                return f"load_weights has not filled {name}"
        return ""
