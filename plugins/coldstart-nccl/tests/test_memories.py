"""Memory in one piece and in many, in all four combinations; and how spans become messages."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest
from coldstart_nccl import GLOO
from coldstart_nccl.schedule import Places, cut, fits

from coldstart.layout import Layout, Span, merged
from coldstart.ports import Region, TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Content, Landings, grant, payload, whole

LAYOUT = layout_of(9 * MIB + 13, 1, 255, 3 * MIB, 700, *(1 + index % 7 for index in range(500)))


class Flat(BytesMemory):
    """Memory in one piece, padding included, as coldstart's arena is."""

    def __init__(self, layout: Layout, *, seed: int | None = None, fill: int = 0) -> None:
        super().__init__(layout, seed=seed, fill=fill)
        self.stream = bytearray([fill]) * layout.nbytes
        for start, storage in zip(layout.starts, self.storages, strict=True):
            self.stream[start : start + len(storage)] = storage

    def regions(self, span: Span) -> Sequence[Region]:
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.stream))
        return [Region(device="cpu", address=base + span.offset, length=span.length, offset=span.offset)]

    def weights(self) -> bytes:
        return b"".join(
            self.stream[start : start + size]
            for start, size in zip(self.layout.starts, self.layout.storages, strict=True)
        )


def weights(memory: BytesMemory) -> Content:
    return Content(memory.weights()) if isinstance(memory, Flat) else payload(memory, memory.layout)


@pytest.mark.parametrize("into", [Flat, BytesMemory])
@pytest.mark.parametrize("held", [Flat, BytesMemory])
async def test_any_memory_to_any_other(held: type[BytesMemory], into: type[BytesMemory]) -> None:
    source, joiner = GLOO.open(TransportSettings()), GLOO.open(TransportSettings())
    memory, target, landed = held(LAYOUT, seed=1), into(LAYOUT, fill=0xAA), Landings()
    await joiner.pull(await source.offer(grant("t"), memory), [whole(LAYOUT)], target, landed)
    await joiner.aclose()
    await source.aclose()
    assert weights(target) == weights(memory)
    assert merged(landed.spans) == (whole(LAYOUT),), "landed, padding included"


class TestMessages:
    @pytest.mark.parametrize("size", [1, 255, 256, 4096, MIB, 64 * MIB])
    def test_they_hold_every_byte_once_and_in_order(self, size: int) -> None:
        layout = layout_of(1000, 1, 256, 4097)
        places = Places.of(BytesMemory(layout, seed=1))
        found: list[int] = []
        for span in cut([whole(layout)], size):
            message = places.message(span)
            assert message.span.length <= size
            for part in message.parts:
                assert part.within + part.length <= part.block.length
                assert part.at + part.length <= span.length
                found.extend(range(span.offset + part.at, span.offset + part.at + part.length))
        pieces = layout.pieces(whole(layout))
        assert found == [at for piece in pieces for at in range(piece.offset, piece.offset + piece.length)]

    def test_memory_in_one_piece_is_sent_as_it_is(self) -> None:
        layout = layout_of(1000, 5000)
        assert all(Places.of(Flat(layout)).message(span).whole for span in cut([whole(layout)], 777))
        assert not Places.of(Flat(layout)).scattered

    def test_a_message_with_padding_is_packed(self) -> None:
        places = Places.of(BytesMemory(layout_of(1000, 5000)))
        assert places.scattered
        assert places.message(Span(0, 1000)).whole is not None
        assert places.message(Span(0, 1024)).whole is None
        assert places.message(Span(1001, 10)).parts == ()

    def test_what_fits(self) -> None:
        layout = layout_of(1000)
        assert fits([Span(0, 1024)], layout)
        assert not fits([Span(0, 1025)], layout)
        assert not fits([Span(5, 0)], layout)
