"""What transformers calls a checkpoint's tensors once it has loaded them.

Follows the loader itself: its renaming rules, its added or removed base-model prefix, and its
converters, which merge or rearrange weights so that the stored bytes are not the loaded ones.
The functions used are not part of transformers' public interface; where they are missing or
have changed, nothing is mapped and the ordinary loader is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.quantizers.base import HfQuantizer


@dataclass(frozen=True)
class Renamed:
    """``names``: model name to stored name. ``converted``: some weights are transformed on loading."""

    names: dict[str, str]
    converted: bool


def renamed(model: PreTrainedModel, stored: Iterable[str], quantizer: HfQuantizer | None) -> Renamed:
    """Where each stored name ends up in ``model``; names that end up nowhere are left out.

    ``quantizer`` is the one whose operations are applied to what is stored under those names, if there is one.
    """
    try:
        return _by_the_loaders_rules(model, stored, quantizer)
    except (ImportError, AttributeError, TypeError):
        return Renamed({}, converted=True)


def _by_the_loaders_rules(model: PreTrainedModel, stored: Iterable[str], quantizer: HfQuantizer | None) -> Renamed:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(model, None, quantizer)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    tensors = model.state_dict()
    names: dict[str, str] = {}
    converted = False
    for source in stored:
        name, pattern = rename_source_key(source, renamings, converters, model.base_model_prefix, tensors)
        if name not in tensors and source in tensors:
            name, pattern = rename_source_key(source, [], [], model.base_model_prefix, tensors)
        if name in tensors:
            converted = converted or pattern is not None or name in names
            names[name] = source
    return Renamed(names, converted)
