"""Shared links: nothing is lost, nothing is made up, nothing lies idle that somebody could use."""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from coldstart.plan import Limits
from coldstart.testing.simulator import Fabric, Fault, Scenario, simulate
from coldstart.testing.simulator.heap import Heap
from coldstart.testing.simulator.network import Flow, Lane, Network


class Rig:
    """A heap, lanes, flows, and when what has come."""

    def __init__(self) -> None:
        self.heap = Heap(0)
        self.came: dict[str, float] = {}

    def flow(self, *lanes: Lane) -> Flow:
        return Flow(self.heap, *lanes)

    def bring(self, name: str, flow: Flow, nbytes: float) -> None:
        flow.bring(nbytes, self._note, name)

    def _note(self, name: str) -> None:
        self.came[name] = self.heap.now


def test_one_flow_has_its_narrowest_lane() -> None:
    rig = Rig()
    rig.bring("a", rig.flow(Lane(100.0), Lane(40.0), Lane(math.inf)), 80.0)
    rig.heap.run(10.0)
    assert rig.came == {"a": 2.0}


def test_two_of_one_source_have_half_each_and_the_longer_one_all_when_the_other_has_ended() -> None:
    rig, way_out = Rig(), Lane(10.0)
    rig.bring("short", rig.flow(way_out, Lane(10.0)), 10.0)
    rig.bring("long", rig.flow(way_out, Lane(10.0)), 30.0)
    rig.heap.run(10.0)
    assert rig.came == {"short": 2.0, "long": 4.0}


def test_what_one_cannot_use_the_others_have() -> None:
    rig, way_out = Rig(), Lane(12.0)
    slow, one, two = (rig.flow(way_out, Lane(width)) for width in (2.0, 100.0, 100.0))
    rates = [flow.enter() for flow in (slow, one, two)]
    assert rates[-1] == 5.0
    assert [slow.rate, one.rate, two.rate] == [2.0, 5.0, 5.0]


def test_shares_reach_from_lane_to_lane() -> None:
    """a: X only; b: X and Y; c: Y only. A third flow on Y leaves b less, and so a more."""
    rig, x, y = Rig(), Lane(10.0), Lane(10.0)
    a, b, c, d = rig.flow(x), rig.flow(x, y), rig.flow(y), rig.flow(y)
    for flow in (a, b, c):
        flow.enter()
    assert [a.rate, b.rate, c.rate] == [5.0, 5.0, 5.0]
    d.enter()
    assert [a.rate, b.rate, c.rate, d.rate] == pytest.approx([20 / 3, 10 / 3, 10 / 3, 10 / 3])
    d.end()
    assert [a.rate, b.rate, c.rate, d.rate] == [5.0, 5.0, 5.0, 0.0]


def test_a_flow_that_brings_nothing_takes_nothing() -> None:
    rig, way_out = Rig(), Lane(10.0)
    one, other = rig.flow(way_out), rig.flow(way_out)
    rig.bring("one", one, 5.0)
    rig.bring("other", other, 20.0)
    rig.heap.run(2.0)
    assert (one.rate, other.rate) == (0.0, 10.0)
    rig.bring("again", one, 5.0)
    assert (one.rate, other.rate) == (5.0, 5.0)


def test_what_was_ended_never_comes() -> None:
    rig = Rig()
    flow = rig.flow(Lane(1.0))
    rig.bring("a", flow, 5.0)
    rig.heap.run(2.0)
    flow.end()
    rig.heap.run(10.0)
    assert not rig.came


@pytest.mark.parametrize("seed", range(40))
def test_any_traffic_is_shared_fairly_and_wholly(seed: int) -> None:
    """No lane carries more than it can, and each flow is held back by a full lane in which nobody has more."""
    luck, rig = random.Random(seed), Rig()
    lanes = [Lane(luck.uniform(1.0, 20.0)) for _ in range(luck.randint(1, 8))]
    flows = [rig.flow(*luck.sample(lanes, luck.randint(1, min(3, len(lanes))))) for _ in range(luck.randint(1, 20))]
    for _ in range(60):
        flow = luck.choice(flows)
        if flow.rate:
            flow.end()
        else:
            flow.enter()
        _assert_fair(lanes, [flow for flow in flows if flow.rate])


def _assert_fair(lanes: list[Lane], active: list[Flow]) -> None:
    for lane in lanes:
        assert set(lane.flows) == {flow for flow in active if lane in flow.lanes}
        assert sum(flow.rate for flow in lane.flows) <= lane.capacity * (1 + 1e-9)
    for flow in active:
        assert any(
            sum(other.rate for other in lane.flows) >= lane.capacity * (1 - 1e-9)
            and flow.rate >= max(other.rate for other in lane.flows) * (1 - 1e-9)
            for lane in flow.lanes
        )


@pytest.mark.parametrize("seed", range(10))
def test_as_many_bytes_come_as_were_sent_however_often_rates_change(seed: int) -> None:
    """One source, its link never idle: the last byte comes when all bytes have had their time on it."""
    luck, heap, came = random.Random(seed), Heap(0), []
    network = Network(heap, egress=8.0, ingress=8.0, reader=8.0, storage=8.0)
    sizes = [luck.uniform(1.0, 50.0) for _ in range(12)]
    for number, nbytes in enumerate(sizes):
        flow = network.between("source", f"joiner {number}")
        heap.at(luck.random(), flow.bring, nbytes, lambda: came.append(heap.now))
    heap.at(0.0, network.between("source", "first").bring, 8.0, lambda: None)
    heap.run(200.0)
    assert len(came) == len(sizes)
    assert came[-1] == pytest.approx((sum(sizes) + 8.0) / 8.0)


# ---------------------------------------------------------------------------------- in a fleet

RATE = 1e9
FLEET = Scenario(workers=1, chunks=10, chunk_bytes=10**8, spread=0.0, storage=RATE, fabric=Fabric(RATE, RATE))
SLACK = 0.02
"""Seconds for everything but bytes."""


def test_a_worker_alone_takes_its_bytes_over_its_links() -> None:
    for holders in (0, 1):
        outcome = simulate(replace(FLEET, holders=holders), 1)
        assert not outcome.violations
        assert outcome.served["w0"].at == pytest.approx(1.0, abs=SLACK)


def test_two_that_pull_from_one_holder_at_once_take_twice_as_long() -> None:
    """They need not: see the next one."""
    outcome = simulate(replace(FLEET, workers=2, holders=1, limits=replace(FLEET.limits, share=0.0)), 1)
    assert outcome.storage_reads == 1
    assert [served.at for served in outcome.served.values()] == pytest.approx([2.0, 2.0], abs=SLACK)


def test_the_second_receives_from_the_first_while_that_still_receives() -> None:
    outcome = simulate(replace(FLEET, workers=2, holders=1), 1)
    chunk = 1 / FLEET.chunks
    assert [served.at for served in outcome.served.values()] == pytest.approx([1.0, 1.0 + chunk], abs=SLACK)


def test_storage_is_shared_when_it_is_read_by_many() -> None:
    """Whoever gave a slot up reads storage, here all at once, over what storage has for all.

    What is read as a whole is shared with nobody meanwhile.
    """
    impatient = Limits(patience=0.2, floor=RATE / 8)
    fabric = Fabric(RATE, RATE, RATE / 2)
    fleet = replace(FLEET, workers=8, slots=1, limits=impatient, fabric=fabric, partial=False)
    outcome = simulate(fleet, 1)
    assert not outcome.violations
    readers = outcome.storage_reads - 1
    assert readers > 1
    assert max(served.at for served in outcome.served.values()) >= readers / 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_on_shared_links_keeps_every_promise_with_workers_dying(seed: int) -> None:
    dying = (Fault.CRASH, Fault.VANISH)
    fleet = replace(FLEET, workers=16, limits=Limits(floor=RATE / 8), faults=dying, trouble=5.0, strikes=3)
    outcome = simulate(fleet, seed)
    assert not outcome.violations
    assert outcome.faults
    assert outcome.trace_hash == simulate(fleet, seed).trace_hash


def test_what_workers_ask_of_the_store_is_counted() -> None:
    outcome = simulate(replace(FLEET, holders=1), 1)
    served = outcome.served["w0"]
    assert 4 <= served.calls <= 8
    assert served.letters == 1
    assert outcome.rollout_calls > served.calls
