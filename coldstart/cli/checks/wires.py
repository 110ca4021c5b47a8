"""What connects this machine's GPUs with each other and with other machines, as the system tells it.

Decides nothing: it reads NVML, if the library nvidia-ml-py is installed, and files below ``/sys``. Whatever is not
there is empty. What to make of it is said in ``paths.py``. The only module that knows NVML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import msgspec

INFINIBAND = Path("/sys/class/infiniband")
INTERFACES = Path("/sys/class/net")
DRIVER = Path("/proc/driver/nvidia/version")

_MAX_LINKS = 18
"""NVLinks of one GPU, at most."""
_ANCESTORS = (
    (0, "one board"),
    (10, "one PCIe switch"),
    (20, "PCIe switches of one root"),
    (30, "one PCIe root"),
    (40, "different PCIe roots of one CPU"),
    (50, "different CPUs"),
)
"""What two GPUs have in common, by NVML's levels."""


class Wire(msgspec.Struct, frozen=True):
    """Between two GPUs: NVLinks straight from one to the other or into a switch, and how PCIe connects them."""

    nvlinks: int = 0
    pcie: str = ""


class Nvml(msgspec.Struct, frozen=True):
    """What NVML tells; ``trouble`` is why it tells nothing."""

    driver: str = ""
    wires: Mapping[tuple[int, int], Wire] = {}
    trouble: str = ""


class Port(msgspec.Struct, frozen=True):
    """One port of an RDMA device; ``gbits`` per second, 0 where it is not told."""

    name: str
    up: bool
    gbits: float


class Interface(msgspec.Struct, frozen=True):
    """One network interface; ``gbits`` per second, 0 where it is not told, as of most virtual ones."""

    name: str
    up: bool
    gbits: float


# ------------------------------------------------------------------------------------------- NVML


class _Library(Protocol):
    """``pynvml``, as far as it is used here; handles are of the library's own making."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, one: object, other: object) -> int: ...
    def nvmlDeviceGetNvLinkState(self, device: object, link: int) -> int: ...


def nvml(uuids: Sequence[str]) -> Nvml:
    """Ask NVML about the GPUs with these ids, in their order. Blocks for a moment; never raises."""
    try:
        library = cast(_Library, import_module("pynvml"))
    except ImportError:
        return Nvml(_driver_of_system(), trouble="NVLink is not told without NVML: pip install nvidia-ml-py")
    try:
        library.nvmlInit()
    except Exception as error:  # of its own kind; there may be no driver
        return Nvml(_driver_of_system(), trouble=f"NVML does not start: {error}")
    try:
        names = [uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in uuids]
        handles = [library.nvmlDeviceGetHandleByUUID(name) for name in names]
        links = [_links(library, handle) for handle in handles]
        wires = {
            (one, other): Wire(min(links[one], links[other]), _pcie(library, handles[one], handles[other]))
            for one in range(len(handles))
            for other in range(one + 1, len(handles))
        }
        return Nvml(library.nvmlSystemGetDriverVersion(), wires)
    except Exception as error:
        return Nvml(_driver_of_system(), trouble=f"NVML does not tell: {error}")
    finally:
        with suppress(Exception):
            library.nvmlShutdown()


def _links(library: _Library, handle: object) -> int:
    """How many NVLinks are up."""
    up = 0
    for link in range(_MAX_LINKS):
        try:
            up += library.nvmlDeviceGetNvLinkState(handle, link)
        except Exception:  # this GPU has no more of them
            break
    return up


def _pcie(library: _Library, one: object, other: object) -> str:
    try:
        level = library.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except Exception:
        return ""
    return next((words for least, words in reversed(_ANCESTORS) if level >= least), "")


def _driver_of_system() -> str:
    with suppress(OSError, IndexError, UnicodeDecodeError):
        first = DRIVER.read_text().splitlines()[0]
        return next(word for word in first.split() if word[:1].isdigit() and "." in word)
    return ""


# ------------------------------------------------------------------------------------------- /sys


def rdma_ports() -> Sequence[Port]:
    """The ports of all RDMA devices."""
    found: list[Port] = []
    for device in _entries(INFINIBAND):
        for port in _entries(device / "ports"):
            up = "ACTIVE" in _text(port / "state")
            found.append(Port(f"{device.name}:{port.name}", up, _number(_text(port / "rate").split(" ")[0])))
    return found


def interfaces() -> Sequence[Interface]:
    """The network interfaces, loopback left out."""
    return [
        Interface(each.name, _text(each / "operstate") == "up", max(0.0, _number(_text(each / "speed")) / 1000))
        for each in _entries(INTERFACES)
        if each.name != "lo"
    ]


def _entries(directory: Path) -> Sequence[Path]:
    with suppress(OSError):
        return sorted(directory.iterdir())
    return ()


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def _number(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    return 0.0
