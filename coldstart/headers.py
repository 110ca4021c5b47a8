"""One safetensors file: where its tensors are, believed only after every number was checked.

Decides whether a file is well formed: sizes are capped before anything is parsed, and offsets
must tile the file exactly. The names inside are data and never become paths. It must not know
which files make up a checkpoint (``checkpoint.py``), where they are kept (``ports/shelves.py``), nor read
weights (``transports/storage.py``).

The format: 8 bytes of little-endian length, a JSON object of that length that maps each name to
``{"dtype", "shape", "data_offsets"}``, then the bytes of the tensors, row-major, without gaps.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from coldstart.errors import CheckpointError
from coldstart.ports import Opened, Shelf, StoredTensor
from coldstart.shelves.directory import DIRECTORY

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
MAX_TENSORS: Final = 200_000
_MAX_MARKS: Final = 16 * MAX_TENSORS
"""Braces, brackets and commas in one JSON text: bounds what parsing it can allocate."""

_MAX_COUNT: Final = 2**63 - 1
_PREFIX_BYTES: Final = 8
_METADATA: Final = "__metadata__"

DTYPES: Final[dict[str, tuple[str, int]]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F4": ("float4_e2m1fn_x2", 4),
}
"""Name in the file to torch's spelling and bits per element (torch has no 6-bit dtypes)."""


class Header(msgspec.Struct, frozen=True):
    """A checked file: its size, the header's bytes as they stand, and its tensors in file order.

    ``modified`` and ``checksum`` are as :class:`coldstart.ports.Opened` has them.
    """

    size: int
    modified: int
    raw: bytes
    tensors: dict[str, StoredTensor]
    checksum: str = ""


class _Entry(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path, shelf: Shelf = DIRECTORY) -> Header:
    """Read and check the header of one file; no byte of a tensor is read.

    Raises:
        CheckpointError: unreadable, truncated, or not exactly what the format demands.
    """
    where = shelf.shown(path)
    try:
        with shelf.open(path) as file:
            raw = _raw_header(file, where)
    except OSError as error:
        raise unreadable(where, error) from error
    parsed = parse_json(raw, where)
    _check_metadata(parsed.get(_METADATA), where)
    entries = [_entry(name, value, where) for name, value in parsed.items() if name != _METADATA]
    if len(entries) > MAX_TENSORS:
        raise _refused(where, f"more than {MAX_TENSORS} tensors")
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    start = _PREFIX_BYTES + len(raw)
    _check_tiling(entries, start, file.size, where)
    return Header(
        size=file.size,
        modified=file.modified,
        raw=raw,
        tensors={
            entry.name: StoredTensor(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                file=path,
                offset=start + entry.begin,
                nbytes=entry.end - entry.begin,
            )
            for entry in entries
        },
        checksum=file.checksum,
    )


def read_file(path: Path, shelf: Shelf = DIRECTORY) -> bytes:
    """The content of a small file (JSON); larger ones are refused before reading."""
    where = shelf.shown(path)
    try:
        with shelf.open(path) as file:
            if file.size > MAX_HEADER_BYTES:
                raise _refused(where, f"{file.size} bytes of JSON, more than the {MAX_HEADER_BYTES} allowed")
            return file.read(0, file.size)
    except OSError as error:
        raise unreadable(where, error) from error


def parse_json(data: bytes, where: str) -> dict[str, object]:
    """The JSON object in ``data``; a repeated key is refused, since readers disagree about which one counts."""
    if sum(data.count(mark) for mark in (b"{", b"[", b",")) > _MAX_MARKS:
        raise _refused(where, f"its JSON has more than {_MAX_MARKS} elements")
    try:
        parsed: object = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as error:
        raise _refused(where, "its JSON is nested too deeply") from error
    except ValueError as error:  # malformed, not UTF-8, a repeated key, an absurdly long number
        raise _refused(where, f"its JSON is malformed ({error})") from error
    if not isinstance(parsed, dict):
        raise _refused(where, "its JSON is not an object")
    return parsed


def shown(name: str) -> str:
    """A name from a file, safe to print on one line."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def unreadable(where: str, error: OSError) -> CheckpointError:
    """What the operating system refused, for people."""
    return CheckpointError(
        f"cannot read {where}: {error.strerror or error}", advice="check the path and its permissions"
    )


def _refused(where: str, why: str) -> CheckpointError:
    return CheckpointError(f"{where} cannot be used: {why}", advice="fetch or export it again")


def _raw_header(file: Opened, where: str) -> bytes:
    prefix = file.read(0, _PREFIX_BYTES)
    if len(prefix) < _PREFIX_BYTES:
        raise _refused(where, f"only {len(prefix)} bytes, truncated before the header")
    length = _checked_length(prefix, file.size, where)
    raw = file.read(_PREFIX_BYTES, length)
    if len(raw) < length:
        raise _refused(where, f"truncated while reading, {length - len(raw)} bytes of its header are missing")
    if not raw.startswith(b"{"):
        raise _refused(where, "its header does not start with '{'")
    # Counted before parsing; escapes could hide some, so the parsed entries are counted again.
    if raw.count(b'"data_offsets"') > MAX_TENSORS:
        raise _refused(where, f"more than {MAX_TENSORS} tensors")
    return raw


def _checked_length(prefix: bytes, size: int, where: str) -> int:
    if prefix == b"version ":
        raise CheckpointError(f"{where} is a Git LFS pointer, not the file itself", advice="run `git lfs pull`")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise _refused(where, f"it claims a header of {length} bytes, more than the {MAX_HEADER_BYTES} allowed")
    if length > size - _PREFIX_BYTES:
        raise _refused(where, f"truncated, {length + _PREFIX_BYTES - size} bytes of its header are missing")
    return length


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {shown(repeated)} appears twice")
    return result


def _check_metadata(value: object, where: str) -> None:
    """Free text by the exporter: nothing here depends on it, and other readers refuse anything else."""
    if value is None or (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
        return
    raise _refused(where, f"{_METADATA} is not a map of strings")


def _entry(name: str, value: object, file: str) -> _Entry:
    """One tensor of the header, checked on its own."""
    where = f"tensor {shown(name)}"
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise _refused(file, f"{where} has a name that is not Unicode")
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise _refused(file, f"{where} lacks dtype, shape or data_offsets")
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _refused(file, f"{where} has unknown dtype {shown(str(dtype))}")
    shape = _counts(value["shape"], f"{where} has a shape", file)
    offsets = _counts(value["data_offsets"], f"{where} has data_offsets", file)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _refused(file, f"{where} has data_offsets that are not a range")
    begin, end = offsets
    torch_name, bits = DTYPES[dtype]
    expected = _bits(shape, bits, where, file)
    if expected % 8:
        raise _refused(file, f"{where} does not end on a whole byte")
    if end - begin != expected // 8:
        raise _refused(file, f"{where} needs {expected // 8} bytes and its offsets give {end - begin}")
    return _Entry(name, torch_name, _torch_shape(dtype, shape, where, file), begin, end)


def _counts(value: object, what: str, file: str) -> tuple[int, ...]:
    """A list of sizes or offsets; ``True`` is an int to Python and not to JSON."""
    if not isinstance(value, list):
        raise _refused(file, f"{what} that is not a list")
    for number in value:
        if type(number) is not int or not 0 <= number <= _MAX_COUNT:
            raise _refused(file, f"{what} with {shown(str(number))}, which is not a size")
    return tuple(value)


def _bits(shape: tuple[int, ...], bits: int, where: str, file: str) -> int:
    total = bits
    for size in shape:
        total *= size
        if total > _MAX_COUNT:  # stop here: a long list of huge sizes would take for ever to multiply
            raise _refused(file, f"{where} overflows 64 bits")
    return total


def _torch_shape(dtype: str, shape: tuple[int, ...], where: str, file: str) -> tuple[int, ...]:
    """The file counts single 4-bit values where torch counts bytes that hold two of them."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise _refused(file, f"{where} is F4 with an odd last dimension, which torch cannot hold")
    return (*shape[:-1], shape[-1] // 2)


def _check_tiling(entries: list[_Entry], start: int, size: int, where: str) -> None:
    """Refuse holes, overlaps, missing and surplus bytes."""
    position = 0
    for entry in entries:
        if entry.begin != position:
            kind = "overlaps the tensor before it" if entry.begin < position else "leaves a hole before it"
            raise _refused(where, f"tensor {shown(entry.name)} {kind} (starts at {entry.begin}, not {position})")
        position = entry.end
    missing = start + position - size
    if missing > 0:
        raise _refused(where, f"truncated, {missing} of {start + position} bytes are missing")
    if missing < 0:
        raise _refused(where, f"{-missing} bytes follow the last tensor")
