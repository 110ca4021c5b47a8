"""The digest on a device: the CPU's values for every dtype and every way of asking, in order with other work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from coldstart import csfp1, rowsums
from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.layout import Layout, Span, Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROW = csfp1.ROW_BYTES
DEVICE = "cuda:0"
DTYPES = [name for name in ("float64", "float32", "bfloat16", "float16", "int8", "uint8", "bool", "int64", "complex64",
                            "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]  # fmt: skip


def arenas(sizes: tuple[int, ...], dtype: str = "uint8") -> tuple[Arena, Arena]:
    """The same weights on the CPU and on the device, and other noise between them."""
    width = getattr(torch, dtype).itemsize
    layout = Layout(
        tuple(Tensor(f"t{i}", dtype, (size // width,), (1,), i, 0) for i, size in enumerate(sizes)), sizes, 4 * ROW
    )
    made = Arena(layout, "cpu"), Arena(layout, DEVICE)
    for seed, arena in enumerate(made):
        with arena.writing(Span(0, layout.nbytes)) as views:
            views[0][:] = np.random.default_rng(seed).bytes(layout.nbytes)
    random = np.random.default_rng(7)
    for piece in layout.pieces(Span(0, layout.nbytes)):
        data = random.bytes(piece.length)
        for arena in made:
            with arena.writing(Span(piece.offset, piece.length)) as views:
                views[0][:] = data
    return made


def chunks(layout: Layout) -> list[Span]:
    return [layout.chunk(chunk) for chunk in range(layout.chunks)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_the_value_of_the_cpu(dtype: str) -> None:
    host, device = arenas((5 * ROW + 48, 16, 7 * ROW, 304, 9 * ROW), dtype)
    digester = ChunkDigester()
    digester.prepare(DEVICE)
    whole = Span(0, host.layout.nbytes)
    for span in (whole, Span(1, 6 * ROW), Span(ROW, 4 * ROW), Span(whole.length - 9, 9), *chunks(host.layout)):
        assert digester.digest(device, span) == digester.digest(host, span)


def test_batches_in_any_order_and_from_many_threads() -> None:
    host, device = arenas((5 * ROW + 3, 1, 7 * ROW, 300, 4, 4, 30 * ROW))
    digester, spans = ChunkDigester(), chunks(host.layout)
    assert digester.at_once(device) > 1
    expected = digester.digests(host, spans)
    assert digester.digests(device, spans) == expected
    assert digester.digests(device, spans[::-1]) == expected[::-1]
    assert digester.digests(device, spans[1::3]) == expected[1::3]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: digester.digests(device, spans), range(64)):
            assert found == expected


def test_the_kernel_is_used_and_agrees_with_the_operators() -> None:
    device = torch.device(DEVICE)
    assert rowsums.fastest(device) is rowsums.by_kernel, "Triton does not run here, or gives wrong sums"
    words = torch.randint(-(2**31), 2**31, (70, csfp1.ROW_WORDS), dtype=torch.int32, device=device)
    one, two = (torch.zeros((80, 2), dtype=torch.int64, device=device) for _ in range(2))
    rowsums.by_kernel(words, rowsums.keys_on(device), one, 7)
    rowsums.by_operators(words, rowsums.keys_on(device), two, 7)
    assert torch.equal(one, two)


def test_a_digest_comes_after_what_the_default_stream_is_still_doing() -> None:
    _, device = arenas((64 * ROW,))
    digester, span = ChunkDigester(), Span(0, 64 * ROW)
    digester.digest(device, span)
    ((_, memory),) = device.resident(span)
    torch.cuda._sleep(200_000_000)
    memory.fill_(7)
    after = digester.digest(device, span)
    torch.cuda.synchronize()
    assert after == digester.digest(device, span)


def test_a_digest_does_not_wait_for_other_streams() -> None:
    _, device = arenas((4 * ROW,))
    digester, span = ChunkDigester(), Span(0, 4 * ROW)
    digester.prepare(DEVICE)
    other, done = torch.cuda.Stream(DEVICE), torch.cuda.Event()
    with torch.cuda.stream(other):
        torch.cuda._sleep(4_000_000_000)
        done.record()
    digester.digest(device, span)
    assert not done.query()
    done.synchronize()
