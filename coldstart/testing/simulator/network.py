"""Links that are shared: who gets how many bytes a second when several pull over the same link.

A fluid model. A :class:`Flow` crosses some :class:`Lane`\\ s, such as its source's way out and its
joiner's way in, and gets its max-min fair share of them: no flow can have more without taking from one
that has less or as much. Or, for large fleets, an even share: each lane gives each of its flows as much, and
what one cannot use is given to nobody, so that times are no shorter than they would be. Fair shares change
only for those flows that a beginning or ending one reaches from lane to lane, and in a crowd that is all of
them; even ones only for those that it meets. Decides rates and when bytes have come; it must
not know workers or chunks. ``movement.py`` sends bytes through it, ``scenario.py`` says how wide it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from coldstart.testing.simulator.heap import Heap


class Lane:
    """One direction of one link; ``capacity`` in bytes per second, for all flows together."""

    __slots__ = ("capacity", "even", "flows")

    def __init__(self, capacity: float, *, even: bool = False) -> None:
        self.capacity, self.even = capacity, even
        self.flows: dict[Flow, None] = {}
        """Those that bring something now."""


class Flow:
    """A way for bytes through ``lanes``. It takes part in them only while it brings something."""

    __slots__ = ("_args", "_call", "_due", "_heap", "_left", "_since", "_ticks", "lanes", "rate")

    def __init__(self, heap: Heap, *lanes: Lane) -> None:
        self._heap = heap
        self.lanes = lanes
        self.rate = 0.0
        """Bytes per second; 0 while it takes no part."""
        self._left = 0.0
        self._since = 0.0
        self._due = self._ticks = math.inf
        """When its bytes will have come at this rate, and when that is looked at next."""
        self._call: Callable[..., object] | None = None
        self._args: tuple[object, ...] = ()

    def enter(self) -> float:
        """Take part, and say at which rate bytes would come now. Whoever enters brings something, or ends."""
        if not self.rate:
            for lane in self.lanes:
                lane.flows[self] = None
            share(self)
        return self.rate

    def bring(self, nbytes: float, call: Callable[..., object], *args: object) -> None:
        """Call when ``nbytes`` have come; one delivery at a time."""
        self.enter()
        self._left, self._since = nbytes, self._heap.now
        self._call, self._args = call, args
        self._expect()

    def end(self) -> None:
        """Leave the lanes to others; what was still to come does not."""
        self._call, self._due = None, math.inf
        if self.rate:
            self.rate = 0.0
            for lane in self.lanes:
                del lane.flows[self]
            for lane in self.lanes:
                for other in lane.flows:
                    share(other)
                    break

    def change(self, rate: float) -> None:
        """Go on at another rate."""
        if rate == self.rate:
            return
        now = self._heap.now
        if self._call is not None:
            self._left -= (now - self._since) * self.rate
        self.rate, self._since = rate, now
        if self._call is not None:
            self._expect()

    def _expect(self) -> None:
        """Look when it has come. Where it only got slower, the look on its way looks again: that costs nothing now."""
        self._due = due = self._since + max(self._left, 0.0) / self.rate
        if due < self._ticks:
            self._ticks = due
            self._heap.at(due, self._come, due)

    def _come(self, look: float) -> None:
        if look != self._ticks:  # it got quicker since, and was looked at earlier
            return
        self._ticks = math.inf
        if self._call is None:
            return
        if self._due > look:
            self._ticks = self._due
            self._heap.at(self._due, self._come, self._due)
            return
        call, self._call, self._due = self._call, None, math.inf
        call(*self._args)
        if self._call is None:
            self.end()


def share(first: Flow) -> None:
    """Give ``first``, and all flows that it reaches from lane to lane, their max-min fair rates.

    The narrowest lane is shared evenly by those of its flows that have no rate yet, then the next one.
    """
    if first.lanes[0].even:
        _share_evenly(first)
        return
    flows, lanes = _reached(first)
    free = [lane.capacity for lane in lanes]
    open_ = [len(lane.flows) for lane in lanes]
    number = {lane: at for at, lane in enumerate(lanes)}
    waiting = flows
    while waiting:
        at = min((at for at, count in enumerate(open_) if count), key=lambda at: free[at] / open_[at])
        rate = free[at] / open_[at]
        for flow in lanes[at].flows:
            if flow in waiting:
                del waiting[flow]
                for lane in flow.lanes:
                    free[number[lane]] -= rate
                    open_[number[lane]] -= 1
                flow.change(rate)


def _share_evenly(first: Flow) -> None:
    for lane in first.lanes:
        for flow in lane.flows:
            flow.change(min([each.capacity / len(each.flows) for each in flow.lanes]))


def _reached(first: Flow) -> tuple[dict[Flow, None], list[Lane]]:
    """Everything that shares with ``first``, directly or through others."""
    flows: dict[Flow, None] = {first: None}
    lanes: dict[Lane, None] = {}
    ahead = [first]
    while ahead:
        for lane in ahead.pop().lanes:
            if lane not in lanes:
                lanes[lane] = None
                fresh = [flow for flow in lane.flows if flow not in flows]
                flows.update(dict.fromkeys(fresh))
                ahead += fresh
    return flows, list(lanes)


class Network:
    """The lanes of a fleet: each host's way out and way in, and storage's way out.

    Args:
        egress, ingress: bytes per second of each host.
        reader, storage: bytes per second of storage for one reader, and for all of them together.
        even: whether lanes are shared evenly instead of fairly.
    """

    def __init__(
        self, heap: Heap, *, egress: float, ingress: float, reader: float, storage: float, even: bool = False
    ) -> None:
        self._heap = heap
        self._reader, self._even = reader, even
        self._storage = Lane(storage, even=even)
        self._out: defaultdict[str, Lane] = defaultdict(lambda: Lane(egress, even=even))
        self._in: defaultdict[str, Lane] = defaultdict(lambda: Lane(ingress, even=even))

    def between(self, source: str, joiner: str) -> Flow:
        """From one host's memory to another's."""
        return Flow(self._heap, self._out[source], self._in[joiner])

    def from_storage(self, joiner: str) -> Flow:
        """From storage to a host's memory."""
        return Flow(self._heap, self._storage, self._in[joiner], Lane(self._reader, even=self._even))
