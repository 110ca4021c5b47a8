"""Weights with state beside them, as bitsandbytes keeps it: made without values from what a checkpoint stores of them.

Follows the loader's own operations (``Bnb4bitDeserialize``, ``Bnb8bitDeserialize``) with tensors on meta. The scales
and code books that belong to a weight hang on Python objects that no module registers; they travel under the names
that the checkpoint has for them. What is neither weight nor tensor, such as block sizes, is in a small stored tensor,
which each worker reads here: the checkpoint's fingerprint covers it whole. Which methods work like that is for
``quantised.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers.base import HfQuantizer

from coldstart.ports import Checkpoint, StoredTensor
from coldstart_transformers.naming import renamed

_WEIGHT = "weight"
_SAID = "weight.quant_state."
"""Before the name of the stored tensor that holds text: what a weight's state is besides its tensors."""

_SCALES = "SCB"

_MOST_TEXT = 4096
"""Bytes; a checkpoint's fingerprint covers tensors up to this size whole."""


def make_weights(model: PreTrainedModel, quantizer: HfQuantizer, checkpoint: Checkpoint) -> dict[str, str]:
    """Put weights on meta, with their state, in place of those of the layers that the quantizer has replaced.

    Returns the stored name of each tensor that belongs to one, by the name that it is carried under if it is. Raises
    ValueError if one is stored without its state, or with more text than a fingerprint covers.
    """
    operation = quantizer.get_load_operations()["deserialize"](quantizer)
    stored_as = renamed(model, checkpoint.tensors, None).names
    names: dict[str, str] = {}
    for path, layer in list(model.named_modules()):
        weight_name = f"{path}.{_WEIGHT}"
        if not quantizer.param_needs_quantization(model, weight_name) or weight_name not in stored_as:
            continue
        stored = _stored(stored_as[weight_name], quantizer.serialized_names[_WEIGHT], checkpoint)
        given = {name: [_given(name, tensor)] for name, tensor in stored.items()}
        made = operation.convert(dict(given), model=model, full_layer_name=weight_name)
        layer.weight = _with_state(made[_WEIGHT], given)
        names.update({f"{path}.{name}": tensor.name for name, tensor in stored.items()})
    model.tie_weights()
    return names


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors beside the weights of ``module``, by the names they are carried under."""
    found: dict[str, torch.Tensor] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        found.update(_of(path, layer))
    return found


def repacks(module: nn.Module) -> bool:
    """Whether the first forward on this CPU gives weights other memory, in another order of bits."""
    return any(getattr(layer, "support_avx512bf16_for_cpu", False) for layer in module.modules())


def _stored(weight: str, names: Sequence[str], checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """What is stored of one weight, by the names that the loader has for it."""
    path = weight.removesuffix(_WEIGHT)
    found = {name: checkpoint.tensors[path + name] for name in names if path + name in checkpoint.tensors}
    if len(found) < 2:
        raise ValueError(f"{weight} is stored without scales")
    return found


def _given(name: str, stored: StoredTensor) -> torch.Tensor:
    """A tensor on meta; or, of what is text, its bytes."""
    if not name.startswith(_SAID):
        return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta")
    if stored.nbytes > _MOST_TEXT:
        raise ValueError(f"{stored.name} is longer than {_MOST_TEXT} bytes")
    with stored.file.open("rb") as file:
        file.seek(stored.offset)
        return torch.frombuffer(bytearray(file.read(stored.nbytes)), dtype=torch.uint8)


def _with_state(weight: nn.Parameter, given: Mapping[str, Sequence[torch.Tensor]]) -> nn.Parameter:
    """What the operation makes only of tensors that have values."""
    if _SCALES in given:
        vars(weight)[_SCALES] = given[_SCALES][0]
    state = getattr(weight, "quant_state", None)
    if state is not None and state.nested:
        (said,) = [tensor for name, (tensor, *_) in given.items() if name.startswith(_SAID)]
        state.offset = torch.tensor(float(json.loads(bytes(said.cpu().numpy()))["nested_offset"]))
    return weight


def _of(path: str, layer: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors beside the weight of one layer, if it is one of these."""
    weight = layer._parameters.get(_WEIGHT)
    found = dict(_beside(layer, weight)) if weight is not None else {}
    return {f"{path}.{name}" if path else name: tensor for name, tensor in found.items()}


def _beside(layer: nn.Module, weight: nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
    state = getattr(weight, "quant_state", None)
    scales = getattr(weight, _SCALES, None)
    if scales is None:  # where the first forward puts them
        scales = getattr(getattr(layer, "state", None), _SCALES, None)
    if state is not None:
        yield "weight.absmax", state.absmax
        yield "weight.quant_map", state.code
        if state.nested:
            yield "weight.nested_absmax", state.state2.absmax
            yield "weight.nested_quant_map", state.state2.code
    elif isinstance(scales, torch.Tensor):
        yield _SCALES, scales
