"""The skeleton of whatever diffusers has saved: one model, or a pipeline of several.

Decides which builder makes which part, and gives the parts' tensors and names the component's name
as a prefix. A single model is a part without one. Nothing is ever fetched and no code from a
checkpoint is run. One model is built in ``model.py``, a pipeline is described in ``manifest.py`` and
put together in ``pipeline.py``; which rank hosts what is in ``hosting.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import cast
from weakref import WeakKeyDictionary

import msgspec
import torch
from coldstart_transformers.skeleton import TransformersSkeleton
from diffusers.models.modeling_utils import ModelMixin
from torch import nn
from transformers import PreTrainedModel

from coldstart.classification import Classification
from coldstart.errors import SkeletonError
from coldstart.ports import Cast, Checkpoint, Rank, StoredAs, StoredRange
from coldstart.skeletons.module import ModuleSkeleton
from coldstart_diffusers.hosting import Components, hosted, written
from coldstart_diffusers.manifest import read_manifest
from coldstart_diffusers.model import ModelSkeleton, refuse_quantised
from coldstart_diffusers.pipeline import assemble

_BUILDING = Lock()
"""torch's default dtype belongs to the process: two who set it and set it back would leave it wrong."""


@dataclass(frozen=True)
class _Part:
    """One model of what was built. ``name`` is its component's, or empty for a model by itself."""

    name: str
    skeleton: ModuleSkeleton[nn.Module]
    checkpoint: Checkpoint

    def of(self, whole: nn.Module) -> nn.Module:
        return whole.get_submodule(self.name)

    def full(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def stored_as(self, stored: StoredAs) -> StoredAs:
        return Cast(self._stored(stored.stored)) if isinstance(stored, Cast) else self._stored(stored)

    def _stored(self, stored: str | tuple[StoredRange, ...]) -> str | tuple[StoredRange, ...]:
        if isinstance(stored, str):
            return self.full(stored)
        return tuple(StoredRange(self.full(each.tensor), each.offset, each.length) for each in stored)


class DiffusersSkeleton(ModuleSkeleton[nn.Module]):
    """Builds the model or the pipeline that ``from_pretrained`` would load, without its weights.

    Args:
        dtype: as ``from_pretrained(torch_dtype=...)``; empty for the one that each model is stored in.
        components: which rank hosts which component of a pipeline.
    """

    def __init__(self, *, dtype: str = "", components: Components = None) -> None:
        super().__init__(_no_factory, name="diffusers")
        self._model_dtype, self._components = dtype, components
        self._model = ModelSkeleton(dtype=dtype)
        self._parts: WeakKeyDictionary[nn.Module, tuple[_Part, ...]] = WeakKeyDictionary()

    @property
    def identity(self) -> str:
        return "/".join(part for part in (self._model.identity, written(self._components)) if part)

    # ------------------------------------------------------------------------------ building

    def survey(self, checkpoint: Checkpoint | None, rank: Rank, device: str) -> nn.Module:
        """The module with every tensor in its class; refuses what cannot be made at all."""
        with _BUILDING, self._naming_itself(checkpoint):
            if checkpoint is not None and checkpoint.components:
                return self._pipeline(checkpoint, rank, device)
            return self._single(checkpoint, rank, device)

    def _single(self, checkpoint: Checkpoint | None, rank: Rank, device: str) -> nn.Module:
        module = self._model.survey(checkpoint, rank, device)
        assert checkpoint is not None, "a model is made from a checkpoint"
        self._parts[module] = (_Part("", self._model, checkpoint),)
        return module

    def _pipeline(self, checkpoint: Checkpoint, rank: Rank, device: str) -> nn.Module:
        manifest = read_manifest(checkpoint)
        here = hosted(self._components, rank, manifest.models.keys())
        parts = tuple(
            _Part(name, self._builder(manifest.models[name]), checkpoint.components[name]) for name in sorted(here)
        )
        models: dict[str, nn.Module] = {}
        for part in parts:
            refuse_quantised(part.checkpoint)
            models[part.name] = part.skeleton.survey(part.checkpoint, rank, device)
        module = assemble(checkpoint.path, manifest, models)
        self._parts[module] = parts
        return module

    def _builder(self, found: type[nn.Module]) -> ModuleSkeleton[nn.Module]:
        if issubclass(found, ModelMixin):
            return ModelSkeleton(dtype=self._model_dtype, model=found)
        assert issubclass(found, PreTrainedModel)
        builder = TransformersSkeleton(dtype=self._model_dtype, model=found)
        return cast("ModuleSkeleton[nn.Module]", builder)

    # ---------------------------------------------------------------------- after the arena

    def classify(self, module: nn.Module) -> Classification:
        return Classification(
            tuple(
                msgspec.structs.replace(each, name=part.full(each.name))
                for part, model in self._built_parts(module)
                for each in part.skeleton.classify(model).tensors
            )
        )

    def carried(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        return {
            part.full(name): tensor
            for part, model in self._built_parts(module)
            for name, tensor in part.skeleton.carried(model).items()
        }

    def finalise(self, module: nn.Module) -> None:
        for part, model in self._built_parts(module):
            part.skeleton.finalise(model)
        module.eval()

    def received(self, module: nn.Module) -> None:
        for part, model in self._built_parts(module):
            part.skeleton.received(model)

    def self_check(self, module: nn.Module) -> Sequence[str]:
        return [
            f"{part.name}: {problem}" if part.name else problem
            for part, model in self._built_parts(module)
            for problem in part.skeleton.self_check(model)
        ]

    # --------------------------------------------------------------------------- checkpoint

    def find_names(
        self, module: nn.Module, carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint
    ) -> Mapping[str, str]:
        return {
            part.full(name): part.full(stored)
            for part, model in self._built_parts(module)
            for name, stored in part.skeleton.find_names(
                model, part.skeleton.carried(model), part.checkpoint
            ).items()
            if part.full(name) in carried
        }

    def find_stored(self, module: nn.Module, checkpoint: Checkpoint) -> Mapping[str, StoredAs]:
        return {
            part.full(name): part.stored_as(stored)
            for part, model in self._built_parts(module)
            for name, stored in part.skeleton.find_stored(model, part.checkpoint).items()
        }

    def stored_names(self, module: nn.Module, checkpoint: Checkpoint) -> Mapping[str, StoredAs] | None:
        """The names of all parts, or None where one of them does not map byte for byte."""
        found: dict[str, StoredAs] = {}
        for part, model in self._built_parts(module):
            names = part.skeleton.stored_names(model, part.checkpoint)
            if names is None:
                return None
            found.update({part.full(name): part.stored_as(stored) for name, stored in names.items()})
        return found

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        """Fill one part after the other, each in the way of its library."""
        for part, model in self._built_parts(module):
            part.skeleton.load(model, part.checkpoint)

    def _built_parts(self, module: nn.Module) -> Iterator[tuple[_Part, nn.Module]]:
        if module not in self._parts:
            raise SkeletonError(f"a {type(module).__name__} that this skeleton has not built")
        for part in self._parts[module]:
            yield part, part.of(module)


def _no_factory() -> nn.Module:
    raise NotImplementedError("diffusers models are made from a checkpoint")
