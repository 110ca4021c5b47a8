"""What this machine's links can do, and why not more.

Decides what of the facts (``wires.py``, torch, plugins, remembered rates) an operator should read, and what to
do next. Pure but for :func:`gather`, so that it can be asked about machines that are not here.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import msgspec

from coldstart import registry
from coldstart.cli.checks import wires
from coldstart.cli.checks.check import Check, in_daemon_thread, in_words, ok, warn
from coldstart.cli.checks.wires import Interface, Nvml, Port, Wire
from coldstart.cli.output import age
from coldstart.config import Settings
from coldstart.errors import ColdstartError, UnknownPlugin
from coldstart.links import files
from coldstart.links.rates import Path, Rate, is_fresh
from coldstart.ports import Traits, Transport, TransportSettings

if TYPE_CHECKING:
    from coldstart.skeletons.machine_facts import TorchFacts

GPU_TRANSPORTS: Mapping[str, str] = {
    "nccl": "pip install 'coldstart-nccl[cuda13]'",
    "transfer-engine": "pip install 'coldstart-transfer-engine[cuda13]'",
}
"""What reads GPU memory without a detour, and how to get it."""

MEASURE = "measure it: coldstart doctor --links PEER"
LOOK = "look into that"
CLOSE_SECONDS = 2.0
SHOWN = 4
"""Remembered rates in one line, at most."""


class Way(msgspec.Struct, frozen=True):
    """One transport for one kind of memory: what it is like here, or ``obstacle``, why it is not, with ``advice``."""

    transport: str
    kind: str
    traits: Traits | None
    obstacle: str = ""
    advice: str = ""


class View(msgspec.Struct, frozen=True):
    """Everything that the checks are made from. ``host`` is what peers are told."""

    torch: TorchFacts
    nvml: Nvml
    ports: tuple[Port, ...]
    interfaces: tuple[Interface, ...]
    ways: tuple[Way, ...]
    rates: Mapping[Path, Rate]
    host: str
    now: float


async def gather(settings: Settings, host: str, usable: Sequence[str], complain: Callable[[str], None]) -> View:
    """Look at this machine, in a thread; ``complain`` hears of remembered rates that cannot be used."""
    opened: list[Transport] = []

    def look() -> View:
        from coldstart.skeletons.machine_facts import torch_facts

        torch, directory = torch_facts(), settings.links_directory
        kinds = ("cpu", "cuda:0") if torch.gpus else ("cpu",)
        missing = [name for name in GPU_TRANSPORTS if torch.gpus and name not in usable]
        return View(
            torch,
            wires.nvml([gpu.uuid for gpu in torch.gpus]) if torch.gpus else Nvml(),
            tuple(wires.rdma_ports()),
            tuple(wires.interfaces()),
            (
                *(_way(name, device, host, opened) for name in usable for device in kinds),
                *(_way(name, "cuda:0", host, opened) for name in missing),
            ),
            files.load(directory, complain) if directory is not None else {},
            host,
            time.time(),
        )

    try:
        return await in_daemon_thread(look)
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            for transport in opened:
                await transport.aclose()


def _way(name: str, device: str, host: str, opened: list[Transport]) -> Way:
    kind = device.partition(":")[0]
    try:
        transport = registry.transport(name).open(TransportSettings(host=host, device=device))
        opened.append(transport)
        return Way(name, kind, transport.traits)
    except UnknownPlugin:
        return Way(name, kind, None, "not installed", GPU_TRANSPORTS.get(name, LOOK))
    except ColdstartError as error:
        return Way(name, kind, None, error.what, error.advice or GPU_TRANSPORTS.get(name, LOOK))
    except Exception as error:  # a plugin may raise anything
        return Way(name, kind, None, in_words(error), GPU_TRANSPORTS.get(name, LOOK))


# ------------------------------------------------------------------------------------ the findings


def checks(view: View) -> Sequence[Check]:
    """All findings, the machine's before the transports'."""
    return [*gpus(view), *gpu_links(view), rdma(view), network(view), *transports(view)]


def gpus(view: View) -> Sequence[Check]:
    """Driver and runtime, where there is a GPU."""
    if not view.torch.gpus:
        return []
    driver = f"driver {view.nvml.driver}" if view.nvml.driver else "driver of unknown version"
    nccl = f", NCCL {view.torch.nccl}" if view.torch.nccl else ""
    return [ok("gpus", f"{len(view.torch.gpus)} with {driver}, CUDA {view.torch.cuda}{nccl}")]


def gpu_links(view: View) -> Sequence[Check]:
    """How each pair of GPUs is connected."""
    count = len(view.torch.gpus)
    if count < 2:
        return []
    found: list[str] = []
    poor = False
    for one in range(count):
        for other in range(one + 1, count):
            reach = other in view.torch.gpus[one].peers and one in view.torch.gpus[other].peers
            wire = view.nvml.wires.get((one, other), Wire())
            poor = poor or not reach
            found.append(f"cuda:{one} and cuda:{other}: {_connected(reach, wire)}")
    finding = "; ".join(_gathered(found))
    if poor:
        advice = "weights go through host memory there: put workers on GPUs with NVLink or a common PCIe root"
        return [warn("gpu links", finding, f"{advice}; in a virtual machine, look at ACS and the hypervisor")]
    return [ok("gpu links", finding, view.nvml.trouble)]


def _connected(reach: bool, wire: Wire) -> str:
    if not reach:
        return f"no peer access{f' ({wire.pcie})' if wire.pcie else ''}"
    if wire.nvlinks:
        return f"peer access, {wire.nvlinks} NVLinks"
    return f"peer access, PCIe ({wire.pcie})" if wire.pcie else "peer access"


def _gathered(found: Sequence[str]) -> Sequence[str]:
    """One line for all pairs where they are alike."""
    kinds = {each.partition(": ")[2] for each in found}
    return [f"all pairs: {kinds.pop()}"] if len(kinds) == 1 and len(found) > 1 else found[:12]


def rdma(view: View) -> Check:
    """What carries bytes between machines without their CPUs."""
    if not view.ports:
        return ok("rdma", "no device: bytes from other machines come over tcp")
    finding = ", ".join(f"{p.name} {'up' if p.up else 'DOWN'} {p.gbits / 8:.3g} GB/s" for p in view.ports)
    if not any(port.up for port in view.ports):
        return warn("rdma", finding, "no port is up: look at cables, the subnet manager, and the switch")
    return ok("rdma", finding)


def network(view: View) -> Check:
    """What tcp between machines can give at best."""
    named = [each for each in view.interfaces if each.up and each.gbits]
    if view.host.startswith("127.") or view.host == "::1":
        advice = "set COLDSTART_HOST to an address that peers can reach, if some are on other machines"
        return ok("network cards", f"only loopback is offered; {_cards(named)}", advice)
    return ok("network cards", _cards(named))


def _cards(named: Sequence[Interface]) -> str:
    cards = ", ".join(f"{each.name} {each.gbits / 8:.3g} GB/s" for each in named)
    return cards or "no interface tells its speed"


def transports(view: View) -> Sequence[Check]:
    """For each transport: what it can move, how fast it was, and what holds it back."""
    found: list[Check] = []
    for name in dict.fromkeys(way.transport for way in view.ways):
        mine = [way for way in view.ways if way.transport == name]
        able = [way for way in mine if way.traits is not None and way.kind in way.traits.device_kinds]
        reasons = [_reason(view, way) for way in mine if _reason(view, way)]
        advice = next((way.advice for way in mine if way.obstacle and way.advice), "")
        if not able:
            found.append(warn(f"path {name}", "; ".join(reasons) or "moves no memory that is here", advice or MEASURE))
            continue
        links = ", ".join(f"{way.kind} memory over {way.traits.link}" for way in able if way.traits is not None)
        finding = "; ".join((links, _measured(view, name), *(f"not more: {reason}" for reason in reasons)))
        found.append(ok(f"path {name}", finding, advice or ("" if _known(view, name) else MEASURE)))
    return found


def _reason(view: View, way: Way) -> str:
    """Why this way is not quicker, or is none; empty where it is as quick as can be."""
    if way.obstacle:
        return f"{way.kind}: {way.obstacle}"
    traits = way.traits
    if traits is None or way.kind not in traits.device_kinds:
        return ""
    if way.kind == "cuda" and traits.link == "tcp":
        return "cuda memory goes through host memory and the CPUs"
    if way.kind == "cuda" and traits.link == "nvlink" and not view.ports:
        return "without RDMA only GPUs of this machine are reached quickly"
    return ""


def _known(view: View, transport: str) -> Sequence[tuple[Path, Rate]]:
    """What was measured over it to here, the best first."""
    here = platform.node()
    known = [
        (path, rate)
        for path, rate in view.rates.items()
        if path.transport == transport and path.here == here and is_fresh(rate, view.now)
    ]
    return sorted(known, key=lambda each: -each[1].bytes_per_second)


def _measured(view: View, transport: str) -> str:
    known = _known(view, transport)
    if not known:
        return "not measured"
    words = [
        f"{rate.bytes_per_second / 1e9:.3g} GB/s from {path.there} {path.remote} to {path.device}"
        f"{f' by {path.route}' if path.route not in ('', transport) else ''}"
        f" ({rate.origin}, {age(view.now - rate.at)} ago)"
        for path, rate in known[:SHOWN]
    ]
    return ", ".join(words) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
