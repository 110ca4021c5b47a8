"""What becomes of each tensor of a module at a cold start: the vocabulary, and one answer written down.

Decides which words there are, never which of them holds for a tensor (``skeletons/classify.py`` and
each builder do). Pure values, so that reports, tests and the command line can show them without
importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Treatment = Literal["carried", "recomputed", "runtime", "unsupported"]
"""``carried``: its bytes travel and are digested. ``recomputed``: every process makes it itself, before the
weights are there or from them. ``runtime``: serving makes it and it needs no value at the start.
``unsupported``: none of these can be known; such a module is refused."""

Kind = Literal[
    "parameter", "persistent buffer", "non-persistent buffer", "attribute", "nested attribute", "extra state"
]
"""How a module holds it. ``attribute``: a bare tensor; ``nested attribute``: inside a container or object."""


class ClassifiedTensor(msgspec.Struct, frozen=True):
    """One tensor, or one piece of state that is no tensor, by its dotted name.

    ``nbytes`` counts its elements, also where it shares memory with another; ``reason`` says in
    words why it is treated so, and may be empty for what is carried.
    """

    name: str
    kind: Kind
    treatment: Treatment
    dtype: str = ""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.reason}".rstrip()


class Classification(msgspec.Struct, frozen=True):
    """Every tensor of a module, each in exactly one class."""

    tensors: tuple[ClassifiedTensor, ...]

    def of(self, treatment: Treatment) -> tuple[ClassifiedTensor, ...]:
        """Those that are treated so, in the module's order."""
        return tuple(each for each in self.tensors if each.treatment == treatment)

    @property
    def counts(self) -> Mapping[Treatment, int]:
        """How many of each; every class is named, also where there are none."""
        found: dict[Treatment, int] = {"carried": 0, "recomputed": 0, "runtime": 0, "unsupported": 0}
        for each in self.tensors:
            found[each.treatment] += 1
        return found

    @property
    def refusals(self) -> tuple[str, ...]:
        """In words, what can be neither carried nor rebuilt; empty for a module that can be cold-started."""
        return tuple(str(each) for each in self.of("unsupported"))
