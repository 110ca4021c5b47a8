"""How much a TCP connection asks for at a time, and how fast a capped source sends."""

from __future__ import annotations

import time
from math import inf

import anyio
import pytest

from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import (
    MIB,
    Landings,
    eventually,
    grant,
    whole,
)
from coldstart.transports import tcp_joiner, wire
from coldstart.transports.pacing import Pace
from coldstart.transports.tcp import FACTORY

SMALLEST = wire.SMALLEST_SLICE


class TestSliceSize:
    """What a connection asks for next, given what the last slice took."""

    @pytest.mark.parametrize(
        ("size", "length", "seconds", "then"),
        [
            (SMALLEST, SMALLEST, 0.01, 2 * SMALLEST),
            (SMALLEST, SMALLEST, 0.05, SMALLEST),
            (SMALLEST, SMALLEST, 0.25, SMALLEST),
            (SMALLEST, SMALLEST, 60.0, SMALLEST),
            (MIB, MIB, 0.0, 2 * MIB),
            (MIB, MIB, 0.15, MIB),
            (MIB, MIB, 0.3, MIB // 2),
            (MIB, MIB, 0.6, MIB // 4),
            (wire.SLICE, wire.SLICE, 0.0, wire.SLICE),
            (wire.SLICE, wire.SLICE, 3600.0, SMALLEST),
            (wire.SLICE, 100, 0.001, wire.SLICE),  # the end of a span says little
            (wire.SLICE, 100, 0.2, wire.SLICE),
            (wire.SLICE, 100, 0.3, SMALLEST),
            (2 * MIB, MIB, 0.01, 2 * MIB),  # asked for before the last doubling
            (MIB, 2 * MIB, 0.3, MIB),  # asked for before the last halving, which was enough
            (MIB, 2 * MIB, 0.8, MIB // 2),
        ],
    )
    def test_the_rule(self, size: int, length: int, seconds: float, then: int) -> None:
        assert tcp_joiner.next_size(size, length, seconds) == then

    @pytest.mark.parametrize("rate", [1e3, 1e6, 2e6, 5e6, 20e6, 100e6, 1e9, 1e10])
    def test_it_settles_at_every_speed(self, rate: float) -> None:
        """Neither too slow where smaller slices are possible, nor too small where larger ones are."""
        for start in (SMALLEST, wire.SLICE):
            size = start
            for _ in range(10):
                size = tcp_joiner.next_size(size, size, size / rate)
            assert tcp_joiner.next_size(size, size, size / rate) == size
            assert size == SMALLEST or size / rate <= tcp_joiner.SLOW_SECONDS
            assert size == wire.SLICE or size / rate >= tcp_joiner.QUICK_SECONDS

    async def test_a_slow_source_lands_in_small_steps(self) -> None:
        """Each landed range tells the joiner that the source is alive."""
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=2e6))
        layout = layout_of(6 * SMALLEST)
        held, target, landed = BytesMemory(layout, seed=1), BytesMemory(layout), Landings()
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, landed)
        assert target.storages == held.storages
        assert len(landed.spans) >= 4
        assert max(span.length for span in landed.spans) <= 2 * SMALLEST  # more than once only if we were kept waiting
        await source.aclose()

    async def test_a_fast_source_lands_in_large_steps(self) -> None:
        """One connection, so that the order is known; the steps are not, since machines differ."""
        source = FACTORY.open(TransportSettings(connections=1))
        layout = layout_of(64 * MIB)
        held, target, landed = BytesMemory(layout, fill=1), BytesMemory(layout), Landings()
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, landed)
        assert [span.offset for span in landed.spans] == sorted(span.offset for span in landed.spans)
        assert landed.spans[0].length == SMALLEST
        assert max(span.length for span in landed.spans) > MIB
        await source.aclose()

    async def test_a_range_lands_after_its_memory_was_closed(self) -> None:
        """Device memory holds the bytes only then."""
        source = FACTORY.open(TransportSettings(connections=1))
        layout = layout_of(3 * MIB)
        target, lent = BytesMemory(layout), list[int]()
        ticket = await source.offer(grant("t"), BytesMemory(layout))
        await source.pull(ticket, [whole(layout)], target, lambda _: lent.append(target.lent))
        assert set(lent) == {0}
        await source.aclose()


class TestPace:
    def test_the_rate_is_kept_from_the_first_byte_on(self) -> None:
        pace, now = Pace(1000.0), 50.0
        for _ in range(100):
            now += pace.reserve(100, now)
        assert now - 50.0 == pytest.approx(9.89, abs=0.02)  # 9,900 bytes before the last, less 10 ms of burst

    def test_two_senders_share(self) -> None:
        pace = Pace(1000.0)
        waits = [pace.reserve(500, 0.0) for _ in range(4)]
        assert waits == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.011)

    def test_a_pause_is_not_followed_by_a_burst(self) -> None:
        pace = Pace(1000.0)
        pace.reserve(1000, 0.0)
        assert pace.reserve(1000, 100.0) == 0.0
        assert pace.reserve(1000, 100.0) == pytest.approx(0.99)

    @pytest.mark.parametrize(
        ("rate", "quantum"),
        [(1.0, 1024), (50e6, 262_144), (10e6, 100_000), (1e12, 262_144), (inf, 262_144), (1e308, 262_144)],
    )
    def test_quanta_are_small(self, rate: float, quantum: int) -> None:
        assert Pace(rate).quantum == quantum

    @pytest.mark.parametrize("rate", [inf, 1e308, 1e18])
    async def test_an_absurd_cap_caps_nothing(self, rate: float) -> None:
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=rate))
        layout = layout_of(3 * MIB)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, Landings())
        assert target.storages == held.storages
        await source.aclose()

    async def test_a_revoke_does_not_wait_for_the_cap(self) -> None:
        """At so few bytes a second the next ones would go in seconds: nobody waits for that who only ends it."""
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=100.0, connections=1))
        layout = layout_of(2 * SMALLEST)
        ticket = await source.offer(grant("t"), BytesMemory(layout, seed=1))
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def pull() -> None:
                    with pytest.raises(TransportError):
                        await source.pull(ticket, [whole(layout)], BytesMemory(layout), Landings())

                tasks.start_soon(pull)
                await eventually(lambda: source.reading("t"))
                await source.revoke("t")
        await source.aclose()

    async def test_a_capped_source_is_not_faster_over_more_connections(self) -> None:
        rate = 32.0 * MIB
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=rate, connections=4))
        layout = layout_of(16 * MIB)
        ticket = await source.offer(grant("t"), BytesMemory(layout))
        began = time.monotonic()
        await source.pull(ticket, [whole(layout)], BytesMemory(layout), Landings())
        assert time.monotonic() - began >= 0.9 * 16 * MIB / rate
        await source.aclose()
