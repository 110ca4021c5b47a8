"""As much of nccl4py and cuda.core as is used here, and where they are loaded.

Decides nothing. They cannot be imported without CUDA, so they are loaded when they are first
needed, and their types are written down here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol, SupportsBytes, SupportsInt, cast

import torch

_FIRST: Final = -1
"""The lower, the earlier; streams have 0 unless somebody says otherwise."""


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


class HeldStream(Protocol):
    """``cuda.core.Stream``; by default it does not wait for the default stream, nor that for it."""

    @property
    def handle(self) -> SupportsInt: ...

    def close(self) -> None: ...


class _Device(Protocol):
    def set_current(self) -> None: ...

    def create_stream(self, *, options: object) -> HeldStream: ...


class _Core(Protocol):
    def Device(self, index: int) -> _Device: ...

    def StreamOptions(self, *, priority: int) -> object: ...


def new_stream(index: int, *, urgent: bool = False) -> HeldStream:
    """A new CUDA stream of device number ``index``, which becomes the thread's current device.

    What is ``urgent`` comes before others' work.
    """
    core = cast(_Core, import_module("cuda.core"))
    device = core.Device(index)
    device.set_current()
    return device.create_stream(options=core.StreamOptions(priority=_FIRST if urgent else 0))


def load() -> Library:
    """nccl4py; slow the first time. Raises ImportError where it, CUDA or NCCL are missing."""
    return cast(Library, import_module("nccl.core"))
