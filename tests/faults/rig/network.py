"""A network of this test's own: two namespaces and a link between them that can be cut in the middle.

    source (10.203.0.1) --- bridge --- joiner (10.203.0.2)

A cut takes the link away behind the backs of both ends: neither is told, no connection is reset. The
bridge is in a third namespace, so nothing of the machine's own network is touched. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SOURCE_ADDRESS = "10.203.0.1"
_ENDS = {"source": SOURCE_ADDRESS, "joiner": "10.203.0.2"}
_PLACE = "/run/netns"


class Network:
    """Made by :func:`network`; ``source`` and ``joiner`` are the files that name the namespaces."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.source, self.joiner = f"{_PLACE}/{prefix}source", f"{_PLACE}/{prefix}joiner"

    def cut(self) -> None:
        _ip("-n", f"{self._prefix}middle", "link", "set", "source", "down")

    def mend(self) -> None:
        _ip("-n", f"{self._prefix}middle", "link", "set", "source", "up")


@contextmanager
def network() -> Iterator[Network]:
    prefix = f"cs{os.getpid()}"
    middle = f"{prefix}middle"
    names = [middle, *(f"{prefix}{end}" for end in _ENDS)]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("-n", middle, "link", "add", "bridge", "type", "bridge")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', '') or error}")
        _ip("-n", middle, "link", "set", "bridge", "up")
        for end, address in _ENDS.items():
            name = f"{prefix}{end}"
            _ip("-n", middle, "link", "add", end, "type", "veth", "peer", "name", "inner", "netns", name)
            _ip("-n", middle, "link", "set", end, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "inner")
            _ip("-n", name, "link", "set", "dev", "inner", "up")
        yield Network(prefix)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
