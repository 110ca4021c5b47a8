"""A source as a guest on a device: it spoils no capture of the host, and reads no memory that was taken away."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.driver import is_mapped
from coldstart.layout import Layout, Span, Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 16 * 1024 * 1024
CAPTURES = 20


def digest(arena: Arena) -> object:
    return ChunkDigester().digest(arena, Span(0, SIZE))


def lend(arena: Arena) -> object:
    with arena.reading(Span(0, SIZE)) as views:  # larger than what is kept: pinned anew each time
        return sum(view.nbytes for view in views)


@pytest.mark.parametrize("work", [digest, lend])
def test_captures_of_the_host_do_not_break(work: Callable[[Arena], object]) -> None:
    arena = Arena(Layout((Tensor("a", "uint8", (SIZE,), (1,), 0, 0),), (SIZE,), SIZE), "cuda:0")
    expected, done, over = work(arena), list[object](), threading.Event()

    def go_on() -> None:
        while not over.is_set():
            done.append(work(arena))

    values = torch.randn(512, 512, device="cuda")
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(CAPTURES):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = values
                for _ in range(300):
                    result = result * values + 0.01
            graph.replay()
            torch.cuda.synchronize()
    finally:
        over.set()
        thread.join()
    assert done
    assert set(done) == {expected}


def test_memory_that_was_taken_away_is_told_from_memory_that_is_there() -> None:
    values = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    address = values.data_ptr()
    assert is_mapped(address)
    assert is_mapped(address + SIZE - 1)
    del values
    torch.cuda.empty_cache()
    assert not is_mapped(address)
