"""A connection to a real server that ends with its block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coldstart.bus.redis import RedisBus


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisBus]:
    bus = await RedisBus.open(url, **options)
    try:
        yield bus
    finally:
        await bus.aclose()
