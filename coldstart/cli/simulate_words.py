"""What ``coldstart simulate`` is asked for, as words and as a scenario, and what its processes say to each other.

Decides how seeds and faults are written, which figures of a scenario can be set, and within which
bounds. It must not know processes (``simulate_jobs.py``). What is played is decided in
``coldstart.testing.simulator``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from coldstart.errors import ConfigError
from coldstart.testing.simulator import Fault, Link, Outcome, Scenario, troubled

MIB = 1 << 20

_SEEDS = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
_RANGES: Mapping[str, tuple[float, float]] = {
    "workers": (1, 100_000),
    "chunks": (1, 10_000),
    "chunk_mib": (1, 65_536),
    "spread": (0, 86_400),
    "storage_gbps": (0.001, 1000),
    "link_gbps": (0.001, 1000),
    "slots": (1, 1024),
    "patience": (0.001, 86_400),
    "strikes": (0, 10_000),
    "group_size": (1, 1024),
}
"""Least and most of each number."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fleet, its faults, and what differs from the usual scenario (None: as usual there).

    Args:
        workers: of the rollout.
        faults: kinds to draw from, in the order of :class:`Fault`; none for a quiet run.
        chunks, chunk_mib: of the model.
        spread: seconds within which the rollout starts.
        storage_gbps, link_gbps: 10^9 bytes per second of a storage read, and of a source's link.
        slots: joiners per source.
        patience: seconds; see :class:`coldstart.plan.Limits`.
        strikes: faults in one run.
        group_size: ranks that act as one.
        estimates: whether workers remember what links and storage give, and so weigh waiting against storage.
    """

    workers: int = 64
    faults: tuple[Fault, ...] = tuple(Fault)
    chunks: int | None = None
    chunk_mib: int | None = None
    spread: float | None = None
    storage_gbps: float | None = None
    link_gbps: float | None = None
    slots: int | None = None
    patience: float | None = None
    strikes: int | None = None
    group_size: int | None = None
    estimates: bool | None = None

    def checked(self) -> Asked:
        """Itself.

        Raises:
            ConfigError: a number is out of its range, or peers could not be of use in such a fleet, so that
                some promises would be broken with nothing wrong.
        """
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{_option(field)} is {value}", advice=f"use {least:g} to {most:g}")
        _sensible(self.scenario(), Link() if self.link_gbps is None else Link(self.link_gbps * 1e9))
        return self

    def scenario(self) -> Scenario:
        """What is played. Storage's rate is the joiner's floor too, which makes "never worse than storage" exact."""
        usual = troubled(self.workers, self.faults) if self.faults else Scenario(workers=self.workers)
        storage = usual.storage if self.storage_gbps is None else self.storage_gbps * 1e9
        patience = usual.limits.patience if self.patience is None else self.patience
        link = Link() if self.link_gbps is None else Link(self.link_gbps * 1e9)
        return replace(
            usual,
            chunks=usual.chunks if self.chunks is None else self.chunks,
            chunk_bytes=usual.chunk_bytes if self.chunk_mib is None else self.chunk_mib * MIB,
            spread=usual.spread if self.spread is None else self.spread,
            storage=storage,
            transport=usual.transport if self.link_gbps is None else link,
            slots=usual.slots if self.slots is None else self.slots,
            limits=replace(usual.limits, patience=patience, floor=storage),
            strikes=usual.strikes if self.strikes is None else self.strikes,
            group_size=usual.group_size if self.group_size is None else self.group_size,
            link_known=link.bytes_per_second if self.estimates else 0.0,
            storage_known=storage if self.estimates else 0.0,
        )

    def command(self, seeds: str) -> str:
        """The command line that plays this."""
        words = [f"coldstart simulate --workers {self.workers} --seeds {seeds} --faults {spelt(self.faults)}"]
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field not in ("workers", "faults") and value is not None:
                words.append(_option(field) if value is True else f"{_option(field)} {value}")
        return " ".join(words)

    def replay(self, seed: int) -> str:
        """The command line that plays one seed again, and shows every step of it."""
        return f"{self.command(str(seed))} --journal"


class Task(msgspec.Struct, frozen=True):
    """What one process plays, seed after seed; ``journal``: the whole one is wanted, of every seed."""

    asked: Asked
    journal: bool


class Played(msgspec.Struct, frozen=True):
    """One seed's run and the CPU seconds that it cost."""

    outcome: Outcome
    cpu_seconds: float


def seeds_of(text: str) -> range:
    """``7``, or ``0..99`` with both ends; raises ConfigError for anything else."""
    found = _SEEDS.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--seeds {text!r} names no seeds", advice="give one, such as 7, or a range, such as 0..99")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise ConfigError(f"--seeds {text!r} ends before it begins", advice=f"give {last}..{first}")
    return range(first, last + 1)


def faults_of(text: str) -> tuple[Fault, ...]:
    """``all``, ``none``, or kinds separated by commas; raises ConfigError for anything else.

    The order in which kinds are given does not matter, as it would change what a seed draws.
    """
    words = {word.strip() for word in text.split(",") if word.strip()}
    if words == {"all"}:
        return tuple(Fault)
    if words == {"none"}:
        return ()
    advice = f"give all, none, or some of {','.join(Fault)}"
    if not words:
        raise ConfigError(f"--faults {text!r} names no kind of fault", advice=advice)
    unknown = sorted(words - set(Fault))
    if unknown:
        raise ConfigError(f"--faults {text!r}: {unknown[0]!r} is not a kind of fault", advice=advice)
    return tuple(kind for kind in Fault if kind in words)


def spelt(faults: tuple[Fault, ...]) -> str:
    """As :func:`faults_of` reads it."""
    return "none" if not faults else "all" if faults == tuple(Fault) else ",".join(faults)


def _sensible(scenario: Scenario, link: Link) -> None:
    """Refuse a fleet in which sound peers are rightly left: for being slower than storage or than their own clocks."""
    limits = scenario.limits
    chunk = 1.1 * scenario.chunk_bytes * scenario.slots / link.bytes_per_second
    slower = scenario.chunks * chunk - scenario.storage_seconds
    still = min(limits.stall, limits.patience)
    if chunk > still:
        raise ConfigError(
            f"a chunk takes {chunk:.3g} s with all slots taken, and a transfer may stand still for {still:g} s only",
            advice="give fewer --slots, a smaller --chunk-mib, or more --link-gbps or --patience",
        )
    if slower > limits.patience:
        raise ConfigError(
            f"with all slots taken the model takes {slower:.3g} s longer than from storage, more than the patience",
            advice="give fewer --slots, more --link-gbps or --patience, or less --storage-gbps",
        )
    if scenario.storage_seconds > limits.follow:
        raise ConfigError(
            f"storage takes {scenario.storage_seconds:.3g} s, and its reader is waited for {limits.follow:g} s only",
            advice="give fewer --chunks, a smaller --chunk-mib, or more --storage-gbps",
        )


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
