"""What one worker knows of the links from the hosts around it to its device, and of its storage.

Decides what is looked up when: all of it is read once (:func:`recall`), while the skeleton is built, so that nothing
waits for a disk later, and what a pull has shown is written behind the cold start. Without a directory nothing is
remembered, so nothing is probed. It must not know how rates are measured. Its users are ``claiming.py`` (what to
ask a source for) and ``joining.py`` (what is known of the path, and what a pull has shown).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File

import anyio
import anyio.to_thread
import msgspec

from coldstart.links import files
from coldstart.links.meter import Meter
from coldstart.links.rates import Moved, Origin, Passage, Path, Rate, best, cautious, is_fresh, preferred
from coldstart.ports import Advert
from coldstart.telemetry import logger

LOAD_SECONDS = 0.5
"""A disk that is slower than this is one that we know nothing of."""

MAX_FAVOURS = 32
"""Hosts of which a source is told what we prefer, at most: those measured last."""


STORAGE = "storage"
"""What carries the bytes of a storage read, in the words of :class:`coldstart.links.rates.Path`."""

MAX_NAME = 256
"""Characters; what has a longer name is not remembered."""


async def recall(directory: File | None) -> Mapping[Path, Rate]:
    """What earlier processes have left; takes LOAD_SECONDS at most."""
    if directory is not None:
        with anyio.move_on_after(LOAD_SECONDS):
            return await anyio.to_thread.run_sync(files.load, directory, _complain, abandon_on_cancel=True)
    return {}


class Links:
    """One worker's.

    Args:
        directory: where rates are kept; None: nowhere.
        device: where the weights go.
        rates: what is known already.
        here: this host's name.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        directory: File | None,
        device: str,
        rates: Mapping[Path, Rate] | None = None,
        *,
        here: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._device = directory, device
        self._rates = dict(rates or {})
        self._here, self._clock = here or platform.node(), clock
        self.received = 0
        """The best rate at which our own weights came from a peer; 0: not known."""
        self._unsaved: dict[Path, Rate] = {}
        self._learnt = anyio.Event()

    async def run(self) -> None:
        """Write what is learnt, until cancelled."""
        directory = self._directory
        if directory is None:
            return
        await anyio.to_thread.run_sync(files.tidy, directory, abandon_on_cancel=True)
        while True:
            await self._learnt.wait()
            self._learnt = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write what is not written yet; a disk that refuses is logged."""
        while self._unsaved and self._directory is not None:
            path, rate = self._unsaved.popitem()
            try:
                await anyio.to_thread.run_sync(files.save, self._directory, path, rate, abandon_on_cancel=True)
            except (OSError, files.Trouble) as error:
                _complain(f"{self._directory}: {error}")

    # ----------------------------------------------------------------------------- what is known

    def hosts(self) -> Mapping[str, Mapping[str, Rate]]:
        """By host, the best known rate of each transport from there, over any device and route of it."""
        found: dict[str, dict[str, Rate]] = {}
        for path, rate in self._known():
            rates = found.setdefault(path.there, {})
            if best(rates.get(path.transport), rate) is rate:
                rates[path.transport] = rate
        return found

    def best_by_host(self) -> Mapping[str, float]:
        """The best rate from each host, over whatever it was, in bytes per second."""
        return {
            host: max(rate.bytes_per_second for rate in rates.values()) for host, rates in self.hosts().items()
        }

    def favours(self, order: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """The hosts from which another order of transports is wanted than ``order``, and which."""
        found: list[tuple[float, str, tuple[str, ...]]] = []
        for host, rates in self.hosts().items():
            wanted = preferred(order, {name: rate.bytes_per_second for name, rate in rates.items()})
            if wanted != tuple(order):
                found.append((max(rate.at for rate in rates.values()), host, wanted))
        found.sort(reverse=True)
        return {host: wanted for _, host, wanted in found[:MAX_FAVOURS]}

    def _known(self) -> Iterator[tuple[Path, Rate]]:
        """What is to be believed of the ways to here."""
        now = self._clock()
        for path, rate in self._rates.items():
            ours = (path.here, path.device) == (self._here, self._device) and path.transport != STORAGE
            if ours and is_fresh(rate, now):
                yield path, rate

    def storage(self, mount: str) -> float:
        """What the storage mounted there gave one reader, in bytes per second; 0: not known."""
        rate = self._rates.get(self._storage(mount))
        return rate.bytes_per_second if rate is not None and is_fresh(rate, self._clock()) else 0.0

    def _storage(self, mount: str) -> Path:
        return Path(self._here, self._device, "", mount, STORAGE)

    # ------------------------------------------------------------------------------ what is learnt

    def meter(self, source: Advert, transport: str) -> Meter:
        """For a pull that begins now; its head is a probe if nothing is known of the way.

        Unless the source still receives itself: then it is no faster than what it receives over.
        """
        way = (source.host, source.device, transport)
        known = any((path.there, path.remote, path.transport) == way for path, _ in self._known())
        whole = source.have >= source.total
        return Meter(probing=self._directory is not None and whole and not known)

    def learn(self, source: Advert, transport: str, route: str, meter: Meter, *, sound: bool = True) -> Passage:
        """What a pull that has ended was like; the best of it is kept if it was ``sound``.

        A transport may say that bytes have landed which never came, or break off; what it seemed to give must not
        make it the preferred one for a week.
        """
        path, now = Path(self._here, self._device, source.host, source.device, transport, route), self._clock()
        known = self._rates.get(path)
        known = known if known is not None and is_fresh(known, now) else None
        probed, pulled = _rate(meter.probe, "probe", now), _rate(meter.moved, "transfer", now)
        link = best(best(known, probed), pulled) if sound else known
        if sound:
            self.received = max(self.received, round(meter.moved.rate))
        if link is None:
            return Passage(source.worker, transport, route, meter.moved)
        if link is not known:
            self._keep(path, link)
        return Passage(
            source.worker, transport, route, meter.moved, link.bytes_per_second, link.origin, now - link.at
        )

    def learn_storage(self, mount: str, meter: Meter) -> None:
        """What a storage read that went well was like."""
        found = _rate(meter.moved, "transfer", self._clock())
        if mount and found is not None:
            path = self._storage(mount)
            known = self._rates.get(path)
            known = known if known is not None and is_fresh(known, found.at) else None
            self._keep(path, cautious(known, found))

    def _keep(self, path: Path, rate: Rate) -> None:
        if all(len(name) <= MAX_NAME for name in msgspec.structs.astuple(path)):
            self._rates[path] = self._unsaved[path] = rate
            self._learnt.set()


def _rate(moved: Moved, origin: Origin, now: float) -> Rate | None:
    return Rate(moved.rate, origin, now) if moved.rate > 0 else None


def _complain(what: str) -> None:
    logger().warning("link rates not used", reason=what)
