"""The skeleton of one diffusers model: built from its ``config.json``, filled like ``from_pretrained`` would.

Decides the class and the dtype of every tensor, and under which names the checkpoint has them.
Everything else is an ordinary module (``coldstart.skeletons``). diffusers does nothing to weights
but converting their dtype, so the stored ones are read straight into place, and cast on the way. Which models make a
pipeline is in ``manifest.py``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import diffusers
import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint, Rank, StoredAs
from coldstart.skeletons.adoption import exchange
from coldstart.skeletons.module import ModuleSkeleton, floating_dtype
from coldstart.skeletons.stored import cast_to, fill
from coldstart_diffusers.quiet import quiet

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})
"""What a model can be computed in; others are only stored."""


class ModelSkeleton(ModuleSkeleton[nn.Module]):
    """Builds the model that ``from_pretrained`` would load, without its weights.

    Args:
        dtype: as ``from_pretrained(torch_dtype=...)``; empty for the dtype that most of the weights are stored in.
        model: the class; by default the one that ``config.json`` names.
    """

    def __init__(self, *, dtype: str = "", model: type[ModelMixin] | None = None) -> None:
        super().__init__(_no_factory, name="diffusers")
        self._requested = floating_dtype(dtype) if dtype else None
        self._class = model

    @property
    def identity(self) -> str:
        dtype = str(self._requested).removeprefix("torch.") if self._requested else ""
        return "/".join(part for part in ("diffusers", dtype) if part)

    # ------------------------------------------------------------------------------ building

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> nn.Module:
        """The model on the device in effect; raises SkeletonError if diffusers cannot make it."""
        if checkpoint is None or checkpoint.config is None or not checkpoint.path.is_dir():
            lacking = f", and {checkpoint.path} has none" if checkpoint is not None else ""
            raise SkeletonError(
                f"a diffusers skeleton needs a checkpoint directory with a config.json or a model_index.json{lacking}",
                advice="use the tensors skeleton for bare weights",
            )
        refuse_quantised(checkpoint)
        found = self._class or named_class(checkpoint)
        dtype = self._requested or stored_dtype(checkpoint)
        # Where all is float32 already, from_pretrained is not asked for a dtype: it then converts nothing.
        asked = self._requested or (dtype if dtype != torch.float32 else None)
        with quiet(), default_dtype(dtype):
            configured = cast("type[ConfigMixin]", found)
            config = configured.load_config(str(checkpoint.path), local_files_only=True)
            model: object = configured.from_config(cast("dict[str, object]", config))
        if not isinstance(model, ModelMixin):
            raise SkeletonError(f"{found.__name__} does not make a model")
        model.register_to_config(_name_or_path=str(checkpoint.path))
        if asked is not None:
            self._convert(model, asked, checkpoint)
        return model

    def _convert(self, module: ModelMixin, dtype: torch.dtype, checkpoint: Checkpoint) -> None:
        """Give every floating-point tensor that is stored its dtype: float32 where the class insists on it."""
        kept = frozenset(_listed(module._keep_in_fp32_modules))

        def wanted(name: str, tensor: torch.Tensor) -> torch.dtype:
            if not tensor.is_floating_point():
                return tensor.dtype
            return torch.float32 if kept & set(name.split(".")) else dtype

        for name, parameter in list(module.named_parameters()):
            if parameter.dtype != wanted(name, parameter):
                memory = torch.empty_strided(
                    parameter.shape, parameter.stride(), dtype=wanted(name, parameter), device="meta"
                )
                exchange(module, parameter, memory)
        buffers = dict(module.named_buffers())
        for name in self.find_names(module, buffers, checkpoint):
            owner, _, own = name.rpartition(".")
            module.get_submodule(owner)._buffers[own] = buffers[name].to(wanted(name, buffers[name]))

    # --------------------------------------------------------------------------- checkpoint

    def find_names(
        self, module: nn.Module, carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint
    ) -> Mapping[str, str]:
        """Carried name to stored name, older names of attention blocks included; the model knows those itself."""
        names = OrderedDict((stored, stored) for stored in checkpoint.tensors)
        cast(ModelMixin, module)._fix_state_dict_keys_on_load(names)
        return {name: names[name] for name in carried if name in names}

    def find_stored(self, module: nn.Module, checkpoint: Checkpoint) -> Mapping[str, StoredAs]:
        carried = self.carried(module)
        return cast_to(carried, checkpoint, self.find_names(module, carried, checkpoint))

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        """Copy the stored tensors in place, each converted to the dtype it has here.

        Raises:
            SkeletonError: the checkpoint lacks weights of this class, has other shapes, or another value for
                each name of one tensor.
        """
        carried = self.carried(module)
        fill(carried, checkpoint, self.find_names(module, carried, checkpoint), cast=True)


def named_class(checkpoint: Checkpoint) -> type[ModelMixin]:
    """The class that ``config.json`` names; raises SkeletonError if diffusers has no such model."""
    name = (checkpoint.config or {}).get("_class_name")
    found = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, ModelMixin)):
        raise SkeletonError(
            f"{checkpoint.path} names the class {name!r:.80}, which is no model of diffusers {diffusers.__version__}",
            advice="code inside a checkpoint is never run; upgrade diffusers, or use the tensors skeleton",
        )
    return found


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The floating-point dtype that most bytes of the checkpoint have; float32 if none has one.

    Raises:
        SkeletonError: it is one that nothing is computed in.
    """
    sizes: Counter[torch.dtype] = Counter()
    for stored in checkpoint.tensors.values():
        dtype = getattr(torch, stored.dtype)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            sizes[dtype] += stored.nbytes
    if not sizes:
        return torch.float32
    ((most, _),) = sizes.most_common(1)
    if most not in DTYPES:
        raise SkeletonError(
            f"{checkpoint.path} is stored in {str(most).removeprefix('torch.')}, which nothing is computed in",
            advice="ask for a dtype, such as bfloat16",
        )
    return most


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raises SkeletonError for weights that a quantiser transforms after they are loaded."""
    quantised = (checkpoint.config or {}).get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method", "") if isinstance(quantised, dict) else ""
        raise SkeletonError(
            f"{checkpoint.path} is quantised ({method or 'by an unknown method'!s:.40}), and such weights are "
            "transformed after loading",
            advice="use the tensors skeleton to move its tensors as they are stored",
        )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have ``dtype`` inside the block, as ``from_pretrained`` has it; in all threads, alas."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _no_factory() -> nn.Module:
    raise NotImplementedError("diffusers models are made from a checkpoint's config.json")


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())
