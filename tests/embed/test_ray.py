"""Ray Serve deploys anew under constant load: all four replicas are replaced, and no request is lost.

Here Ray itself decides who is replaced when, and sends the requests. The store is killed in the middle. Only
``make test-embed`` has Ray.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest
from rig.store import Store

from tests.embed.asking import ask_http, numbers_of_http
from tests.embed.load import load
from tests.embed.rollout import INPUTS, RATE, Outcome, Replaced, expected, write_checkpoint
from tests.embed.worker import EXAMPLES, free_port

pytestmark = [
    pytest.mark.embed,
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed here; see make test-embed"),
]

REPLICAS = 4
BEFORE = 2
"""New ones that start with the store; Ray starts one after the other."""
SECONDS = 240.0
"""For a deployment: Ray starts a dozen processes."""

_READY = re.compile(r" (\w+) -- coldstart: ready after ([\d.]+) s by (\w+)")
_DRAINED = re.compile(r" (\w+) -- coldstart: drained in ([\d.]+) s")

Record = Callable[[Outcome], None]


class Ray:
    """The example, deployed."""

    def __init__(self, place: Path, checkpoint: Path, store: Store, port: int) -> None:
        self._place, self._log = place, place / "example.log"
        environment = {
            **os.environ,
            "COLDSTART_REDIS": store.url,
            "COLDSTART_CACHE": "none",
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",  # else it writes a token into the user's home
            "RAY_TMPDIR": str(place),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / "06_ray_serve.py"), str(checkpoint), str(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def deploy_anew(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    async def said(self, words: str) -> None:
        with anyio.fail_after(SECONDS):
            while words not in (text := self._log.read_text()):
                assert self.process.poll() is None, text
                await anyio.sleep(0.1)

    async def ready(self, count: int) -> dict[str, Replaced]:
        """Wait until so many replicas have been ready in all."""
        with anyio.fail_after(SECONDS):
            while len(found := self.replicas()) < count:
                assert self.process.poll() is None, self._log.read_text()
                await anyio.sleep(0.1)
        return found

    def replicas(self) -> dict[str, Replaced]:
        """By name: seconds to ready, path, and seconds of draining, as their logs have it."""
        text = "".join(file.read_text() for file in sorted(self._place.glob("ray/session_latest/logs/serve/*.log")))
        ended = {name: float(seconds) for name, seconds in _DRAINED.findall(text)}
        return {
            name: Replaced(name, float(seconds), path, ended.get(name, -1.0))
            for name, seconds, path in _READY.findall(text)
        }


@contextmanager
def ray(place: Path, checkpoint: Path, store: Store, port: int) -> Iterator[Ray]:
    """Ray and what it has started, which is one session of processes, end with the block."""
    made = Ray(place, checkpoint, store, port)
    try:
        yield made
        assert made.process.stdin is not None
        made.process.stdin.close()
        assert made.process.wait(SECONDS) == 0
    finally:
        if made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGTERM)
            made.process.wait(SECONDS)


async def test_deploying_anew_under_load_loses_no_request(place: Path, record: Record) -> None:
    store, port, checkpoint = Store(place / "store"), free_port(), write_checkpoint(place / "model")
    try:
        with ray(place, checkpoint, store, port) as deployed:
            await deployed.said("deployed\n")
            first = deployed.replicas()
            ask = partial(numbers_of_http, port, INPUTS)
            async with load(ask, expected(checkpoint), RATE) as made:
                deployed.deploy_anew()
                before = (await deployed.ready(REPLICAS + BEFORE)).keys() - first.keys()
                store.kill()
                await deployed.said("deployed anew\n")
                assert (await ask_http(port, "POST", "/", b"[1, 2, 3]")).status == 200
            replicas = deployed.replicas()
    finally:
        store.kill()
    ended = [replicas[name].draining for name in sorted(first)]
    new = [replicas[name] for name in sorted(replicas) if name not in first]
    rows = tuple(Replaced(each.worker, each.ready, each.path, left) for each, left in zip(new, ended, strict=True))
    median, most = made.percentile(0.5), made.percentile(0.99)
    record(Outcome("06_ray_serve.py", made.requests, len(made.failures), median, most, rows))
    assert not made.failures[:3]
    assert len(first) == len(new) == REPLICAS
    assert {replicas[name].path for name in before} == {"peer"}
    assert [each.path for each in new].count("storage") >= REPLICAS - BEFORE - 1, "all but the one under way then"
    assert min(ended) >= 0, "each old one has drained"
