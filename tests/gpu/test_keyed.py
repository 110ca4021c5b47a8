"""Keyed digests of device memory: the CPU's values, in order with the host's work, within bounded staging; and a start.

``pytest -s`` shows their rate, which is the host's and not the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import coldstart
from coldstart import config
from coldstart.arena import STAGING_BYTES, Arena
from coldstart.config import Settings
from coldstart.digest import ChunkDigester
from coldstart.hashing import WORKERS
from coldstart.inplace import InPlace
from coldstart.keyed import KeyedDigester
from coldstart.keyring import made, text_of
from coldstart.layout import Layout, Span, Tensor
from coldstart.ports import Memory
from coldstart.seals import Key, Keys
from coldstart.testing.digester_contract import DigesterContract

Write = Callable[..., Path]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda:0"
CHUNK = 2 * STAGING_BYTES + 4096
SIZES = (3 * CHUNK + 5, 1, 300, CHUNK - 7, 4 * STAGING_BYTES)
LAYOUT = Layout(
    tuple(Tensor(f"t{i}", "uint8", (size,), (1,), i, 0) for i, size in enumerate(SIZES)), SIZES, CHUNK // 4096 * 4096
)
SPANS = [LAYOUT.chunk(chunk) for chunk in range(LAYOUT.chunks)]
ODD = [Span(0, LAYOUT.nbytes), Span(1, STAGING_BYTES), Span(STAGING_BYTES - 3, 7), Span(LAYOUT.nbytes - 9, 9)]


@pytest.fixture(params=["blake3", "blake2b"])
def digester(request: pytest.FixtureRequest) -> KeyedDigester:
    return KeyedDigester(request.param, Key("d1", b"k" * 32))


@pytest.fixture(scope="module")
def arenas() -> tuple[Arena, Arena]:
    """The same weights on the CPU and on the device; what lies between them differs."""
    made = Arena(LAYOUT, "cpu"), Arena(LAYOUT, DEVICE)
    random = np.random.default_rng(7)
    for piece in LAYOUT.pieces(Span(0, LAYOUT.nbytes)):
        data = random.bytes(piece.length)
        for arena in made:
            with arena.writing(Span(piece.offset, piece.length)) as views:
                views[0][:] = data
    return made


class TestTheContract(DigesterContract):
    """On device memory, whose padding holds anything."""

    target = "tests.test_keyed:by_blake3"

    def memory(self, layout: Layout, stream: bytes) -> Memory:
        arena = Arena(layout, DEVICE)
        for piece in layout.pieces(Span(0, layout.nbytes)):
            with arena.writing(Span(piece.offset, piece.length)) as views:
                views[0][:] = stream[piece.offset : piece.offset + piece.length]
        return arena


def in_place(arena: Arena) -> InPlace:
    """The arena's weights as an engine has them: each tensor somewhere else."""
    tensors = {placed.name: arena.view(placed).clone() for placed in LAYOUT.tensors}
    torch.cuda.synchronize()
    return InPlace(LAYOUT, tensors, torch.device(DEVICE))


def test_it_is_the_cpu_s(digester: KeyedDigester, arenas: tuple[Arena, Arena]) -> None:
    host, device = arenas
    scattered = in_place(device)
    for span in (*SPANS, *ODD):
        expected = digester.digest(host, span)
        assert digester.digest(device, span) == expected
        assert digester.digest(scattered, span) == expected


def test_staging_is_as_much_as_there_are_threads(digester: KeyedDigester, arenas: tuple[Arena, Arena]) -> None:
    host, _ = arenas
    device = in_place(arenas[1])
    expected = [digester.digest(host, span) for span in SPANS]
    before = torch.cuda.memory_allocated()
    with ThreadPoolExecutor(WORKERS) as pool:
        for found in pool.map(lambda _: [digester.digest(device, span) for span in SPANS], range(3 * WORKERS)):
            assert found == expected
    assert torch.cuda.memory_allocated() == before
    assert device._staging is not None
    buffers = device._staging._idle
    assert len(buffers) <= WORKERS
    assert all(buffer.capacity == STAGING_BYTES for buffer in buffers)


def test_it_comes_after_what_the_default_stream_is_still_doing(
    digester: KeyedDigester, arenas: tuple[Arena, Arena]
) -> None:
    device = in_place(arenas[1])
    span = Span(0, 1000)
    ((_, memory),) = device.resident(span)
    before = digester.digest(device, span)
    torch.cuda._sleep(200_000_000)
    memory.fill_(7)
    after = digester.digest(device, span)
    torch.cuda.synchronize()
    assert after == digester.digest(device, span) != before


def test_it_breaks_no_capture_of_the_host(digester: KeyedDigester, arenas: tuple[Arena, Arena]) -> None:
    device = in_place(arenas[1])
    expected = [digester.digest(device, span) for span in SPANS]
    x = torch.ones(64, 64, device=DEVICE)
    with ThreadPoolExecutor(2) as pool:
        digesting = [pool.submit(lambda: [digester.digest(device, span) for span in SPANS]) for _ in range(8)]
        graphs = 0
        while not all(each.done() for each in digesting) or not graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x + x
            graph.replay()
            graphs += 1
        assert all(each.result() == expected for each in digesting)
    torch.cuda.synchronize()
    assert torch.all(y == 2)


def test_its_rate_is_the_host_s(digester: KeyedDigester) -> None:
    size = 1 << 30
    layout = Layout((Tensor("w", "uint8", (size,), (1,), 0, 0),), (size,), 16 * STAGING_BYTES)
    arena, spans = Arena(layout, DEVICE), [layout.chunk(chunk) for chunk in range(layout.chunks)]
    taken: dict[str, float] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, digest in (("keyed", digester.digest), ("csfp1", ChunkDigester().digest)):
            list(pool.map(lambda span: digest(arena, span), spans))  # noqa: B023 - used here
            began = time.perf_counter()
            list(pool.map(lambda span: digest(arena, span), spans))  # noqa: B023
            taken[name] = time.perf_counter() - began
    assert size / taken["keyed"] > 0.1e9, "as slow as if every byte came by itself"
    rates = ", ".join(f"{name} {size / seconds / 1e9:.1f} GB/s" for name, seconds in taken.items())
    print(f"\n{digester.algorithm.partition('-')[0]} on {WORKERS} threads: {rates}")


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    keys = tmp_path / "keys"
    keys.write_text(text_of(Keys((made(),), made())))
    keys.chmod(0o600)
    return config.load(
        {"directory": str(tmp_path / "v"), "keys": str(keys), "digest": request.param, "scrub": 0.2}, environ={}
    )


@pytest.mark.parametrize("settings", ["blake3", "blake2b"], indirect=True)
@pytest.mark.parametrize(("source", "joiner"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
async def test_a_cold_start_by_keyed_digests(
    source: str, joiner: str, settings: Settings, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", mib=96)
    async with (
        coldstart.join(checkpoint, skeleton="tensors", worker="a", device=source, settings=settings) as first,
        coldstart.join(checkpoint, skeleton="tensors", worker="b", device=joiner, settings=settings) as second,
    ):
        assert (first.report.path, first.withheld) == ("storage", "")
        assert (second.report.path, second.report.verified) == ("peer", True)
        assert first.report.root == second.report.root
        assert (second.report.detours, second.report.refused) == ((), {})
        for name, expected in load_file(checkpoint / "model.safetensors").items():
            tensor = second.module.get_parameter(name)
            assert tensor.device.type == joiner
            assert torch.equal(tensor.cpu(), expected), name
