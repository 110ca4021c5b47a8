"""Finds transports and skeletons by name among the installed distributions.

Decides what a name means: entry points are read once, on demand, and loaded only when chosen.
A broken plugin that nobody chose is a value with a reason; a chosen one is an error that names
distribution, version and cause. Two distributions that claim one name are an error for that
name. It must not know any plugin. What a plugin must look like is in ``ports``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, cast

import msgspec

from coldstart.errors import PluginUnavailable, UnknownPlugin
from coldstart.ports import API, Availability, SkeletonFactory, TransportFactory

Kind = Literal["transports", "skeletons"]


class Plugin(msgspec.Struct, frozen=True):
    """One installed plugin as ``coldstart plugins`` shows it."""

    kind: Kind
    name: str
    distribution: str
    version: str
    target: str
    availability: Availability


def names(kind: Kind) -> tuple[str, ...]:
    """Installed names, sorted; none of them is loaded."""
    return tuple(sorted(_found(kind)))


def transport(name: str) -> TransportFactory:
    """The factory called ``name``, usable here.

    Raises:
        UnknownPlugin: nothing installed has that name; the message lists what has.
        PluginUnavailable: it is broken, too old, claimed twice, or cannot run here.
    """
    return cast(TransportFactory, _chosen("transports", name))


def skeleton(name: str) -> SkeletonFactory:
    """The factory called ``name``; raises as :func:`transport` does."""
    return cast(SkeletonFactory, _chosen("skeletons", name))


def plugins() -> Sequence[Plugin]:
    """Everything installed, with whether it can be used and why not. Loads all of it."""
    found: list[Plugin] = []
    for kind in ("transports", "skeletons"):
        for name, points in sorted(_found(kind).items()):
            for point in points:
                distribution, version = _origin(point)
                found.append(Plugin(kind, name, distribution, version, point.value, _availability(kind, name)))
    return found


@lru_cache
def _found(kind: Kind) -> Mapping[str, tuple[EntryPoint, ...]]:
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=f"coldstart.{kind}"):
        known = found.get(point.name, ())
        if all(_origin(point) != _origin(other) or point.value != other.value for other in known):
            found[point.name] = (*known, point)
    return found


def _availability(kind: Kind, name: str) -> Availability:
    try:
        return _probed(_load(kind, name))
    except PluginUnavailable as error:
        return Availability(usable=False, reason=str(error))


def _probed(factory: TransportFactory | SkeletonFactory) -> Availability:
    try:
        return factory.probe()
    except Exception as error:  # a plugin's own probe may raise anything
        return Availability(usable=False, reason=f"probe failed: {type(error).__name__}: {error}")


def _chosen(kind: Kind, name: str) -> TransportFactory | SkeletonFactory:
    if name not in _found(kind):
        singular = kind.removesuffix("s")
        installed = ", ".join(names(kind)) or "none"
        raise UnknownPlugin(f"no {singular} is called {name!r}", advice=f"installed are: {installed}")
    factory = _load(kind, name)
    availability = _probed(factory)
    if not availability.usable:
        distribution, version = _origin(_found(kind)[name][0])
        raise PluginUnavailable(
            f"{kind.removesuffix('s')} {name!r} ({distribution} {version}) cannot run here: {availability.reason}"
        )
    return factory


def _load(kind: Kind, name: str) -> TransportFactory | SkeletonFactory:
    first, *others = _found(kind)[name]
    distribution, version = _origin(first)
    if others:
        rivals = " and ".join(sorted({_origin(point)[0] for point in (first, *others)}))
        raise PluginUnavailable(f"{kind} name {name!r} is claimed by {rivals}", advice="uninstall one of them")
    try:
        factory = first.load()
    except Exception as error:  # importing a plugin may raise anything
        raise PluginUnavailable(
            f"{name!r} of {distribution} {version} does not load: {type(error).__name__}: {error}"
        ) from error
    missing = [part for part in ("api", "probe", "open") if not hasattr(factory, part)]
    if missing:
        raise PluginUnavailable(f"{name!r} of {distribution} {version} has no {', '.join(missing)}")
    if factory.api != API:
        raise PluginUnavailable(
            f"{name!r} of {distribution} {version} is made for plugin API {factory.api}, this is {API}",
            advice="install matching versions",
        )
    return cast("TransportFactory | SkeletonFactory", factory)


def _origin(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
