"""``coldstart exporter``: a fleet's metrics for Prometheus, from the store, where all workers have written them.

Decides when is looked and how counts are shown. What is counted is ``counting.py``'s matter. Workers show their own
metrics, too, and more of them (``metering.py``); this one tells of those that are gone before anybody has asked them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio

from coldstart.cli import metering
from coldstart.cli.counting import COUNTERS, GAUGES, Counting, Key, Labels
from coldstart.cli.looking import looker
from coldstart.cli.output import say, visible
from coldstart.errors import PluginUnavailable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_CHARACTERS = 128
"""Of a label: names in a journal may be longer."""


def run(redis: str | None, host: str, port: int, every: float) -> None:
    """The command; raises ConfigError or PluginUnavailable for ``main`` to print."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise PluginUnavailable(
            "metrics are shown by prometheus_client, which is not installed",
            advice="pip install 'coldstart-weights[otel]'",
        ) from error
    counting = Counting()
    with ExitStack() as stack:
        registry = CollectorRegistry()
        registry.register(_Collector(counting))
        shown = metering.show(registry, host, port, stack, advice="give another --port, or a --host of this machine")
        say(f"a fleet's metrics at http://{host}:{shown}/metrics, until SIGTERM or Ctrl-C")
        anyio.run(_serve, counting, redis, every)


async def _serve(counting: Counting, redis: str | None, every: float) -> None:
    """Look until a signal comes."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_look, counting, redis, every)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
        tasks.cancel_scope.cancel()


async def _look(counting: Counting, redis: str | None, every: float) -> None:
    async with looker(redis) as looks:
        while True:
            look = await looks.look_on()
            if look is None:
                counting.lost()
            else:
                counting.see(look)
            await anyio.sleep(every)


class _Collector:
    """What ``prometheus_client`` asks, in a thread of its own, each time that somebody asks it."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        tally = self._counting.tally
        up = "Whether the store answers; while it does not, only counters are shown."
        yield GaugeMetricFamily("coldstart_fleet_up", up, value=int(tally.up))
        yield from _families(CounterMetricFamily, COUNTERS, tally.counters)
        yield from _families(GaugeMetricFamily, GAUGES, tally.gauges)


def _families(
    kind: Callable[..., Metric],
    names: Mapping[str, tuple[str, Sequence[str]]],
    values: Mapping[Key, int],
) -> Iterable[Metric]:
    for name, (text, labels) in names.items():
        family = kind(f"coldstart_fleet_{name}", text, labels=labels)
        suffix = "_total" if family.type == "counter" else ""
        for (metric, given), value in values.items():
            if metric == name:
                plain = dict(zip(labels, _plain(given), strict=True))
                family.add_sample(f"{family.name}{suffix}", plain, value)
        yield family


def _plain(labels: Labels) -> Sequence[str]:
    return [visible(each)[:MOST_CHARACTERS] for each in labels]
