"""Layers whose package makes them ready for one kind of processor, as GPTQ's and AWQ's do.

Such layers compute constants where their packed weights lie. So those are zeros in memory for as long as that takes
(pages that nobody writes to cost nothing), and on meta again before the inventory is taken. It must not know what the
package does with them: values come from the ordinary loader (``skeleton.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_PACKED = "qweight"


@contextmanager
def on_memory(model: nn.Module) -> Iterator[None]:
    """In the block, buffers that were on meta are zeros; after it, only those that are not stored keep their memory."""
    lent = [(owner, name) for owner in model.modules() for name, each in _buffers(owner).items() if each.is_meta]
    for owner, name in lent:
        meta = owner._buffers[name]
        owner._buffers[name] = None if meta is None else torch.zeros(meta.shape, dtype=meta.dtype)
    yield
    for owner, name in lent:
        kept = owner._buffers.get(name)
        if kept is not None and name not in owner._non_persistent_buffers_set:
            owner._buffers[name] = kept.to("meta")


def kernels_of(model: nn.Module) -> str:
    """The classes of the packed layers: which ones they are depends on the machine, and what is in them on these."""
    return "+".join(sorted({type(owner).__name__ for owner in model.modules() if _PACKED in owner._buffers}))


def _buffers(owner: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each for name, each in owner._buffers.items() if each is not None}
