"""A checkpoint on disk: which files, which tensors where, and a fingerprint of the content.

Decides which files of a directory are the checkpoint and what it is called in the fleet. Reads
headers and small samples, never all the weights; blocking, so callers run it in a thread. It
must not know torch or networks. One file is parsed in ``headers.py``; the bytes are read by
``transports/storage.py``; the fingerprint becomes part of a shard's key in ``identity.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from coldstart.errors import CheckpointError
from coldstart.headers import MAX_TENSORS, Header, parse_json, read_file, read_header, shown, unreadable
from coldstart.ports import Checkpoint, StoredTensor

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
CONFIG: Final = "config.json"
SAMPLE_BYTES: Final = 4096

_READERS: Final = 8
_SAMPLES_PER_TASK: Final = 64
_FOREIGN: Final = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
"""Endings of files that hold weights in a form that is never loaded here."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check the headers of a checkpoint.

    Args:
        path: a directory, or one ``.safetensors`` file (a ``config.json`` beside it is then ignored).

    In a directory ``model.safetensors`` wins, then ``model.safetensors.index.json``, then the only
    ``.safetensors`` file there is. With an index, exactly the tensors it lists are taken.

    Raises:
        CheckpointError: nothing there, unreadable, truncated, or malformed.
    """
    config: bytes | None = None
    weight_map: Mapping[str, Path] | None = None
    try:
        if path.is_dir():
            files, weight_map = _select(path)
            config = read_file(path / CONFIG) if (path / CONFIG).exists() else None
        elif path.is_file():
            files = _single_file(path)
        else:
            raise CheckpointError(
                f"no checkpoint at {path}: no such file or directory", advice="check the path and the volume's mount"
            )
    except OSError as error:
        raise unreadable(path, error) from error
    with ThreadPoolExecutor(_READERS, thread_name_prefix="coldstart-checkpoint") as pool:
        headers = dict(zip(files, pool.map(read_header, files), strict=True))
        tensors = _joined(headers, weight_map)
        fingerprint = _fingerprint(config, headers.values(), pool)
    return Checkpoint(
        path=path,
        fingerprint=fingerprint,
        files=files,
        tensors=tensors,
        config=None if config is None else parse_json(config, path / CONFIG),
        modified={file: header.modified for file, header in headers.items()},
    )


def _single_file(path: Path) -> tuple[Path, ...]:
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path} is not a .safetensors file", advice="convert it to safetensors")
    return (path,)


def _select(directory: Path) -> tuple[tuple[Path, ...], Mapping[str, Path] | None]:
    """The checkpoint's files in order of their names, and the index's tensor-to-file map if there is one."""
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,), None
    if (directory / INDEX).is_file():
        weight_map = _read_index(directory)
        return tuple(sorted(set(weight_map.values()))), weight_map
    names = sorted(entry.name for entry in directory.iterdir())
    found = [name for name in names if name.endswith(".safetensors")]
    if len(found) == 1:
        return (directory / found[0],), None
    if found:
        raise CheckpointError(
            f"{directory} holds {len(found)} safetensors files ({_listed(found)}) and no {INDEX}",
            advice="restore the index, or name one file",
        )
    foreign = [name for name in names if name.endswith(_FOREIGN)]
    if foreign:
        raise CheckpointError(
            f"no safetensors in {directory}: {_listed(foreign)} found", advice="convert it to safetensors"
        )
    raise CheckpointError(
        f"no safetensors in {directory}: {_listed(names) + ' found' if names else 'it is empty'}",
        advice="check the path, or fetch the checkpoint again",
    )


def _listed(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(shown, names[:limit])) + more


def _read_index(directory: Path) -> dict[str, Path]:
    path = directory / INDEX
    weight_map = parse_json(read_file(path), path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map", advice="fetch the index again")
    present = {entry.name for entry in directory.iterdir()}
    return {tensor: _member(name, present, path) for tensor, name in weight_map.items()}


def _member(name: object, present: set[str], index: Path) -> Path:
    """The file an index means: a plain name of a file that is in the directory, or refused."""
    if not isinstance(name, str) or not name.endswith(".safetensors") or {"/", "\\", "\0"} & set(name):
        raise CheckpointError(
            f"{index} refers to {shown(str(name))}, which is not the plain name of a safetensors file",
            advice="fetch the index again",
        )
    if name not in present:
        raise CheckpointError(
            f"{index} refers to {shown(name)}, which is not in the directory", advice="the download is incomplete"
        )
    return index.parent / name


def _joined(headers: Mapping[Path, Header], weight_map: Mapping[str, Path] | None) -> dict[str, StoredTensor]:
    """All tensors by name; with an index, those it lists, each from the file it names."""
    if weight_map is None:
        (header,) = headers.values()
        return header.tensors
    if len(weight_map) > MAX_TENSORS:
        raise CheckpointError(f"more than {MAX_TENSORS} tensors in the index of {next(iter(headers)).parent}")
    for name, file in weight_map.items():
        if name not in headers[file].tensors:
            raise CheckpointError(
                f"{file} lacks tensor {shown(name)} that the index promises", advice="fetch index and files again"
            )
    return {
        name: tensor
        for file, header in headers.items()
        for name, tensor in header.tensors.items()
        if weight_map.get(name) == file
    }


# --------------------------------------------------------------------------------- fingerprint


def _fingerprint(config: bytes | None, headers: Iterable[Header], pool: Executor) -> str:
    """Hex BLAKE2b-128 of the configuration, every file's size and header, and 4 KiB of every tensor.

    The place of a tensor's sample follows from its name, so that all hosts agree without reading
    everything, whatever the files are called and wherever they are. An edit that spares every
    sampled range is not seen here; the published truth, which covers every byte, refuses it, and
    ``ModelVersion.revision`` keeps such versions apart on purpose.
    """
    total = hashlib.blake2b(digest_size=16)
    _add(total, b"" if config is None else b"config" + config)
    for header in headers:
        _add(total, header.size.to_bytes(8, "little"))
        _add(total, header.raw)
        tensors = list(header.tensors.values())
        tasks = [tensors[at : at + _SAMPLES_PER_TASK] for at in range(0, len(tensors), _SAMPLES_PER_TASK)]
        for digests in pool.map(_samples, tasks):
            total.update(digests)
    return total.hexdigest()


def _add(total: hashlib.blake2b, field: bytes) -> None:
    """Length first, so that no two sequences of fields look alike."""
    total.update(len(field).to_bytes(8, "little"))
    total.update(field)


def _samples(tensors: Sequence[StoredTensor]) -> bytes:
    """Digests of one sample of each tensor; all of one file."""
    path = tensors[0].file
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(
                hashlib.blake2b(os.pread(descriptor, length, offset), digest_size=16).digest()
                for offset, length in _sampled(tensors)
            )
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(path, error) from error


def _sampled(tensors: Iterable[StoredTensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        choices = max(tensor.nbytes - SAMPLE_BYTES, 0) + 1
        chosen = int.from_bytes(hashlib.blake2b(tensor.name.encode(), digest_size=8).digest(), "little") % choices
        yield tensor.offset + chosen, min(tensor.nbytes, SAMPLE_BYTES)
