"""A model that its checkpoint could never fill is not built: a ``config.json`` may ask for any size.

Decides how much a config may ask for, by the headers of its checkpoint, and counts while the class is made once on
meta, where tensors cost nothing. The bounds are wide: they are there so that a wrong or hostile file ends in one line
instead of in a machine without memory. Whether weights are missing is found out later (``skeleton.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint

SPARE_NUMBERS = 2**28
SPARE_TENSORS = 5_000
"""What any config may ask for: heads that are not stored, tables of positions."""

_PLAIN, _PACKED = 2, 8
"""Numbers per stored byte: of one byte, or of two bits, and as many again that are tied or not stored."""

_TENSORS = 20
"""Parameters per stored tensor; a merged tensor may become one for each expert."""

_counting = threading.local()


class _Count:
    """Parameters that are made in this thread, against what there may be."""

    def __init__(self, checkpoint: Checkpoint, *, packed: bool) -> None:
        stored = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        self._path, self._stored = checkpoint.path, stored
        self._numbers = stored * (_PACKED if packed else _PLAIN) + SPARE_NUMBERS
        self._tensors = len(checkpoint.tensors) * _TENSORS + SPARE_TENSORS
        self.numbers = self.tensors = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.numbers += tensor.numel()
        self.tensors += 1
        if self.numbers > self._numbers or self.tensors > self._tensors:
            raise SkeletonError(
                f"the config.json of {self._path} asks for at least {self.numbers:,} numbers in {self.tensors:,} "
                f"tensors, and the checkpoint has {self._stored:,} bytes",
                advice="check that config.json and the weights belong together",
            )


def check_size(make: Callable[[], nn.Module], checkpoint: Checkpoint, *, packed: bool) -> None:
    """Make the model on meta, and count.

    Args:
        packed: whether a stored byte may hold several numbers.

    Raises:
        SkeletonError: it has far more than the checkpoint can fill.
    """
    count = _Count(checkpoint, packed=packed)
    with _heard(count), torch.device("meta"):
        made: object = make()
    if isinstance(made, nn.Module):
        for buffer in made.buffers():
            count.add(buffer)


@contextmanager
def _heard(count: _Count) -> Iterator[None]:
    _listen()
    _counting.now = count
    try:
        yield
    finally:
        _counting.now = None


@cache
def _listen() -> None:
    """Hear of every parameter from now on, once and for good: torch walks its hooks without a lock."""
    register_module_parameter_registration_hook(_on_registration)


def _on_registration(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    count: _Count | None = getattr(_counting, "now", None)
    if count is not None and isinstance(parameter, torch.Tensor):
        count.add(parameter)
