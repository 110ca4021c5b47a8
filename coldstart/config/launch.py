"""What those who started this process say of it: torchrun's place among ranks, OpenTelemetry's exporters, TLS.

Decides how variables that are not ours are read. Our own settings are in ``settings.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from coldstart.errors import ConfigError
from coldstart.group import Group
from coldstart.group import checked as checked_group

Signal = Literal["traces", "metrics"]


def torchrun(environ: Mapping[str, str] | None = None, *, required: bool = False) -> Group | None:
    """This process's place among the ranks that torchrun started, by torchrun's own variables.

    The group's name is that of this start: the run, how often it was restarted, where its rank 0 is, and how many
    ranks there are, since an elastic run that goes on with more or fewer hosts does not count as restarted. A
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
    names = ("TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
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


def http_is_allowed() -> bool:
    """Whether an object store may be reached without TLS, by object_store's own variables."""
    names = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
    return any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in names)


def otlp_endpoint(signal: Signal = "traces") -> str:
    """Where the command line exports traces or metrics to, by OpenTelemetry's own variables; empty: nowhere."""
    if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return ""
    return _otlp(signal, "ENDPOINT")


def otlp_protocol(signal: Signal = "traces") -> str:
    """``grpc`` or ``http/protobuf``, by OpenTelemetry's own variables."""
    return _otlp(signal, "PROTOCOL") or "http/protobuf"


def _otlp(signal: Signal, what: str) -> str:
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}")
    return own or os.environ.get(f"OTEL_EXPORTER_OTLP_{what}", "")


def otlp_seconds() -> float:
    """How long an export may take: OpenTelemetry's own variable, else 3 s, for a command should end soon."""
    try:
        return float(os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT", "3"))
    except ValueError as error:
        raise ConfigError("OTEL_EXPORTER_OTLP_TIMEOUT is not a number of seconds") from error
