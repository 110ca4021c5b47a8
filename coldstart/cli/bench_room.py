"""The checkpoint that ``coldstart bench`` moves, and whether this machine has room for it.

Decides the shapes and the bytes: like a language model's, large matrices with a small vector
after each, of random content, so that nothing on the way can compress or deduplicate it. It
must not import torch: the file is written by hand. Who reads it is decided in ``bench_family.py``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from coldstart.errors import ConfigError

MIB = 1024 * 1024
BLOCK = 32 * MIB
"""A matrix and its vector."""
ROW = 8192
"""Bytes of a matrix's row, and of a vector."""
PROCESS = 300 * MIB
"""What a process with torch takes beside its weights, with some to spare."""
_WRITE = 4 * MIB


def write_checkpoint(directory: Path, nbytes: int) -> Path:
    """A checkpoint of exactly ``nbytes`` of weights, a multiple of 1 MiB; returns its directory.

    Raises:
        ConfigError: the disk is full or does not take the file.
    """
    header = json.dumps(_header(nbytes)).encode()
    header += b" " * (-len(header) % 8)
    try:
        directory.mkdir()
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for at in range(0, nbytes, _WRITE):
                file.write(os.urandom(min(_WRITE, nbytes - at)))
            file.flush()
            os.fsync(file.fileno())  # or it is written back while something is being measured
    except OSError as error:
        raise ConfigError(f"cannot write a checkpoint of {nbytes // MIB} MiB: {error}") from error
    return directory


def _header(nbytes: int) -> dict[str, object]:
    return {
        name: {"dtype": "F16", "shape": shape, "data_offsets": [at, at + length]}
        for name, shape, at, length in _tensors(nbytes)
    }


def _tensors(nbytes: int) -> Iterator[tuple[str, list[int], int, int]]:
    """Name, shape, offset and length in bytes of each tensor."""
    for layer, at in enumerate(range(0, nbytes, BLOCK)):
        length = min(BLOCK, nbytes - at) - ROW
        yield f"layers.{layer}.mlp.weight", [length // ROW, ROW // 2], at, length
        yield f"layers.{layer}.norm.weight", [ROW // 2], at + length, ROW


def need_room(directory: Path, nbytes: int, *, arenas: int, processes: int) -> None:
    """Refuse a bench that would fill the disk, or drive this machine out of memory.

    Args:
        directory: where the checkpoint will be written.
        arenas, processes: memories of ``nbytes``, and processes, at one time.
    """
    free = shutil.disk_usage(directory).free
    if free < nbytes + 64 * MIB:
        raise ConfigError(
            f"{nbytes // MIB} MiB do not fit into {directory}, where {free // MIB} MiB are free",
            advice="choose a smaller --mib, or another directory by TMPDIR",
        )
    needed = arenas * nbytes + processes * PROCESS + nbytes  # the file stays in the page cache
    available = _available()
    if available is not None and available < needed:
        raise ConfigError(
            f"{nbytes // MIB} MiB need {needed // MIB} MiB of memory, {available // MIB} MiB are available",
            advice="choose a smaller --mib",
        )


def _available() -> int | None:
    """Bytes that can be allocated: of this machine, and of this control group; None if unknown."""
    found = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limit, stat = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.stat")
    if limit and limit[0].isdecimal():  # what is cached there can be given up
        found.append(int(limit[0]) - sum(int(line.split()[1]) for line in stat if line.startswith("anon ")))
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
