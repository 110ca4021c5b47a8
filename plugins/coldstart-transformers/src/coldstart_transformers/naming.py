"""What transformers calls a checkpoint's tensors once it has loaded them.

Follows the loader itself: its renaming rules, its added or removed base-model prefix, and which
of its converters is given which stored tensors. Whether what a converter makes of them is still
the stored bytes is found out in ``rearranging.py``. The functions used are not part of
transformers' public interface; where they are missing or have changed, nothing is mapped and the
ordinary loader is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel
from transformers.quantizers.base import HfQuantizer

if TYPE_CHECKING:
    from transformers.core_model_loading import WeightConverter


_MERGES = "MergeModulelist"
"""The loader's operation that makes one tensor of those of a list of modules, such as experts."""


@dataclass(frozen=True)
class Conversion:
    """What one of the loader's converters is given, to make the model's tensor ``target`` of it, and maybe others.

    ``sources``: stored names by the converter's own patterns, in the order in which it is given them.
    """

    target: str
    converter: WeightConverter
    sources: dict[str, list[str]] = field(default_factory=dict)

    def wanting(self, shape: Sequence[int]) -> str:
        """In words, what is not stored of a list that is merged to a tensor of ``shape``; empty if nothing is."""
        first = self.converter.operations[0]
        if type(first).__name__ != _MERGES or getattr(first, "dim", None) != 0 or not shape:
            return ""
        for pattern in self.converter.source_patterns:
            count = len(self.sources.get(pattern, ()))
            if count < shape[0]:
                return f"{self.target} is merged from {shape[0]} tensors {pattern}, of which the checkpoint has {count}"
        return ""


@dataclass(frozen=True)
class Renamed:
    """``names``: model name to stored name; of what is converted, one of those that the loader has for it.

    ``known``: whether ``names`` and ``conversions`` are all that the loader does.
    """

    names: dict[str, str]
    conversions: tuple[Conversion, ...] = ()
    known: bool = True

    @property
    def plain(self) -> bool:
        """Whether every stored tensor is a tensor of the model's, under a name of its own."""
        return self.known and not self.conversions

    def wanting(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
        """In words, which of ``tensors`` are merged from more than what is stored."""
        for each in self.conversions:
            if each.target in tensors and (words := each.wanting(tensors[each.target].shape)):
                yield words

    @property
    def splits(self) -> bool:
        """Whether there are tensors in the model that ``names`` has nothing for, since they are made beside others."""
        return any(len(each.converter.target_patterns) > 1 for each in self.conversions)


def renamed(model: PreTrainedModel, stored: Iterable[str], quantizer: HfQuantizer | None) -> Renamed:
    """Where each stored name ends up in ``model``; names that end up nowhere are left out.

    ``quantizer`` is the one whose operations are applied to what is stored under those names, if there is one.
    """
    try:
        return _by_the_loaders_rules(model, stored, quantizer)
    except (ImportError, AttributeError, TypeError):
        return Renamed({}, known=False)


def _by_the_loaders_rules(model: PreTrainedModel, stored: Iterable[str], quantizer: HfQuantizer | None) -> Renamed:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model, None, quantizer)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    tensors = model.state_dict()
    names: dict[str, str] = {}
    conversions: dict[str, Conversion] = {}
    known = True
    for source in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(source, renamings, converters, model.base_model_prefix, tensors)
        if name not in tensors and source in tensors:
            name, pattern = rename_source_key(source, [], [], model.base_model_prefix, tensors)
        if name not in tensors:
            continue
        if pattern is not None:
            conversion = conversions.setdefault(name, Conversion(name, by_pattern[pattern]))
            conversion.sources.setdefault(pattern, []).append(source)
            known = known and pattern in conversion.converter.source_patterns
        elif name in names:
            known = False
        names[name] = source
    return Renamed(names, tuple(conversions.values()), known)
