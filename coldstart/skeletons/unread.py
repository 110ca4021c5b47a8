"""Constructors that load weights eagerly, run without reading the weights.

Decides what a loader inside a constructor gets: tensors of the right shape and dtype on meta, made
from the file's headers alone. What is copied from them is not copied, and is remembered, so that
nobody takes a tensor that was to be filled for one that was computed. The loaders that are known
are ``torch.load`` and safetensors' ``safe_open`` and ``load_file``; what a constructor reads in
another way is read, and overwritten when the carried bytes arrive. It must not know components.
"""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import cast

import safetensors
import torch
from torch.overrides import TorchFunctionMode

from coldstart.headers import read_header
from coldstart.ports import StoredTensor

_Call = Callable[..., object]
_ORDINARY = safetensors.safe_open

_turn = threading.RLock()
"""Loaders are replaced in the whole process; one build at a time does so."""


class Unfilled(TorchFunctionMode):
    """Leaves out copies whose source has no values; ``tensors`` are their targets that have memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: _Call,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if func is torch.Tensor.copy_:
            target, source = args[0], args[1] if len(args) > 1 else named.get("other", named.get("src"))
            if isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor) and source.is_meta:
                if not target.is_meta:
                    self.tensors.append(target)
                return target
        if func in _MOVES and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return _stays(func, args, named)
        return func(*args, **named)


_MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


def _stays(func: _Call, args: Sequence[object], named: Mapping[str, object]) -> object:
    """``tensor.to(...)`` of a tensor without values: another dtype perhaps, but still on meta."""
    tensor = cast(torch.Tensor, args[0])
    dtypes = [each for each in (*args[1:], *named.values()) if isinstance(each, torch.dtype)]
    like = [each.dtype for each in (*args[1:], *named.values()) if isinstance(each, torch.Tensor)]
    return torch.empty_like(tensor, dtype=next(iter((*dtypes, *like)), tensor.dtype))


@contextmanager
def without_reading() -> Iterator[Unfilled]:
    """In the block, and in this thread, loaders give tensors without values."""
    thread = threading.get_ident()
    with _turn:
        replacements = {
            id(torch.load): (torch.load, _for_thread(thread, torch.load, _torch_load(torch.load))),
            id(safetensors.safe_open): (safetensors.safe_open, _for_thread(thread, safetensors.safe_open, _Opened)),
        }
        bound = [
            (names, name, value)
            for module in list(sys.modules.values())
            for names in [getattr(module, "__dict__", {})]
            for name in ("load", "safe_open")
            if id(value := names.get(name)) in replacements
        ]
        try:
            for names, name, value in bound:
                names[name] = replacements[id(value)][1]
            with Unfilled() as unfilled:
                yield unfilled
        finally:
            for names, name, value in bound:
                names[name] = value


def _for_thread(thread: int, ordinary: _Call, other: _Call) -> _Call:
    def call(*args: object, **named: object) -> object:
        return (other if threading.get_ident() == thread else ordinary)(*args, **named)

    return call


def _torch_load(ordinary: _Call) -> _Call:
    """``torch.load`` that leaves values where they are; a file in the old format is read, and its values dropped."""

    def load(f: object, map_location: object = None, *args: object, **named: object) -> object:
        mapped = isinstance(f, str | os.PathLike) and zipfile.is_zipfile(f)
        return ordinary(f, "meta", *args, **{**named, "mmap": True if mapped else None})

    return load


class _Opened:
    """``safe_open``, from the header alone."""

    def __init__(self, filename: str | os.PathLike[str], framework: str = "pt", *args: object, **named: object) -> None:
        with _ORDINARY(filename, framework="pt") as opened:
            self._metadata = opened.metadata()
        self._tensors = read_header(Path(filename)).tensors

    def __enter__(self) -> _Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        return list(self._tensors)

    def metadata(self) -> Mapping[str, str] | None:
        return cast("Mapping[str, str] | None", self._metadata)

    def get_tensor(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta")

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._tensors}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name], self.get_tensor(name))


class _Slice:
    def __init__(self, stored: StoredTensor, tensor: torch.Tensor) -> None:
        self._stored, self._tensor = stored, tensor

    def get_shape(self) -> list[int]:
        return list(self._stored.shape)

    def __getitem__(self, where: object) -> torch.Tensor:
        return self._tensor[where]  # type: ignore[index]  # whatever torch takes
