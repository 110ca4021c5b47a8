"""The skeleton of a transformers model: built from ``config.json``, filled like ``from_pretrained`` would.

Decides the class, the dtype of each parameter and whether the checkpoint's tensors are the
model's own, at most in another dtype. Everything else is an ordinary module (``coldstart.skeletons``).
Nothing is ever fetched and no code from a checkpoint is run. transformers' own renaming of
tensors is in ``naming.py``, what it merges or cuts out of stored ones in ``rearranging.py``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint, Rank, StoredAs, StoredRange
from coldstart.skeletons.adoption import elements, exchange
from coldstart.skeletons.module import ModuleSkeleton, floating_dtype
from coldstart.skeletons.stored import cast_to, lacking, named, one_to_one
from coldstart.skeletons.wrappers import differing, is_wrapper, tensors_of
from coldstart_transformers.answers import answers
from coldstart_transformers.bounds import check_size
from coldstart_transformers.naming import Renamed, renamed
from coldstart_transformers.quantised import Quantisation, is_quantised
from coldstart_transformers.quiet import quiet
from coldstart_transformers.rearranging import rearranged

_BUG = "this is a bug in the transformers skeleton; please report the architecture"


class TransformersSkeleton(ModuleSkeleton[PreTrainedModel]):
    """Builds the model that ``from_pretrained`` would load, without its weights.

    Args:
        dtype: dtype of the weights; empty for the one the checkpoint states.
        auto: an ``AutoModel...`` class; empty for the class the checkpoint names.
        model: the class itself, for one that transformers does not have, or that reads its config in its own way.
    """

    def __init__(self, *, dtype: str = "", auto: str = "", model: type[PreTrainedModel] | None = None) -> None:
        super().__init__(_no_factory, name="transformers", tensor_subclasses=True)
        self._requested = floating_dtype(dtype) if dtype else None
        self._auto, self._class = auto, model
        self._quantisation: Quantisation | None = None

    @property
    def identity(self) -> str:
        """Once a module is built, with what this machine makes of quantised weights."""
        dtype = str(self._requested).removeprefix("torch.") if self._requested else ""
        quantised = self._quantisation.identity if self._quantisation else ""
        return "/".join(part for part in ("transformers", self._auto, dtype, quantised, self.wrappers) if part)

    # ------------------------------------------------------------------------------ building

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> PreTrainedModel:
        """The model on the device in effect; raises SkeletonError if transformers cannot make it."""
        if checkpoint is None or checkpoint.config is None or not checkpoint.path.is_dir():
            lacking = f", and {checkpoint.path} has none" if checkpoint is not None else ""
            raise SkeletonError(
                f"a transformers skeleton needs a checkpoint directory with a config.json{lacking}",
                advice="use the tensors skeleton for bare weights",
            )
        with quiet():
            config = _config(checkpoint.path, self._class)
            self._quantisation = Quantisation(checkpoint.path, config) if is_quantised(config) else None
            stated = getattr(torch, config.dtype) if isinstance(config.dtype, str) else config.dtype
            return self._model(checkpoint, config, self._requested or stated or _first_float(checkpoint))

    def _model(
        self, checkpoint: Checkpoint, config: PreTrainedConfig, dtype: torch.dtype | None
    ) -> PreTrainedModel:
        path = checkpoint.path
        name = self._auto or next(iter(config.architectures or ()), "")
        found = self._class or (getattr(transformers, name, None) if name else None)
        if found is None:
            raise SkeletonError(
                f"{path} names the architecture {name or '(none)'}, which transformers {transformers.__version__} "
                "does not have",
                advice="code inside a checkpoint is never run; upgrade transformers, or give auto=AutoModel",
            )
        make = found.from_config if hasattr(found, "from_config") else found._from_config
        quantisation = self._quantisation
        if quantisation is not None:
            dtype = quantisation.dtype(dtype)
        check_size(lambda: make(copy.deepcopy(config), dtype=dtype), checkpoint, packed=quantisation is not None)
        model = make(copy.deepcopy(config), dtype=dtype)
        if quantisation is not None and isinstance(model, PreTrainedModel):
            quantisation.replace_modules(model, dtype, checkpoint)
        if not isinstance(model, PreTrainedModel):
            raise SkeletonError(f"{name} does not make a model", advice="give auto=AutoModel or one of its kind")
        model.config._name_or_path = str(path)
        if model.can_generate() and (path / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
        return model

    def prepare(self, module: PreTrainedModel) -> None:
        """What the loader does to parameters besides giving them values, which they do not have yet.

        Some are kept in float32 whatever the dtype, and all of them come out trainable but for those that the
        family's initialisation freezes; a flag that differs changes the last bits of some matrix products.
        """
        from transformers.core_model_loading import build_glob_alternation

        if self._quantisation is not None:
            with quiet():
                self._quantisation.finish(module)
        frozen = {id(parameter) for parameter in module.parameters() if not parameter.requires_grad}
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        initialise: Callable[[nn.Module], None] = module._init_weights
        for owner in module.modules() if self._quantisation is None else ():
            if any(id(parameter) in frozen for parameter in owner.parameters(recurse=False)):
                initialise(owner)  # as the loader does once it has filled what is stored
        plan: Mapping[str, torch.dtype] = module._get_dtype_plan(module.dtype)
        if not plan:
            return
        kept: re.Pattern[str] = build_glob_alternation(list(plan))[0]
        for name, parameter in list(module.named_parameters()):
            if kept.search(name) and parameter.dtype != torch.float32 and not is_wrapper(parameter):
                memory = torch.empty_strided(parameter.shape, parameter.stride(), dtype=torch.float32, device="meta")
                exchange(module, parameter, memory)

    def held(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        return self._quantisation.held(module) if self._quantisation else {}

    @property
    def leaves_memory(self) -> bool:
        """See :class:`coldstart.ports.Leaving`."""
        return self._quantisation is not None and self._quantisation.repacks

    # --------------------------------------------------------------------------- checkpoint

    def find_names(
        self, module: PreTrainedModel, carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint
    ) -> Mapping[str, str]:
        names = {**self._renamed(module, checkpoint).names, **self._parts}
        return {name: names[name] for name in carried if name in names}

    def find_stored(self, module: PreTrainedModel, checkpoint: Checkpoint) -> Mapping[str, StoredAs]:
        found = self._renamed(module, checkpoint)
        return self._stored(module, found, checkpoint, self._merged(module, found, checkpoint) or {})

    def stored_names(self, module: PreTrainedModel, checkpoint: Checkpoint) -> Mapping[str, StoredAs] | None:
        found = self._renamed(module, checkpoint)
        merged = self._merged(module, found, checkpoint)
        if merged is None:
            return None
        return one_to_one(self.carried(module), checkpoint, self._stored(module, found, checkpoint, merged))

    def _merged(
        self, module: PreTrainedModel, found: Renamed, checkpoint: Checkpoint
    ) -> Mapping[str, tuple[StoredRange, ...]] | None:
        """What the loader makes of several stored tensors, or of one; None where only the loader knows."""
        if not found.known or (self._quantisation is not None and self._quantisation.reworks):
            return None
        return rearranged(module, found.conversions, checkpoint)

    def _stored(
        self,
        module: PreTrainedModel,
        found: Renamed,
        checkpoint: Checkpoint,
        merged: Mapping[str, tuple[StoredRange, ...]],
    ) -> Mapping[str, StoredAs]:
        carried = self.carried(module)
        names: dict[str, str | tuple[StoredRange, ...]] = {**found.names, **self._parts, **merged}
        names = {name: names[name] for name in carried if name in names}
        if self._quantisation is None:
            return cast_to(carried, checkpoint, names)
        kept = {  # in float32, whatever the others are in
            name: stored
            for name, stored in names.items()
            if isinstance(stored, str)
            and (checkpoint.tensors[stored].dtype, carried[name].dtype) == ("bfloat16", torch.float32)
            and self._quantisation.plain
            and self._requested is None
        }
        return {**names, **cast_to(carried, checkpoint, kept)}

    def lacking(self, module: PreTrainedModel, checkpoint: Checkpoint) -> Sequence[str]:
        if self._quantisation is not None and not self._quantisation.as_stored:
            return ()  # what the loader calls the stored tensors is known to its converters only
        renamed = self._renamed(module, checkpoint)
        merged = self._merged(module, renamed, checkpoint)
        carried, stored = self.carried(module), self._stored(module, renamed, checkpoint, merged or {})
        found = list(renamed.wanting(carried))
        if stored and (merged is not None or not renamed.splits):
            names = {name: next(iter(named(each))) for name, each in stored.items()}
            found += lacking(carried, checkpoint, names, shapes=renamed.plain)
        ignored = [re.compile(each) for each in module._keys_to_ignore_on_load_missing or ()]
        return [words for words in found if not any(each.search(words.partition(" ")[0]) for each in ignored)]

    def unused(self, module: PreTrainedModel, checkpoint: Checkpoint) -> Sequence[str]:
        return sorted(set(super().unused(module, checkpoint)) - set(self._parts.values()))

    def _renamed(self, module: PreTrainedModel, checkpoint: Checkpoint) -> Renamed:
        """What becomes of the tensors that are no part of another: those are stored as they are."""
        parts = frozenset(self._parts.values())
        beside = self._quantisation is not None and self._quantisation.stateful
        quantizer = None if beside else getattr(module, "hf_quantizer", None)  # whose operation spares those
        return renamed(module, [name for name in checkpoint.tensors if name not in parts], quantizer)

    @property
    def _parts(self) -> Mapping[str, str]:
        return self._quantisation.parts if self._quantisation else {}

    def load(self, module: PreTrainedModel, checkpoint: Checkpoint) -> None:
        """Load by ``from_pretrained`` on the CPU and copy every carried tensor in place.

        Needs memory for a second copy of the model while it runs.

        Raises:
            SkeletonError: the checkpoint lacks weights of this class, or has other shapes.
        """
        carried = self.carried(module)
        for words in self._renamed(module, checkpoint).wanting(carried):
            raise SkeletonError(f"{checkpoint.path} is not whole: {words}", advice="fetch or export it again")
        loaded, absent = self._from_pretrained(type(module), checkpoint.path)
        absent = [name for name in absent if name in carried]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            raise SkeletonError(
                f"{checkpoint.path} has no weights for {', '.join(absent[:3])}{more} of {type(module).__name__}",
                advice="give auto= a class that the checkpoint was saved from",
            )
        values = {**tensors_of(loaded), **self.held(loaded)}
        if other := differing(module, loaded) or min(carried.keys() - values.keys(), default=""):
            raise SkeletonError(f"{other} was loaded as another kind of tensor than the skeleton has", advice=_BUG)
        with torch.no_grad():
            for name, tensor in carried.items():
                _check(name, values[name], tensor)
                tensor.copy_(values[name])
        _check_aliases(carried, values)

    def ordinary(self, checkpoint: Checkpoint) -> PreTrainedModel:
        """The model as ``from_pretrained`` loads it, in inference mode."""
        loaded, _ = self._from_pretrained(type(self.make(checkpoint, Rank())), checkpoint.path)
        loaded.train(False)
        return loaded

    def answers(
        self, module: PreTrainedModel, checkpoint: Checkpoint, texts: Sequence[str]
    ) -> Sequence[Sequence[float]]:
        """One vector per text; see ``answers.py``."""
        return answers(module, checkpoint, texts)

    def _from_pretrained(self, model: type[PreTrainedModel], path: Path) -> tuple[PreTrainedModel, list[str]]:
        """The model as it is ordinarily loaded, and the names that the checkpoint had no weights for."""
        with quiet():
            loaded: tuple[PreTrainedModel, Mapping[str, Iterable[object]]] = model.from_pretrained(  # type: ignore[assignment]
                path,
                dtype=self._requested or "auto",
                device_map=self._quantisation.where if self._quantisation else None,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,  # which changes what is returned
            )
        module, info = loaded
        wrong = [entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]]
        return module, sorted(str(name) for name in (*info["missing_keys"], *wrong))


def _no_factory() -> PreTrainedModel:
    raise NotImplementedError("transformers models are made from a checkpoint's config.json")


def _config(path: Path, model: type[PreTrainedModel] | None) -> PreTrainedConfig:
    reader = AutoConfig if model is None or model.config_class is None else model.config_class
    try:
        config: PreTrainedConfig = reader.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SkeletonError(
            f"transformers {transformers.__version__} cannot read {path / 'config.json'}: {reason}",
            advice="code inside a checkpoint is never run; upgrade transformers, or use the tensors skeleton",
        ) from error
    return config


def _first_float(checkpoint: Checkpoint) -> torch.dtype | None:
    """The dtype of the first floating-point tensor, for a config that states none."""
    for stored in checkpoint.tensors.values():
        dtype = getattr(torch, stored.dtype)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return dtype
    return None


def _check(name: str, value: torch.Tensor, tensor: torch.Tensor) -> None:
    if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
        raise SkeletonError(
            f"{name} was loaded as {value.dtype} {list(value.shape)} but the skeleton has {tensor.dtype} "
            f"{list(tensor.shape)}",
            advice=_BUG,
        )


def _check_aliases(carried: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Tied names share memory here, so the checkpoint must not give them different values."""
    first: dict[int, str] = {}
    for name, tensor in carried.items():
        one, two = values[first.setdefault(tensor.data_ptr(), name)], values[name]
        if one is not two and tensor.numel() and not torch.equal(elements(one), elements(two)):
            raise SkeletonError(
                f"{name} is tied to {first[tensor.data_ptr()]} but the checkpoint stores another value for it",
                advice="set tie_word_embeddings to false in config.json",
            )
