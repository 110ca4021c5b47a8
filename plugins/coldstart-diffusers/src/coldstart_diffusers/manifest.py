"""What a pipeline's ``model_index.json`` asks for: a class of diffusers, and a class for each component.

Decides what of it may be used: only classes that diffusers and transformers themselves have, and
never a file of code that lies beside the weights. It builds nothing; ``pipeline.py`` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import diffusers
import transformers
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from torch import nn
from transformers import (
    FeatureExtractionMixin,
    ImageProcessingMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint

_WITHOUT_WEIGHTS = (
    SchedulerMixin,
    PreTrainedTokenizerBase,
    ImageProcessingMixin,
    FeatureExtractionMixin,
    ProcessorMixin,
)
_NEVER = "code inside a checkpoint is never run; use a pipeline of diffusers' own"


@dataclass(frozen=True)
class Manifest:
    """``models`` have weights; ``others`` are schedulers, tokenizers and the like, made from their files.

    ``absent`` are components that the pipeline's class knows and this pipeline does not have.
    """

    pipeline: type[DiffusionPipeline]
    models: Mapping[str, type[nn.Module]]
    others: Mapping[str, type]
    absent: frozenset[str]


def read_manifest(checkpoint: Checkpoint) -> Manifest:
    """What the checkpoint of a pipeline names, each of it a class that is installed here.

    Raises:
        SkeletonError: something else than diffusers' and transformers' own classes, or a component without
            a directory or without weights.
    """
    config = checkpoint.config or {}
    pipeline = _pipeline(checkpoint, config.get("_class_name"))
    known = {name: each for name, each in inspect.signature(pipeline.__init__).parameters.items() if name != "self"}
    models: dict[str, type[nn.Module]] = {}
    others: dict[str, type] = {}
    for name in sorted(known.keys() & config.keys()):
        match config[name]:
            case [str(library), str(class_name)]:
                found = _component(checkpoint, name, library, class_name)
                if issubclass(found, nn.Module):
                    models[name] = _model(checkpoint, name, found)
                elif issubclass(found, _WITHOUT_WEIGHTS):
                    others[name] = found
                else:
                    raise SkeletonError(f"{checkpoint.path} has a {class_name} as {name}, which is not known here")
            case [None, None]:
                pass
            case other if known[name].default is known[name].empty:
                raise SkeletonError(
                    f"{checkpoint.path} has {other!r:.80} as {name}, which is no [library, class]",
                    advice="fetch or export the pipeline again",
                )
    absent = frozenset(name for name in known.keys() & config.keys() if config[name] == [None, None])
    return Manifest(pipeline, models, others, absent)


def _pipeline(checkpoint: Checkpoint, name: object) -> type[DiffusionPipeline]:
    found = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, DiffusionPipeline)):
        raise SkeletonError(
            f"{checkpoint.path} names the pipeline {name!r:.80}, which diffusers {diffusers.__version__} does not have",
            advice=_NEVER,
        )
    if found._load_connected_pipes:
        raise SkeletonError(
            f"{checkpoint.path} is a {name}, which is made of several pipelines that are fetched",
            advice="start each of them by itself",
        )
    return found


def _component(checkpoint: Checkpoint, name: str, library: str, class_name: str) -> type:
    where = f"{checkpoint.path} has {class_name!r:.80} of {library!r:.80} as {name}"
    home = _library(library)
    if home is None or not class_name.isidentifier():
        raise SkeletonError(f"{where}, which is neither diffusers' nor transformers' own", advice=_NEVER)
    directory = checkpoint.path / name
    if not directory.is_dir():
        raise SkeletonError(f"{where}, but no directory {name}", advice="the download is incomplete")
    if (directory / f"{library}.py").exists():
        raise SkeletonError(f"{where}, and code for it beside its files", advice=_NEVER)
    found = getattr(home, class_name, None) or getattr(home, _renamed(class_name), None)
    if not isinstance(found, type):
        version = diffusers.__version__ if home is not transformers else transformers.__version__
        raise SkeletonError(f"{where}, which {library} {version} does not have", advice="upgrade it")
    return found


def _library(name: str) -> ModuleType | None:
    """diffusers, transformers, or one of the packages that diffusers keeps pipelines in, with their own models."""
    if name in ("diffusers", "transformers"):
        return diffusers if name == "diffusers" else transformers
    found = getattr(diffusers.pipelines, name, None) if name.isidentifier() and not name.startswith("_") else None
    inside = isinstance(found, ModuleType) and found.__name__.startswith("diffusers.pipelines.")
    return found if inside else None


def _renamed(class_name: str) -> str:
    """What transformers calls the feature extractors of vision models by now."""
    return class_name.replace("FeatureExtractor", "ImageProcessor")


def _model(checkpoint: Checkpoint, name: str, found: type[nn.Module]) -> type[nn.Module]:
    if not issubclass(found, ModelMixin | PreTrainedModel):
        raise SkeletonError(f"{checkpoint.path} has a {found.__name__} as {name}, which is no model with a config")
    if name not in checkpoint.components:
        raise SkeletonError(
            f"{checkpoint.path / name} has no weights for the {found.__name__}", advice="the download is incomplete"
        )
    return found
