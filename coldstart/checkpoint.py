"""A checkpoint: which tensors where, and a fingerprint of the content.

Decides what a checkpoint is called in the fleet. Reads headers and small samples, never all the
weights; blocking, so callers run it in a thread. It must not know torch or networks, nor what
kind of shelf the files are on. Which files are read is for ``selection.py`` to say, one file is
parsed in ``headers.py``; the bytes are read by ``transports/storage.py``; the fingerprint becomes
part of a shard's key in ``identity.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from coldstart.errors import CheckpointError
from coldstart.headers import MAX_TENSORS, Header, parse_json, read_file, read_header, shown, unreadable
from coldstart.ports import SAMPLE_BYTES, Checkpoint, Shelf, StoredTensor
from coldstart.selection import PIPELINE, select, select_components, single_file
from coldstart.shelves.directory import DIRECTORY

CONFIG: Final = "config.json"

_READERS: Final = 8
_SAMPLES_PER_TASK: Final = 64

def read_checkpoint(path: Path, shelf: Shelf = DIRECTORY) -> Checkpoint:
    """Read and check the headers of a checkpoint.

    Args:
        path: a directory, or one ``.safetensors`` file (a ``config.json`` beside it is then ignored).
        shelf: where its files are kept.

    In a directory ``model.safetensors`` wins, then ``model.safetensors.index.json``, then the same
    with diffusers' ``diffusion_pytorch_model``, then the only ``.safetensors`` file there is. With an
    index, exactly the tensors it lists are taken. A directory with a ``model_index.json`` is a pipeline:
    the checkpoint is that of its components together, each tensor named ``component.name``.

    Raises:
        CheckpointError: nothing there, unreadable, truncated, or malformed.
    """
    try:
        if shelf.is_file(path / PIPELINE):
            return _read_pipeline(path, shelf)
        return _read_model(path, shelf)
    except OSError as error:  # of the directory itself, or of a component's
        where = error.filename if isinstance(error.filename, str) else shelf.shown(path)
        raise unreadable(where, error) from error


def _read_pipeline(path: Path, shelf: Shelf) -> Checkpoint:
    raw, names = select_components(path, shelf)
    components = {name: _read_model(path / name, shelf) for name in names}
    total = hashlib.blake2b(digest_size=16)
    _add(total, b"pipeline" + raw)
    for name, component in components.items():
        _add(total, name.encode())
        _add(total, component.fingerprint.encode())
    return Checkpoint(
        path=path,
        fingerprint=total.hexdigest(),
        files=tuple(file for component in components.values() for file in component.files),
        tensors={
            f"{name}.{tensor}": stored
            for name, component in components.items()
            for tensor, stored in component.tensors.items()
        },
        config=parse_json(raw, shelf.shown(path / PIPELINE)),
        modified={file: at for component in components.values() for file, at in component.modified.items()},
        components=components,
    )


def _read_model(path: Path, shelf: Shelf) -> Checkpoint:
    """One model: a file, or a directory with one file or the shards of an index."""
    config: bytes | None = None
    weight_map: Mapping[str, Path] | None = None
    if shelf.is_directory(path):
        files, weight_map = select(path, shelf)
        config = read_file(path / CONFIG, shelf) if shelf.is_file(path / CONFIG) else None
    elif shelf.is_file(path):
        files = single_file(path, shelf)
    else:
        what = "neither a file nor a directory" if path.exists() else "no such file or directory"
        raise CheckpointError(
            f"no checkpoint at {shelf.shown(path)}: {what}", advice="check the path and the volume's mount"
        )
    with ThreadPoolExecutor(_READERS, thread_name_prefix="coldstart-checkpoint") as pool:
        headers = dict(zip(files, pool.map(partial(read_header, shelf=shelf), files), strict=True))
        tensors = _joined(headers, weight_map)
        fingerprint = _fingerprint(config, headers.values(), pool, shelf)
    return Checkpoint(
        path=path,
        fingerprint=fingerprint,
        files=files,
        tensors=tensors,
        config=None if config is None else parse_json(config, shelf.shown(path / CONFIG)),
        modified={file: header.modified for file, header in headers.items() if header.modified},
    )


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


def _fingerprint(config: bytes | None, headers: Iterable[Header], pool: Executor, shelf: Shelf) -> str:
    """Hex BLAKE2b-128 of the configuration, every file's size and header, and what tells its content from another.

    That is the store's own checksum where it has one, else 4 KiB of every tensor. The place of a tensor's sample
    follows from its name, so that all hosts agree without reading everything, whatever the files are called and
    wherever they are. An edit that spares every sampled range is not seen here; the published truth, which covers
    every byte, refuses it, and ``ModelVersion.revision`` keeps such versions apart on purpose.
    """
    total = hashlib.blake2b(digest_size=16)
    _add(total, b"" if config is None else b"config" + config)
    for header in headers:
        _add(total, header.size.to_bytes(8, "little"))
        _add(total, header.raw)
        if header.checksum:
            _add(total, b"checksum" + header.checksum.encode())
            continue
        tensors = list(header.tensors.values())
        tasks = [tensors[at : at + _SAMPLES_PER_TASK] for at in range(0, len(tensors), _SAMPLES_PER_TASK)]
        for digests in pool.map(partial(_samples, shelf=shelf), tasks):
            total.update(digests)
    return total.hexdigest()


def _add(total: hashlib.blake2b, field: bytes) -> None:
    """Length first, so that no two sequences of fields look alike."""
    total.update(len(field).to_bytes(8, "little"))
    total.update(field)


def _samples(tensors: Sequence[StoredTensor], shelf: Shelf) -> bytes:
    """Digests of one sample of each tensor; all of one file."""
    path = tensors[0].file
    try:
        with shelf.open(path) as file:
            return b"".join(
                hashlib.blake2b(file.read(offset, length), digest_size=16).digest()
                for offset, length in _sampled(tensors)
            )
    except OSError as error:
        raise unreadable(shelf.shown(path), error) from error


def _sampled(tensors: Iterable[StoredTensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        choices = max(tensor.nbytes - SAMPLE_BYTES, 0) + 1
        chosen = int.from_bytes(hashlib.blake2b(tensor.name.encode(), digest_size=8).digest(), "little") % choices
        yield tensor.offset + chosen, min(tensor.nbytes, SAMPLE_BYTES)
