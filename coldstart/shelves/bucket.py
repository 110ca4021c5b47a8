"""Requests to an object store: list, stat, and ranges of an object that has not changed.

The only module that knows obstore. Where the store is and whose credentials are used is told by the environment, as
the stores' own tools have it (docs/object-stores.md). Requests that fail are repeated with backoff by obstore, and a
body that breaks off is asked for from there on, both while ``ShelfSettings.retry_seconds`` allow. It must not know
checkpoints; who asks is in ``asking.py``, for threads, and in ``coldstart.transports.objects``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import obstore
from obstore import exceptions
from obstore.store import from_url

from coldstart.errors import CheckpointError
from coldstart.shelves.location import ShelfSettings, StoreUrl
from coldstart.shelves.refusals import BESIDE, Kind, refused

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

_CONNECT_SECONDS: Final = 5.0
"""Of one connection to the store; one that is dropped on the way is tried again."""
_REQUEST_SECONDS: Final = 600.0
"""Of one request in all; one on which nothing moves ends long before."""
_RETRIES: Final = 10
_LISTINGS: Final = 4
"""A listing that breaks off is made anew: of all requests that is the one which obstore does not repeat."""
_PAUSE: Final = 0.1
"""Seconds before the second listing; before each one after it twice as long."""


class Stored(msgspec.Struct, frozen=True):
    """An object as it was when it was looked at.

    ``etag`` is as it stands in a header; ``mark`` is that without quotes or, where the store has none, the time of
    the last write.
    """

    key: str
    size: int
    etag: str
    mark: str


class Bucket:
    """One bucket; connections are kept until :meth:`close`. A cancelled request is dropped, with its connection.

    Raises CheckpointError for whatever is refused.
    """

    def __init__(self, url: StoreUrl, settings: ShelfSettings) -> None:
        self._url, self._patience = url, settings.retry_seconds
        client: ClientConfig = {
            "allow_http": settings.allow_http,
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=settings.io_seconds),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        }
        retry: RetryConfig = {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=settings.retry_seconds),
        }
        with self._told():
            self._store = from_url(url.home, client_options=client, retry_config=retry)

    def close(self) -> None:
        """Close all connections; nothing can be asked for any more."""
        del self._store

    async def list(self, most: int) -> Sequence[Stored]:
        """What is below the URL's key, sorted; one more than ``most`` if there are more."""
        with self._told():
            for left in reversed(range(_LISTINGS)):
                try:
                    return await self._list(most)
                except exceptions.GenericError as error:
                    if not left or "response body" not in str(error):
                        raise
                await anyio.sleep(min(_PAUSE * 2 ** (_LISTINGS - 1 - left), self._patience / _LISTINGS))
        raise AssertionError("the last listing returns or raises")

    async def _list(self, most: int) -> Sequence[Stored]:
        found: list[Stored] = []
        async for some in obstore.list(self._store, self._url.key or None):
            found.extend(_stored(meta) for meta in some)
            if len(found) > most:
                break
        return sorted(found, key=lambda each: each.key)[: most + 1]

    async def stat(self, key: str) -> Stored | None:
        """What there is under ``key``; None if nothing."""
        with self._told(key):
            try:
                return _stored(await obstore.head_async(self._store, key))
            except FileNotFoundError:
                return None

    async def fetch(self, stored: Stored, offset: int, length: int) -> memoryview:
        """``length`` bytes from ``offset`` on, of the object as it was."""
        with self._told(stored.key):
            answer = await obstore.get_async(self._store, stored.key, options=_options(stored, offset, length))
            self._check(answer.meta, stored)
            data = await answer.bytes_async()
        return self._complete(memoryview(data), stored, length)

    async def stream(self, stored: Stored, offset: int, length: int, least: int) -> AsyncGenerator[memoryview]:
        """As :meth:`fetch`, in pieces of at least ``least`` bytes as they arrive, but for the last one."""
        came = 0
        with self._told(stored.key):
            answer = await obstore.get_async(self._store, stored.key, options=_options(stored, offset, length))
            self._check(answer.meta, stored)
            async for piece in answer.stream(min_chunk_size=least):
                came += len(piece)
                yield memoryview(piece)
        if came != length:
            raise self._short(stored, came, length)

    def _check(self, meta: ObjectMeta, stored: Stored) -> None:
        """Not every store heeds If-Match."""
        now = _stored(meta)
        if (now.size, now.mark) != (stored.size, stored.mark):
            raise refused("changed", "", self._url, stored.key)

    def _complete(self, data: memoryview, stored: Stored, length: int) -> memoryview:
        if len(data) != length:
            raise self._short(stored, len(data), length)
        return data

    def _short(self, stored: Stored, came: int, length: int) -> CheckpointError:
        return CheckpointError(f"{self._url.home}/{stored.key} gave {came} bytes of {length}", advice=BESIDE)

    @contextmanager
    def _told(self, key: str = "") -> Iterator[None]:
        """The library's errors, as ours."""
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise refused(_kind(error), str(error), self._url, key) from error


def _kind(error: Exception) -> Kind:
    match error:
        case FileNotFoundError():
            return "absent"
        case exceptions.PreconditionError():
            return "changed"
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return "denied"
        case _:
            return "other"


def _options(stored: Stored, offset: int, length: int) -> GetOptions:
    options: GetOptions = {"range": (offset, offset + length)}
    if stored.etag and not stored.etag.startswith("W/"):  # a weak one matches nothing, by RFC 9110
        options["if_match"] = stored.etag
    return options


def _stored(meta: ObjectMeta) -> Stored:
    etag = meta["e_tag"] or ""
    mark = etag.removeprefix("W/").strip('"')
    quoted = etag if etag.endswith('"') or not etag else f'"{etag}"'  # Azure's listings leave the quotes out
    return Stored(meta["path"], meta["size"], quoted, mark or meta["last_modified"].isoformat())
