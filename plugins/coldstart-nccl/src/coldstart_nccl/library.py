"""As much of nccl4py as is used here, and where it is loaded.

Decides nothing. nccl4py cannot be imported without CUDA, so it is loaded when it is first needed,
and its types are written down here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, SupportsBytes, SupportsInt, cast

import torch


class Pair(Protocol):
    """``nccl.core.Communicator``, where it is not blocking."""

    def initialize(self, nranks: int, rank: int, unique_id: SupportsBytes, config: object) -> None: ...

    def get_async_error(self) -> SupportsInt: ...

    def send(self, sendbuf: torch.Tensor, peer: int, *, stream: int) -> None: ...

    def recv(self, recvbuf: torch.Tensor, peer: int, *, stream: int) -> None: ...

    def finalize(self) -> None: ...

    def destroy(self) -> None: ...

    def abort(self) -> None: ...


class _UniqueIds(Protocol):
    def from_bytes(self, b: bytes) -> SupportsBytes: ...


class Library(Protocol):
    """``nccl.core``."""

    @property
    def UniqueId(self) -> _UniqueIds: ...

    def Communicator(self) -> Pair: ...

    def NCCLConfig(self, *, blocking: bool, max_ctas: int | None) -> object: ...

    def get_unique_id(self) -> SupportsBytes: ...

    def get_error_string(self, nccl_result: int) -> str: ...


def load() -> Library:
    """nccl4py; slow the first time. Raises ImportError where it, CUDA or NCCL are missing."""
    return cast(Library, import_module("nccl.core"))
