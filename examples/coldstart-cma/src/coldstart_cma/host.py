"""Who is who on this host, and whether one process may read another here.

Decides from ``/proc`` alone, which it only reads. It must not know transports.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

from coldstart.errors import TransportError
from coldstart_cma import native
from coldstart_cma.native import Part

_CAP_SYS_PTRACE = 1 << 19
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@cache
def identity() -> str:
    """This boot of this kernel and this process-number namespace: within it, a process number means one process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def started(pid: int) -> int:
    """When process ``pid`` began, in clock ticks since boot; 0 if it has ended.

    With the number it names a process for good: a later process of the same number began later.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    state, ticks = fields[0], int(fields[19])
    return 0 if state in "ZX" else ticks


def obstacle() -> str:
    """Why no process can read another's memory here; empty if it can, as far as can be told beforehand."""
    if sys.platform != "linux":
        return f"{sys.platform} has no process_vm_readv, only Linux does"
    if refusal := _reading_ourselves():
        return refusal
    try:
        identity()
    except OSError as error:
        return f"/proc does not say which host this is: {error.strerror}"
    scope = ptrace_scope()
    if scope == 0 or (scope < 3 and _may_trace()):
        return ""
    return f"kernel.yama.ptrace_scope is {scope}: processes may not read each other"


def ptrace_scope() -> int:
    """Yama's setting: from 1 on only children may be read, from 3 on none; 0 where there is no Yama."""
    try:
        return int(_YAMA.read_text())
    except OSError:
        return 0


def _may_trace() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _CAP_SYS_PTRACE)
    return False


def _reading_ourselves() -> str:
    """Why the system call fails even here, where nothing is forbidden: no such call, or a filter in front of it."""
    here, there = ctypes.c_uint64(), ctypes.c_uint64(1)
    try:
        native.read(os.getpid(), [Part(ctypes.addressof(there), 8)], [Part(ctypes.addressof(here), 8)])
    except TransportError as error:
        return f"process_vm_readv is blocked here: {error.what}"
    return "" if here.value == there.value else "process_vm_readv does nothing here"
