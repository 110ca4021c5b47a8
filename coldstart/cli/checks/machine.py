"""Checks of this machine alone: interpreter, torch and its devices, limits, memory.

Decides which limits are too low for cold starts. All of it blocks for a moment at most, except
for importing torch. It must not know settings, stores or peers.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coldstart.cli.checks.check import Check, ok, warn
from coldstart.cli.output import size

OPEN_FILES = 1024
"""Checkpoint files, connections of all slots, and what the serving process itself holds open."""
LOCKED_BYTES = 1 << 30
SHARED_BYTES = 1 << 30
FREE_BYTES = 2 << 30

_NVIDIA = Path("/dev/nvidiactl")
_INFINIBAND = Path("/sys/class/infiniband")
_SHARED = Path("/dev/shm")


def python() -> Sequence[Check]:
    """Interpreter and system."""
    return [ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]


def torch() -> Sequence[Check]:
    """Whether torch imports, and which devices it sees."""
    from coldstart.skeletons.machine_facts import torch_facts

    facts = torch_facts()
    if facts.gpus:
        names = ", ".join(f"cuda:{index} {gpu.name} ({size(gpu.memory)})" for index, gpu in enumerate(facts.gpus))
        return [ok("torch", f"{facts.version} with {names}")]
    finding = f"{facts.version}, no GPU: {facts.trouble}"
    if facts.cuda:
        advice = "check nvidia-smi, CUDA_VISIBLE_DEVICES and that the driver is new enough"
        return [warn("torch", finding, f"{advice} for CUDA {facts.cuda}")]
    if _NVIDIA.exists():
        return [warn("torch", finding, "there is an NVIDIA driver here: install a torch that is built with CUDA")]
    return [ok("torch", finding)]


def open_files() -> Sequence[Check]:
    """RLIMIT_NOFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        wanted = OPEN_FILES * 16 if hard == resource.RLIM_INFINITY else min(OPEN_FILES * 16, hard)
        advice = f"raise it with: ulimit -n {wanted}"
        if wanted < OPEN_FILES:
            advice = "raise it and its hard limit: LimitNOFILE= of systemd, docker run --ulimit nofile=65536"
        return [warn("open files", f"at most {soft}", advice)]
    return [ok("open files", f"at most {_limit(soft)}")]


def locked_memory() -> Sequence[Check]:
    """RLIMIT_MEMLOCK, which RDMA needs; without such hardware it is only told."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    finding = f"{'no limit' if soft == resource.RLIM_INFINITY else size(soft)}"
    if soft == resource.RLIM_INFINITY or soft >= LOCKED_BYTES:
        return [ok("locked memory", finding)]
    with suppress(OSError):
        if any(_INFINIBAND.iterdir()):
            advice = "RDMA pins the weights: ulimit -l unlimited, or docker run --ulimit memlock=-1"
            return [warn("locked memory", finding, advice)]
    return [ok("locked memory", f"{finding}; matters for RDMA only, which is not here")]


def memory() -> Sequence[Check]:
    """What is free, in the machine and in the container."""
    free, total = _free_memory()
    if not total:
        return [ok("memory", "this system does not tell")]
    finding = f"{size(free)} free of {size(total)}"
    if free < FREE_BYTES:
        return [warn("memory", finding, "weights of CPU workers, and staging for GPU workers, must fit into it")]
    return [ok("memory", finding)]


def shared_memory() -> Sequence[Check]:
    """/dev/shm, which NCCL uses between processes; Docker makes it 64 MB."""
    try:
        space = shutil.disk_usage(_SHARED)
    except OSError as error:
        return [ok("shared memory", f"no {_SHARED} here ({error.strerror})")]
    finding = f"{size(space.free)} free of {size(space.total)} in {_SHARED}"
    if _NVIDIA.exists() and space.free < SHARED_BYTES:
        return [warn("shared memory", finding, "NCCL may need more: docker run --shm-size=1g or --ipc=host")]
    return [ok("shared memory", finding)]


def _limit(value: int) -> str:
    return "any number" if value == resource.RLIM_INFINITY else str(value)


def _free_memory() -> tuple[int, int]:
    """Free and total bytes; the smaller of machine and control group."""
    free = total = 0
    with suppress(OSError, ValueError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(told.get("MemAvailable", "").split()[0]) * 1024
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        free, total = min(free, max(0, most - used)), min(total, most)
    return free, total
