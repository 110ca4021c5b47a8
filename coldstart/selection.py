"""Which files of a checkpoint are read: one, the shards of an index, or the components of a pipeline.

Decides by names alone, those that the libraries write, and refuses names that lead out of the
directory. It must not know what a component is made of, nor what stands in the files of weights
(``headers.py``); ``checkpoint.py`` reads what was selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from coldstart.errors import CheckpointError
from coldstart.headers import parse_json, read_file, shown
from coldstart.ports import Shelf

INDEX: Final = "model.safetensors.index.json"
PIPELINE: Final = "model_index.json"
"""The file that makes a directory a pipeline: it names the components, each in a directory of its own."""
MAX_COMPONENTS: Final = 64

_USUAL: Final = (
    "model.safetensors",
    INDEX,
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
)
"""What transformers and diffusers write, in the order in which each of them looks for it."""

_FOREIGN: Final = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
"""Endings of files that hold weights in a form that is never loaded here."""


def single_file(path: Path, shelf: Shelf) -> tuple[Path, ...]:
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{shelf.shown(path)} is not a .safetensors file", advice="convert it to safetensors")
    return (path,)


def select(directory: Path, shelf: Shelf) -> tuple[tuple[Path, ...], Mapping[str, Path] | None]:
    """The checkpoint's files in order of their names, and the index's tensor-to-file map if there is one."""
    for name in _USUAL:
        path = directory / name
        if not shelf.is_file(path):
            continue
        if path.suffix != ".json":
            return (path,), None
        weight_map = _read_index(path, shelf)
        return tuple(sorted(set(weight_map.values()))), weight_map
    names, where = shelf.names(directory), shelf.shown(directory)
    found = [name for name in names if name.endswith(".safetensors")]
    if len(found) == 1:
        return (directory / found[0],), None
    if found:
        raise CheckpointError(
            f"{where} holds {len(found)} safetensors files ({_listed(found)}) and no {INDEX}",
            advice="restore the index, or name one file",
        )
    foreign = [name for name in names if name.endswith(_FOREIGN)]
    if foreign:
        raise CheckpointError(
            f"no safetensors in {where}: {_listed(foreign)} found", advice="convert it to safetensors"
        )
    raise CheckpointError(
        f"no safetensors in {where}: {_listed(names) + ' found' if names else 'it is empty'}",
        advice="check the path, or fetch the checkpoint again",
    )


def select_components(directory: Path, shelf: Shelf) -> tuple[bytes, tuple[str, ...]]:
    """A pipeline's ``model_index.json`` as it stands, and the names of the components that have weights.

    Only names that could be Python's are taken: none of them leads out of the directory. What is no
    component (a number, a switch, the library's own notes) is left to the library, and so are
    schedulers and tokenizers, which have no weights.
    """
    path = directory / PIPELINE
    raw, where = read_file(path, shelf), shelf.shown(path)
    listed = parse_json(raw, where).items()
    named = [name for name, value in listed if _is_component(value) and not name.startswith("_")]
    for name in named:
        if not name.isidentifier() or not name.isascii():
            raise CheckpointError(
                f"{where} names a component {shown(name)}, which is not the plain name of a directory",
                advice="fetch it again, and only from where you trust",
            )
    if len(named) > MAX_COMPONENTS:
        raise CheckpointError(
            f"{where} names {len(named)} components, more than the {MAX_COMPONENTS} allowed", advice="fetch it again"
        )
    found = tuple(name for name in sorted(named) if _has_weights(directory / name, shelf))
    if not found:
        raise CheckpointError(
            f"no component that {where} names has weights ({_listed(named) or 'it names none'})",
            advice="check the path, or fetch the pipeline again",
        )
    return raw, found


def _is_component(value: object) -> bool:
    """Library and class; both are null for a component that is left out."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _has_weights(directory: Path, shelf: Shelf) -> bool:
    return shelf.is_directory(directory) and any(is_weights(name) for name in shelf.names(directory))


def is_weights(name: str) -> bool:
    """Whether a file of this name holds weights, in whatever form."""
    return name.endswith((".safetensors", *_FOREIGN))


def _listed(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(shown, names[:limit])) + more


def _read_index(path: Path, shelf: Shelf) -> dict[str, Path]:
    where = shelf.shown(path)
    weight_map = parse_json(read_file(path, shelf), where).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{where} has no weight_map", advice="fetch the index again")
    present = set(shelf.names(path.parent))
    return {tensor: path.parent / _member(name, present, where) for tensor, name in weight_map.items()}


def _member(name: object, present: set[str], index: str) -> str:
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
    return name
