"""A bucket as threads meet it: they ask, and wait until the loop on which its requests are made has the answer.

Decides only that waiting ends when that loop's task is cancelled: the requests are dropped then, and every thread that
waits for one, or asks for another, has :class:`concurrent.futures.CancelledError` raised. It must not know what is
asked for; ``open.py`` has the task.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio.from_thread import BlockingPortal

from coldstart.shelves.bucket import Bucket, Stored


class Asking:
    """Blocks; calls may come from any thread but the loop's. Raises what :class:`Bucket` raises."""

    def __init__(self, bucket: Bucket, portal: BlockingPortal) -> None:
        self._bucket, self._portal = bucket, portal

    def list(self, most: int) -> Sequence[Stored]:
        """See :meth:`Bucket.list`."""
        return self._portal.call(self._bucket.list, most)

    def stat(self, key: str) -> Stored | None:
        """See :meth:`Bucket.stat`."""
        return self._portal.call(self._bucket.stat, key)

    def read(self, stored: Stored, offset: int, length: int) -> memoryview:
        """See :meth:`Bucket.fetch`."""
        return self._portal.call(self._bucket.fetch, stored, offset, length)
