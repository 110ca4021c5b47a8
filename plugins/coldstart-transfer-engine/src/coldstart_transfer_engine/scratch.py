"""A few bytes of memory that are nobody's: where the first read of a session goes.

The library makes all of an allocator's segment readable along with what is registered in it, so on a GPU they lie
in a segment of their own. The one module here that allocates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from coldstart.ports import Region
from coldstart_transfer_engine.library import Engine


@contextmanager
def room(engine: Engine, device: str, length: int) -> Iterator[int]:
    """The address of ``length`` bytes of ``device`` into which ``engine`` can read, for the block.

    Raises:
        TransportError: the library does not take them.
    """
    if not device.startswith("cuda"):
        yield ctypes.addressof(ctypes.create_string_buffer(length))  # over TCP, where nothing need be registered
        return
    import torch  # it is the host's already, where there is device memory

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        memory = torch.empty(length, dtype=torch.uint8, device=device)
    region = Region(device, memory.data_ptr(), length, 0)
    engine.register([region])
    try:
        yield region.address
    finally:
        engine.unregister(region)
