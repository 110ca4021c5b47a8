"""What a server says about itself, for people who look for the reason of a trouble.

Decides how the text of INFO and the reply of TIME become facts; whatever a server leaves out, or a
proxy in front of it hides, is empty and never an error. It must not judge: ``coldstart doctor``
does. The caller is ``redis.py``.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec


class Description(msgspec.Struct, frozen=True):
    """A store in facts; sizes in bytes, ``clock`` in seconds since 1970 on the server, 0 for unknown."""

    product: str
    version: str
    used_memory: int
    max_memory: int
    """0: no limit."""
    eviction: str
    """The policy for a full store, empty if it is not told."""
    clock: float


def described(info: object, time: object) -> Description:
    """The facts in the replies of INFO and TIME."""
    told = _lines(info)
    valkey = told.get("valkey_version", "")
    return Description(
        product="Valkey" if valkey else "Redis" if "redis_version" in told else "a server",
        version=valkey or told.get("redis_version", ""),
        used_memory=_number(told.get("used_memory", "")),
        max_memory=_number(told.get("maxmemory", "")),
        eviction=told.get("maxmemory_policy", ""),
        clock=_seconds(time),
    )


def _lines(info: object) -> dict[str, str]:
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.strip()[:80] for name, colon, value in pairs if colon}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _seconds(time: object) -> float:
    with suppress(msgspec.ValidationError):
        seconds, micros = msgspec.convert(time, tuple[bytes, bytes])
        return _number(seconds.decode(errors="replace")) + _number(micros.decode(errors="replace")) / 1e6
    return 0.0
