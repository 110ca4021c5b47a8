"""The one reader of the environment: settings with their defaults and reasons.

Decides nothing but values. Arguments beat the environment, the environment beats defaults. It
must not import what it configures. ``replica.py`` uses the result.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from coldstart.errors import ConfigError
from coldstart.group import Group
from coldstart.group import checked as checked_group
from coldstart.plan import Limits
from coldstart.scrubbing import Pace

PREFIX = "COLDSTART_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator may decide. Each field can be set as ``COLDSTART_<FIELD>``.

    Args:
        redis: URL of the store (``redis://``, ``rediss://``, ``unix://``); empty: the embedded
            Valkey of this machine; ``none``: no coordination, storage only.
        host: address at which peers reach this worker; empty: the one that routes to the store.
        namespace: prefix of all keys, to share a store between fleets.
        redis_ca: file of the certificates by which the store is trusted (``rediss://``); empty: the system's.
        redis_cert, redis_cert_key: files of our own certificate and its key, where the store asks for one.
        keys: file of the fleet's keys (``coldstart keys new``), read again when it changes: every message is then
            authenticated, and workers without the keys exchange nothing with this one. Empty: nothing is
            authenticated, for networks and stores that only the fleet can reach.
        digest: ``csfp1`` finds faults; ``blake3`` and ``blake2b`` are keyed (a ``digest`` line in ``keys``) and also
            stand against somebody who chooses bytes. Fleets with different ones exchange nothing.
        directory: where the embedded Valkey lives; empty: the user's runtime directory.
        transports: comma-separated names in order of preference; empty: all that are usable,
            the quicker kind of link first.
        rack: what workers with a fast way to each other have in common (rack, switch, zone); those on one host, then
            those of one rack, are sent to each other first.
        slots: how many joiners may pull from this worker at one time.
        lend_gbps: cap on what this worker sends, in 10^9 bytes per second; 0: none.
        connections: parallel connections per pull.
        io_seconds: a connection that moves nothing for so long is dead.
        lease: seconds an advert lives without renewal; a dead worker is forgotten after it.
        scrub: a source digests its weights anew, chunk by chunk, so that they are through in so many seconds, and looks
            every few seconds whether they are still where they were: what was changed without a word is then lent no
            more. 0: never, for hosts that announce every change (:meth:`coldstart.Replica.changing`).
        scrub_share: most of one core's time that this takes, from 0 to 1; large weights on a CPU take longer instead.
        build: seconds that building the skeleton may take.
        floor_gbps: a peer slower than this, in 10^9 bytes per second, costs patience; 0: any rate will do.
        warn_gbps: a peer that gives less, in 10^9 bytes per second, is warned of; 0: none.
        warn_share: a transfer that reaches less of what its link has given before, from 0 to 1, is warned of; 0: none.
        cache: where the rates of links and of storage are kept from one process to the next; empty: the user's cache
            directory; ``none``: nowhere, links are not probed, and no wait is estimated.
        patience, answer, connect, stall, sources, follow, share, crowd, storage_stall, whole_load, presence, drain,
            margin: see :class:`coldstart.plan.Limits`.
    """

    redis: str = ""
    host: str = ""
    namespace: str = "cs"
    redis_ca: str = ""
    redis_cert: str = ""
    redis_cert_key: str = ""
    keys: str = ""
    digest: Literal["csfp1", "blake3", "blake2b"] = "csfp1"
    directory: str = ""
    transports: str = ""
    rack: str = ""
    slots: int = 2
    lend_gbps: float = 0.0
    connections: int = 2
    io_seconds: float = 10.0
    lease: float = 6.0
    scrub: float = 300.0
    scrub_share: float = Pace().share
    build: float = 600.0
    warn_gbps: float = 0.0
    warn_share: float = 0.0
    cache: str = ""
    patience: float = Limits().patience
    answer: float = Limits().answer
    connect: float = Limits().connect
    stall: float = Limits().stall
    floor_gbps: float = Limits().floor / 1e9
    sources: int = Limits().sources
    follow: float = Limits().follow
    share: float = Limits().share
    crowd: int = Limits().crowd
    storage_stall: float = Limits().storage_stall
    whole_load: float = Limits().whole_load
    presence: float = Limits().presence
    drain: float = Limits().drain
    margin: float = Limits().margin

    @property
    def limits(self) -> Limits:
        return Limits(
            patience=self.patience,
            answer=self.answer,
            connect=self.connect,
            stall=self.stall,
            floor=self.floor_gbps * 1e9,
            sources=self.sources,
            follow=self.follow,
            share=self.share,
            crowd=self.crowd,
            storage_stall=self.storage_stall,
            whole_load=self.whole_load,
            presence=self.presence,
            drain=self.drain,
            margin=self.margin,
        )

    @property
    def transport_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.transports.split(",") if name.strip())

    @property
    def embedded_directory(self) -> Path:
        """The embedded Valkey's directory: one per user, on a path short enough for a socket."""
        if self.directory:
            return Path(self.directory)
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        if runtime and Path(runtime).is_dir():
            return Path(runtime) / "coldstart"
        return Path(tempfile.gettempdir()) / f"coldstart-{os.getuid()}"

    @property
    def links_directory(self) -> Path | None:
        """Where link rates are kept; None: nowhere, for a user without a home too."""
        if self.cache == "none":
            return None
        if self.cache:
            return Path(self.cache) / "links"
        chosen = os.environ.get("XDG_CACHE_HOME", "")
        try:
            home = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"
        except RuntimeError:
            return None
        return home / "coldstart" / "links"


_DAY = 86_400.0
_RANGES: Mapping[str, tuple[float, float]] = {
    "slots": (1, 1024),
    "connections": (1, 64),
    "sources": (1, 100),
    "lend_gbps": (0, 10_000),
    "floor_gbps": (0, 10_000),
    "warn_gbps": (0, 10_000),
    "warn_share": (0, 1),
    "scrub": (0, _DAY),
    "scrub_share": (0.0001, 1),
    "patience": (0, _DAY),
    "follow": (0, _DAY),
    "share": (0, _DAY),
    "crowd": (0, 64),
    "drain": (0, _DAY),
    "presence": (0.1, _DAY),
    "margin": (0, 1000),
    **dict.fromkeys(("io_seconds", "lease", "build", "answer", "connect"), (0.001, _DAY)),
    **dict.fromkeys(("stall", "storage_stall", "whole_load"), (0.001, _DAY)),
}
"""Least and most of each number; within these nothing overflows."""


def load(overrides: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment and, above it, ``overrides`` (None values are left out).

    Raises:
        ConfigError: a value is malformed or out of range; names it and where it came from.
    """
    environment = os.environ if environ is None else environ
    values: dict[str, object] = {}
    origin: dict[str, str] = {}
    for field in Settings.__struct_fields__:
        variable = PREFIX + field.upper()
        if variable in environment:
            values[field] = environment[variable]
            origin[field] = variable
    for field, value in (overrides or {}).items():
        if value is not None:
            values[field] = value
            origin[field] = field
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad setting: {_named(str(error), origin, values)}") from error
    return checked(settings, origin)


def checked(settings: Settings, origin: Mapping[str, str] | None = None) -> Settings:
    """``settings`` as they are; raises ConfigError for a number out of its range, under the name in ``origin``."""
    for field, (least, most) in _RANGES.items():
        value = getattr(settings, field)
        if not least <= value <= most:
            named = f"{(origin or {}).get(field, field)} is {value}"
            raise ConfigError(f"bad setting: {named}", advice=f"use {least:g} to {most:g}")
    return settings


def environment(kept: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment for a child, without the settings in it but for those named."""
    names = {PREFIX + field.upper() for field in kept}
    return {name: value for name, value in os.environ.items() if name in names or not name.startswith(PREFIX)}


def torchrun(environ: Mapping[str, str] | None = None, *, required: bool = False) -> Group | None:
    """This process's place among the ranks that torchrun started, by torchrun's own variables.

    The group's name is that of this start: the run, how often it was restarted, and where its rank 0 is. A
    run without ``--rdzv-id`` has no name of its own; on one host the agent's directory tells it from others.
    None outside of torchrun, and where nothing names this start.

    Raises:
        ConfigError: there is no group although it is ``required``; a variable is malformed.
    """
    environment = os.environ if environ is None else environ
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        if required:
            raise ConfigError("torchrun did not start this process: TORCHELASTIC_RUN_ID is not set")
        return None
    index, size = _count(environment, "RANK"), _count(environment, "WORLD_SIZE")
    names = ("TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    start = [run, *(environment.get(name, "") for name in names)]
    if run in ("", "none"):
        # .../<directory of this start>/attempt_<n>/<rank>/error.json
        file = environment.get("TORCHELASTIC_ERROR_FILE", "")
        if not file or _count(environment, "LOCAL_WORLD_SIZE") != size:
            if required:
                raise ConfigError("torchrun has given this start no name", advice="give it a new --rdzv-id each time")
            return None
        start.append(str(Path(file).parent.parent))
    name = hashlib.blake2b("\0".join(start).encode(), digest_size=12).hexdigest()
    return checked_group(Group(f"torchrun-{name}", size, index))


def _count(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{name} is {text!r}, which is not a number", advice="it is torchrun's to set")
    return int(text)


def otlp_endpoint() -> str:
    """Where the command line exports traces to, by OpenTelemetry's own variables; empty: nowhere."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def otlp_protocol() -> str:
    """``grpc`` or ``http/protobuf``, by OpenTelemetry's own variables."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )


def otlp_seconds() -> float:
    """How long an export may take: OpenTelemetry's own variable, else 3 s, for a command should end soon."""
    try:
        return float(os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT", "3"))
    except ValueError as error:
        raise ConfigError("OTEL_EXPORTER_OTLP_TIMEOUT is not a number of seconds") from error


def _named(message: str, origin: Mapping[str, str], values: Mapping[str, object]) -> str:
    """msgspec's message with its JSON path replaced by the name and the value that the operator gave."""
    head, _, path = message.partition(" - at `$.")
    field = path.rstrip("`")
    if not field:
        return message
    return f"{origin.get(field, field)} is {values.get(field)!r}: {head[0].lower()}{head[1:]}"
