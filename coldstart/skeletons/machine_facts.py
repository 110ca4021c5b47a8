"""What torch finds on this machine, for ``coldstart doctor``.

Decides nothing: it only keeps torch out of the command line, which must not import it. It makes no
CUDA context, because that would take memory from a worker that serves on the same GPU.
"""

from __future__ import annotations

import warnings

import msgspec
import torch


class Gpu(msgspec.Struct, frozen=True):
    """One CUDA device; ``memory`` is all it has, in bytes, ``peers`` which others' memory it can reach by itself."""

    name: str
    memory: int
    uuid: str = ""
    peers: tuple[int, ...] = ()


class TorchFacts(msgspec.Struct, frozen=True):
    """``cuda`` is the version torch was built for, ``nccl`` its NCCL's, or empty; ``trouble`` is why no GPU is here."""

    version: str
    cuda: str
    gpus: tuple[Gpu, ...]
    trouble: str
    nccl: str = ""


def torch_facts() -> TorchFacts:
    """Ask torch; blocks, for seconds if the driver is slow."""
    cuda = torch.version.cuda or ""
    if not cuda:
        return TorchFacts(torch.__version__, "", (), "this build of torch has no CUDA")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(_gpu(index, count) for index in range(count))
    trouble = "" if gpus else str(said[-1].message).splitlines()[0] if said else "no CUDA device is visible"
    return TorchFacts(torch.__version__, cuda, gpus, trouble, _nccl() if gpus else "")


def _gpu(index: int, count: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    peers = [other for other in range(count) if other != index and torch.cuda.can_device_access_peer(index, other)]
    return Gpu(found.name, found.total_memory, str(getattr(found, "uuid", "")), tuple(peers))


def _nccl() -> str:
    """The version of the NCCL that torch brings; empty where it brings none."""
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return ""
