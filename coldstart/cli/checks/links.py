"""Checks of what moves bytes and builds modules: plugins, a transfer through each transport.

Decides which plugins must work: those that were asked for by name; of the others, one transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import anyio

from coldstart import registry
from coldstart.cli.checks import paths, peer
from coldstart.cli.checks.check import Check, fail, in_daemon_thread, ok, warn
from coldstart.cli.output import size
from coldstart.config import Settings
from coldstart.errors import ColdstartError
from coldstart.membership import membership
from coldstart.ports import Bus, Transport, TransportSettings
from coldstart.registry import Plugin

CLOSE_SECONDS = 2.0

_LOOPBACK = "coldstart.cli.checks.loopback"
_ONE_GPU = "two GPUs are needed to try it; nothing need be done if peers have GPUs of their own"


class LinkChecks:
    """The checks in their order; ``usable`` names the transports to try, once :meth:`transports` has run."""

    def __init__(self, settings: Settings, host: str) -> None:
        self.usable: tuple[str, ...] = ()
        self._settings = settings
        self._host = host
        self._plugins: Sequence[Plugin] = ()

    async def transports(self) -> Sequence[Check]:
        """Every installed transport's own probe, and names that nothing installed has."""
        self._plugins = await in_daemon_thread(registry.plugins)
        chosen = self._settings.transport_names
        mine = [plugin for plugin in self._plugins if plugin.kind == "transports"]
        found = [_judged(plugin, plugin.name in chosen) for plugin in mine]
        installed = sorted({plugin.name for plugin in mine})
        found.extend(
            fail(f"transport {name}", "not installed", f"choose among {', '.join(installed)} in COLDSTART_TRANSPORTS")
            for name in chosen
            if name not in installed
        )
        usable = {plugin.name for plugin in mine if plugin.availability.usable}
        self.usable = tuple(name for name in (chosen or installed) if name in usable)
        if not usable:
            found.append(fail("transports", "none can be used", "reinstall coldstart-weights, which brings tcp"))
        return found

    async def capabilities(self) -> Sequence[Check]:
        """What the links of this machine can do, and why not more."""
        trouble: list[str] = []
        view = await paths.gather(self._settings, self._host, self.usable, trouble.append)
        found = [*paths.checks(view)]
        if trouble:
            more = f" and {len(trouble) - 1} more" if len(trouble) > 1 else ""
            found.append(warn("link rates", trouble[0] + more, "remove it: it is written anew; or make it readable"))
        return found

    async def to_peer(self, wanted: str, bus: Bus | None) -> Sequence[Check]:
        """Measure every usable transport to the peer called ``wanted``, or on the host of that name."""
        title = f"links to {wanted}"
        if bus is None:
            return [fail(title, "no store, so no peer is known", "give --redis URL")]
        found = await peer.find(bus, wanted)
        if found is None:
            return [fail(title, "no worker of that name or host lends", "see who does: coldstart peers")]
        shared = [name for name in self.usable if name in found.advert.transports]
        if not shared:
            theirs = ", ".join(found.advert.transports)
            return [fail(title, f"it lends over {theirs}, which cannot be used here", "install one of them")]
        gpus = await in_daemon_thread(_gpus) if found.advert.device.startswith("cuda") else 0
        device = "cuda:0" if gpus else "cpu"
        await in_daemon_thread(lambda: import_module("coldstart.arena"))  # torch, which takes seconds
        return [await self._measured(name, device, found, bus) for name in shared]

    async def _measured(self, name: str, device: str, found: peer.Peer, bus: Bus) -> Check:
        member = await membership(self._settings, "doctor")
        own = TransportSettings(
            self._host,
            self._settings.connections,
            io_seconds=self._settings.io_seconds,
            device=device,
            signer=member.signer,
        )
        try:
            transport = await in_daemon_thread(lambda: registry.transport(name).open(own))
        except ColdstartError as error:
            return warn(f"link {name} from {found.advert.worker}", error.what, error.advice or "look into that")
        try:
            return await peer.measured(bus, found, transport, device, self._settings)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await transport.aclose()

    async def skeletons(self) -> Sequence[Check]:
        """Every installed skeleton builder's own probe."""
        return [_judged(plugin, False) for plugin in self._plugins if plugin.kind == "skeletons"]

    async def loopback(self, name: str) -> Sequence[Check]:
        """Move real bytes through the transport called ``name`` and compare digests."""
        title = f"loopback {name}"
        factory = await in_daemon_thread(lambda: registry.transport(name))
        settings = TransportSettings(self._host, self._settings.connections, 0.0, self._settings.io_seconds)
        transport = factory.open(settings)
        try:
            if not transport.traits.needs_peer:
                return [ok(title, "reads storage and has no peer to try")]
            return [await _transferred(title, transport)]
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await transport.aclose()


async def _transferred(title: str, transport: Transport) -> Check:
    gpus = 0
    source = target = "cpu"
    if "cpu" not in transport.traits.device_kinds:
        gpus = await in_daemon_thread(_gpus)
        source, target = "cuda:0", f"cuda:{max(0, gpus - 1)}"
    await in_daemon_thread(lambda: import_module(_LOOPBACK))  # torch, which takes seconds
    from coldstart.cli.checks import loopback

    try:
        rate = await loopback.transfer(transport, source, target)
    except ColdstartError as error:
        if source != "cpu" and gpus < 2:
            return warn(title, error.what, _ONE_GPU)
        return fail(title, error.what, error.advice or "look for firewalls, and for other versions of its library")
    way = source if source == target else f"{source} to {target}"
    return ok(title, f"{size(loopback.BYTES)} verified at {size(rate)}/s ({way}, this process)")


def _gpus() -> int:
    from coldstart.skeletons.machine_facts import torch_facts

    return len(torch_facts().gpus)


def _judged(plugin: Plugin, chosen: bool) -> Check:
    name = f"{plugin.kind.removesuffix('s')} {plugin.name}"
    reason = " ".join(plugin.availability.reason.split())
    origin = f"{plugin.distribution} {plugin.version}"
    if plugin.availability.usable:
        return ok(name, f"{reason} ({origin})" if reason else origin)
    if chosen:
        return fail(name, f"{reason} ({origin})", "it was asked for by name: make it work, or do not ask for it")
    return warn(name, f"{reason} ({origin})", "it is left out; uninstall it if it is not wanted")
