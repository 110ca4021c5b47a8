"""Weights that are tensors made of tensors, made without values from what a checkpoint's files say of them.

Follows the loader's own operation (``TorchAoDeserialize``) with tensors on meta: classes and contexts are in the
files' metadata, dtypes and shapes in their headers. A stored part is named after its parameter,
``q_proj._weight_scale`` for the scale of ``q_proj.weight``. Which methods work like that is for ``quantised.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers.base import HfQuantizer

from coldstart.ports import Checkpoint, StoredTensor
from coldstart.skeletons.wrappers import MARK

_PLAIN = "Tensor"


def deserialise(model: PreTrainedModel, quantizer: HfQuantizer, checkpoint: Checkpoint) -> dict[str, str]:
    """Put wrappers of tensors on meta in place of the parameters that are stored in parts.

    Returns the stored name of each part, by the name that it is carried under. Raises ValueError if no parameter
    is stored in parts; KeyError and AttributeError where the model lacks one that is.
    """
    operation = quantizer.get_load_operations()["deserialize"](quantizer)
    metadata: Mapping[str, str] = getattr(quantizer, "metadata", {})
    names: dict[str, str] = {}
    for parameter, parts in _stored_in_parts(metadata, checkpoint).items():
        given = {stored.name.rpartition(".")[2]: [_on_meta(stored)] for stored in parts.values()}
        made = operation.convert(given, source_patterns=list(given), model=model, full_layer_name=parameter)
        path, _, leaf = parameter.rpartition(".")
        weight = made[parameter]
        setattr(model.get_submodule(path), leaf, nn.Parameter(weight, requires_grad=weight.is_floating_point()))
        names.update({f"{parameter}{MARK}{part}": stored.name for part, stored in parts.items()})
    model.tie_weights()  # of two names for one parameter, the loop has changed one
    if not names:
        raise ValueError("none of them is said to be quantised")
    return names


def _stored_in_parts(metadata: Mapping[str, str], checkpoint: Checkpoint) -> dict[str, dict[str, StoredTensor]]:
    """Parameter to its parts' names, to what is stored of each."""
    return {
        parameter: {part: checkpoint.tensors[_stored_name(parameter, part)] for part in parts}
        for parameter, parts in _described(metadata)
    }


def _described(metadata: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for name, text in metadata.items():
        if "." in name and (said := json.loads(text))["_type"] != _PLAIN:
            yield name, said["_tensor_data_names"]


def _stored_name(parameter: str, part: str) -> str:
    path, _, leaf = parameter.rpartition(".")
    return f"{path}._{leaf}_{part}"


def _on_meta(stored: StoredTensor) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta")
