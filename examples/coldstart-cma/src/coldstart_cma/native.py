"""The system call: ``process_vm_readv`` copies from another process's memory into ours.

Decides what each of its failures means. It must not know grants or layouts; ``transport.py``
says which bytes. The interpreter lock is not held during the call.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, cast

from coldstart.errors import TransportError

MAX_PARTS: Final = 1024
"""Pieces of memory on one side of one call (IOV_MAX)."""

PTRACE_ADVICE: Final = (
    "run both workers as one user in one container, with kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE"
)


class Part(NamedTuple):
    """A piece of one process's memory, in bytes."""

    address: int
    length: int


class _Vector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


_MEANINGS: Final[Mapping[int, tuple[str, str, str]]] = {
    errno.ESRCH: ("closed", "is gone", ""),
    errno.EPERM: ("refused", "may not be read by this process", PTRACE_ADVICE),
    errno.EFAULT: ("closed", "has no memory any more at an address that it gave", ""),
    errno.ENOSYS: ("unsupported", "cannot be read: this system has no process_vm_readv", "leave cma out"),
}


def read(pid: int, remote: Sequence[Part], local: Sequence[Part]) -> None:
    """Copy the parts ``remote`` of process ``pid`` into our parts ``local``, as long together. Blocks.

    Raises:
        TransportError: the process is gone, may not be read, or has not all of that memory. Some
            bytes may have been written.
    """
    wanted = sum(part.length for part in remote)
    count = _call()(pid, _vectors(local), len(local), _vectors(remote), len(remote), 0)
    if count < 0:
        code = ctypes.get_errno()
        reason, words, advice = _MEANINGS.get(code, ("failed", f"cannot be read: {os.strerror(code)}", ""))
        raise TransportError(f"process {pid} {words}", reason=reason, advice=advice)
    if count != wanted:
        raise TransportError(f"process {pid} has only {count} of the {wanted} bytes that it gave", reason="closed")


def address_of(view: memoryview) -> int:
    """Where a writable view's bytes lie; good for as long as whoever lent the view keeps them there."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _vectors(parts: Sequence[Part]) -> ctypes.Array[_Vector]:
    return (_Vector * len(parts))(*(_Vector(*part) for part in parts))


@cache
def _call() -> Callable[..., int]:
    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = library.process_vm_readv
    except AttributeError:
        return _missing
    function.restype = ctypes.c_ssize_t
    vectors = ctypes.POINTER(_Vector)
    function.argtypes = (ctypes.c_int, vectors, ctypes.c_ulong, vectors, ctypes.c_ulong, ctypes.c_ulong)
    return cast("Callable[..., int]", function)


def _missing(*arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1
