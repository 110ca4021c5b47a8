"""A network of this benchmark's own: a namespace for each worker and one for the store, around a bridge.

    store (10.204.0.1) --- bridge --- worker 0 (10.204.0.10), worker 1 (10.204.0.11), ...

Each worker's link is shaped in both directions by ``tc tbf``; the store's is not. The bridge is in a
namespace of its own, so nothing of the machine's own network is touched. Needs root. It must not know
workers. What is built here is taken down whatever happens, Ctrl-C included.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from benchmarks.fleet.undisturbed import undisturbed

STORE = "10.204.0.1"
BURST = 256 * 1024
"""Bytes that a link may let through at once: a few packets as large as the kernel makes them."""
QUEUE = "50ms"
"""What waits longer at a link is dropped, as at a switch."""


class NotAllowed(Exception):
    """No such network can be made here; the message says why."""


class Network:
    """Made by :func:`network`."""

    def __init__(self, prefix: str, workers: int) -> None:
        self._prefix = prefix
        self.workers = workers

    @property
    def store(self) -> str:
        """The namespace of the store."""
        return f"{self._prefix}s"

    def worker(self, number: int) -> str:
        """The namespace of a worker."""
        return f"{self._prefix}w{number}"

    @property
    def middle(self) -> str:
        return f"{self._prefix}m"

    @property
    def names(self) -> Sequence[str]:
        return (self.middle, self.store, *(self.worker(number) for number in range(self.workers)))


def inside(namespace: str, *command: str) -> tuple[str, ...]:
    """``command``, run in a namespace."""
    return ("ip", "netns", "exec", namespace, *command)


@contextmanager
def network(workers: int, mbit: float) -> Iterator[Network]:
    """A store and ``workers``, each with ``mbit`` (10^6 bits per second) each way.

    Raises:
        NotAllowed: not root, or ``ip``, ``tc`` or the kernel's shaper is not there.
    """
    made = Network(f"csf{os.getpid()}", workers)
    try:
        try:
            with undisturbed():
                _build(made, mbit)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            raise NotAllowed(f"shaped network namespaces cannot be made here: {reason.strip()}") from error
        yield made
    finally:
        with undisturbed(), suppress(OSError):  # where there is no such command, nothing was built
            for name in made.names:
                subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)


def _build(made: Network, mbit: float) -> None:
    for name in made.names:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "dev", "lo", "up")
    _run("ip", "-n", made.middle, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", made.middle, "link", "set", "bridge", "up")
    _attach(made, made.store, "store", STORE)
    for number in range(made.workers):
        name, port = made.worker(number), f"port{number}"
        _attach(made, name, port, f"10.204.0.{10 + number}")
        _shape(name, "inner", mbit)
        _shape(made.middle, port, mbit)


def _attach(made: Network, name: str, port: str, address: str) -> None:
    peer = ("type", "veth", "peer", "name", "inner", "netns", name)
    _run("ip", "-n", made.middle, "link", "add", port, *peer)
    _run("ip", "-n", made.middle, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "inner")
    _run("ip", "-n", name, "link", "set", "dev", "inner", "up")


def _shape(namespace: str, device: str, mbit: float) -> None:
    """Limit what leaves through ``device``."""
    rate = ("rate", f"{mbit:g}mbit", "burst", str(BURST), "latency", QUEUE)
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
