"""What torch finds on this machine, for ``coldstart doctor``.

Decides nothing: it only keeps torch out of the command line, which must not import it. It makes no
CUDA context, because that would take memory from a worker that serves on the same GPU.
"""

from __future__ import annotations

import warnings

import msgspec
import torch


class Gpu(msgspec.Struct, frozen=True):
    """One CUDA device; ``memory`` is all it has, in bytes."""

    name: str
    memory: int


class TorchFacts(msgspec.Struct, frozen=True):
    """``cuda`` is the version torch was built for, or empty; ``trouble`` is why there are no GPUs."""

    version: str
    cuda: str
    gpus: tuple[Gpu, ...]
    trouble: str


def torch_facts() -> TorchFacts:
    """Ask torch; blocks, for seconds if the driver is slow."""
    cuda = torch.version.cuda or ""
    if not cuda:
        return TorchFacts(torch.__version__, "", (), "this build of torch has no CUDA")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(_gpu(index) for index in range(count))
    trouble = "" if gpus else str(said[-1].message).splitlines()[0] if said else "no CUDA device is visible"
    return TorchFacts(torch.__version__, cuda, gpus, trouble)


def _gpu(index: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    return Gpu(found.name, found.total_memory)
