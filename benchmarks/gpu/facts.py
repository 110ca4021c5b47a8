"""The machine that a run was made on, as its result names it, and what can be measured there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import torch

import coldstart
from benchmarks.gpu.side import Task
from benchmarks.gpu.words import Facts
from coldstart import registry
from coldstart.errors import ColdstartError
from coldstart.ports import TransportSettings

TRANSPORTS: Final = ("tcp", "nccl", "transfer-engine")
"""Always in the table; others are, where they are installed and can serve the device."""
LOADERS: Final = ("fastsafetensors", "instanttensor", "runai_model_streamer")
PACKAGES: Final = ("triton", "safetensors", "anyio", "nccl4py", "mooncake-transfer-engine-cuda13", *LOADERS)
VARIABLES: Final = ("NCCL_", "TORCH_", "NVSHMEM_", "MC_", "CUDA_", "COLDSTART_", "UCX_")


def find(task: Task) -> None:
    """One side tells what there is; it makes no CUDA context."""
    if task.lends:
        return
    cuda = task.device != "cpu"
    count = torch.cuda.device_count() if cuda else 0
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(count))
    shown = {
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs, {_memory()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "coldstart": coldstart.__version__,
        "torch": str(torch.__version__),
        **{name: found for name in PACKAGES if (found := _version(name))},
    }
    if cuda:
        nccl: tuple[int, ...] = import_module("torch.cuda.nccl").version()
        shown |= {
            "gpus": ", ".join(f"{name} ({_gpu_memory(index)})" for index, name in enumerate(gpus)) or "none",
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, nccl)),
        }
    shown |= {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    task.tell(Facts(shown, gpus, _transports(task.device), {name: _importable(name) for name in LOADERS}))


def _transports(device: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*TRANSPORTS, *registry.names("transports")):
        why = _unusable(name, device)
        if not why or name in TRANSPORTS:
            found[name] = why
    return found


def _unusable(name: str, device: str) -> str:
    try:
        factory = registry.transport(name)
        traits = factory.open(TransportSettings(device=device)).traits
    except ColdstartError as error:
        return str(error)
    except Exception as error:  # a plugin may raise anything
        return f"{type(error).__name__}: {error}"
    kind = device.partition(":")[0]
    if not traits.needs_peer or kind not in traits.device_kinds:
        return f"does not serve {kind} memory between peers"
    return ""


def _importable(name: str) -> str:
    try:
        import_module(name)
    except ImportError:
        return "not installed"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 1e9:.0f} GB"


def _gpu_memory(index: int) -> str:
    return f"{torch.cuda.get_device_properties(index).total_memory / 1e9:.0f} GB"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    return said.splitlines()[0].strip() if said.strip() else "unknown"
