"""What was asked for as a checkpoint: a path on this machine, or the URL of a prefix in an object store.

Decides by the text alone, and says what a store may take of this machine. Pure; it must not know any store.
``shelves/open.py`` goes there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from coldstart.errors import ConfigError

SCHEMES: Final = ("s3", "gs", "az")
"""Amazon S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage."""

_URL: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+):/{1,2}([^/].*)?\Z", re.DOTALL)
"""With one slash, too: that is what becomes of a URL in a ``Path``."""

_SEGMENT_BYTES: Final = 255
"""What file systems allow as a name."""


class StoreUrl(msgspec.Struct, frozen=True):
    """``scheme://bucket/key``; the key has no slash at either end, and is empty for a whole bucket."""

    scheme: str
    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.home}/{self.key}" if self.key else self.home

    @property
    def home(self) -> str:
        """The bucket: what a rate is remembered by."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def name(self) -> str:
        """What people call it."""
        return self.key.rpartition("/")[2] or self.bucket


class ShelfSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What reading an object store may take of this machine.

    Args:
        mirrors: directory below which configurations and tokenizers are kept; None: a temporary one.
        cache: directory of the disk cache of weights; None: there is none.
        cache_bytes: what the disk cache may take.
        reads: ranges that are read at one time, each of at most 8 MiB.
        io_seconds: a connection on which nothing moves for so long is dead.
        retry_seconds: a request is not tried again when so much time has passed since it was first made.
        allow_http: whether an endpoint may be one without TLS.
    """

    mirrors: Path | None = None
    cache: Path | None = None
    cache_bytes: int = 100 * 10**9
    reads: int = 16
    io_seconds: float = 10.0
    retry_seconds: float = 24.0
    allow_http: bool = False


def located(checkpoint: str | Path) -> Path | StoreUrl:
    """Where ``checkpoint`` is.

    Raises:
        ConfigError: a URL of another kind, without a bucket, or with names that no directory could have.
    """
    found = _URL.match(str(checkpoint))
    if found is None:
        return Path(checkpoint)
    scheme, rest = found[1].lower(), found[2] or ""
    if scheme not in SCHEMES:
        raise ConfigError(
            f"checkpoint {str(checkpoint)!r:.200} is in no known kind of store",
            advice=f"use {', '.join(f'{each}://' for each in SCHEMES)}, or a path",
        )
    bucket, _, key = rest.partition("/")
    key = key.strip("/")
    if not bucket or not re.fullmatch(r"[A-Za-z0-9._-]{1,222}", bucket):
        raise ConfigError(f"checkpoint {str(checkpoint)!r:.200} names no bucket", advice=f"use {scheme}://BUCKET/PATH")
    if key and not is_plain(key):
        raise ConfigError(f"checkpoint {str(checkpoint)!r:.200} has a path that is none", advice="name it plainly")
    return StoreUrl(scheme, bucket, key)


def is_plain(name: str) -> bool:
    """Whether ``name``, which is a stranger's, may become a path below a directory of ours: it never leads out."""
    return all(
        part not in ("", ".", "..") and "\\" not in part and part.isprintable() and len(part.encode()) <= _SEGMENT_BYTES
        for part in name.split("/")
    )
