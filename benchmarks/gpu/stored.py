"""Storage: a checkpoint on this machine's disk, and how fast it gets onto the device without coldstart.

Decides how the page cache is emptied, and says how much of the checkpoint was in it when a read began; what
is below the file system is not known here. The checkpoint is written once and serves the cold starts, too.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu import models
from benchmarks.gpu.side import Task, Unable, needs_cuda
from benchmarks.gpu.words import Figure
from coldstart.arena import Arena

FILE_BYTES: Final = 4_000_000_000
"""Tensors are collected into files of about this size."""
NAME: Final = "checkpoint"


def write(task: Task) -> None:
    """Write the model's checkpoint; random bytes, made on the device."""
    if task.lends:
        return
    directory = _directory(task)
    layout = task.layout
    if shutil.disk_usage(task.directory).free < layout.nbytes * 1.1:
        raise Unable(f"needs {layout.nbytes / 1e9:.0f} GB on the disk of {task.directory}; set TMPDIR")
    partial = task.directory / "partial"
    partial.mkdir()
    began = time.monotonic()
    arena = Arena(layout, task.device)
    models.fill(arena, seed=2)
    pending: dict[str, torch.Tensor] = {}
    places: dict[str, str] = {}
    for number, tensor in enumerate(layout.tensors):
        pending[tensor.name] = arena.view(tensor).cpu()
        if sum(each.nbytes for each in pending.values()) > FILE_BYTES or number + 1 == len(layout.tensors):
            name = f"model-{number:05}.safetensors"
            save_file(pending, partial / name)
            places.update(dict.fromkeys(pending, name))
            pending.clear()
    (partial / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for file in _files(partial):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    partial.rename(directory)
    rate = layout.payload / (time.monotonic() - began) / 1e9
    task.tell(Figure("writing the checkpoint, with fsync", "GB/s", (rate,)))


def _directory(task: Task) -> Path:
    return task.directory / f"{NAME}-{task.order.model}"


def checkpoint(task: Task) -> Path:
    """The checkpoint's directory; raises Unable if it could not be written."""
    directory = _directory(task)
    if not directory.is_dir():
        raise Unable("there is no checkpoint on the disk")
    return directory


def load(task: Task) -> None:
    """``safetensors.torch.load_file`` onto the device, with the page cache cold and hot."""
    if not task.lends:
        _cold_and_hot(task, "safetensors load_file", lambda files: [load_file(file, task.device) for file in files])


def load_cold(task: Task) -> None:
    """The same with the page cache cold only."""
    if not task.lends:
        label = f"safetensors load_file of the {task.order.model} model"
        _measured(task, label, lambda files: [load_file(file, task.device) for file in files], "cold")


def load_fast(task: Task) -> None:
    """The same by the loader that the options name."""
    needs_cuda(task)
    name = task.order.options["loader"]
    if not task.lends:
        loaders = {
            "fastsafetensors": _fastsafetensors,
            "instanttensor": _instanttensor,
            "runai_model_streamer": _runai,
        }
        _cold_and_hot(task, name, lambda files: loaders[name](files, task.device))


def _cold_and_hot(task: Task, label: str, load: Callable[[Sequence[Path]], object]) -> None:
    for heat in ("cold", "hot"):
        _measured(task, label, load, heat)


def _measured(task: Task, label: str, load: Callable[[Sequence[Path]], object], heat: str) -> None:
    files = _files(checkpoint(task))
    nbytes = sum(file.stat().st_size for file in files)
    load(files[:1])
    rates: list[float] = []
    shares: list[float] = []
    for _ in range(min(task.order.rounds, 2 if heat == "cold" else 3)):
        if heat == "cold":
            forget(files)
        shares.append(cached_share(files))
        began = time.perf_counter()
        loaded = load(files)
        task.settle()
        rates.append(nbytes / (time.perf_counter() - began) / 1e9)
        del loaded
    note = f"{max(shares) * 100:.0f} % was in the page cache"
    task.tell(Figure(f"{label}, page cache {heat}", "GB/s", tuple(rates), note=note))


def forget(files: Sequence[Path]) -> None:
    """Drop the files from the page cache, as far as this process may."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1\n")


def cached_share(files: Sequence[Path]) -> float:
    """The share of the files' pages that is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    resident = pages = 0
    for file in files:
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            count = -(-len(mapped) // mmap.PAGESIZE)
            seen = (ctypes.c_ubyte * count)()
            start = ctypes.c_char.from_buffer(mapped)
            failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), seen)
            del start
            if failed:
                return 1.0
            resident += sum(bytes(seen).translate(_LOWEST_BIT))
            pages += count
    return resident / max(pages, 1)


_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))


def _files(directory: Path) -> Sequence[Path]:
    return sorted(directory.glob("*.safetensors"))


def _fastsafetensors(files: Sequence[Path], device: str) -> object:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup  # type: ignore[import-not-found, unused-ignore]

    loader = SafeTensorsFileLoader(SingleGroup(), device)
    loader.add_filenames({0: [str(file) for file in files]})
    buffers = loader.copy_files_to_device()
    return [buffers.get_tensor(key) for key in loader.get_keys()], buffers, loader


def _instanttensor(files: Sequence[Path], device: str) -> object:
    from instanttensor import safe_open  # type: ignore[import-not-found, unused-ignore]

    with safe_open([str(file) for file in files], framework="pt", device=device) as opened:
        return dict(opened.tensors())


def _runai(files: Sequence[Path], device: str) -> object:
    from runai_model_streamer import SafetensorsStreamer  # type: ignore[import-not-found, unused-ignore]

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in files])
        return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}
