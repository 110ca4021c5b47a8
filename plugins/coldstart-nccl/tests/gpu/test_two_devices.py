"""Two processes on two GPUs: the bytes, the rates, and every way in which the other side can fail.

The parent holds no CUDA context and talks to its two children in lines of JSON. Each test prints
versions and rates: run with ``-s`` to see them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from coldstart.testing.keyed_contract import keys_file

GIB = 1024**3
WORKER = Path(__file__).with_name("worker.py")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


class Worker:
    """A child process that does as it is told, one thing at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker has ended"
        heard: dict[str, object] = json.loads(line)
        return heard

    def does(self, **order: object) -> dict[str, object]:
        self.tell(**order)
        return self.hear()


@contextmanager
def worker(device: int, environment: Mapping[str, str], **settings: object) -> Iterator[Worker]:
    pipe = subprocess.PIPE
    command = [sys.executable, str(WORKER), json.dumps({"device": f"cuda:{device}", **settings})]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            started = Worker(process)
            print(f"\ncuda:{device}:", started.hear())
            yield started
        finally:
            for blow in (signal.SIGCONT, signal.SIGKILL):
                process.send_signal(blow)


@pytest.fixture
def environment(installed: Mapping[str, str]) -> Mapping[str, str]:
    return {"NCCL_NVLS_ENABLE": "0", **installed}


SHAPES = {
    "two tensors": [3 * GIB, GIB + 13],
    "llama": [shape for _ in range(32) for shape in (117_440_512, 33_554_432, 8192, 8_388_608, 3)],
    "moe": [3_145_728] * 1024 + [7, 255, 4097],
}


@pytest.mark.parametrize("joiner_memory", ["flat", "scattered"])
@pytest.mark.parametrize("source_memory", ["flat", "scattered"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_arrives(
    environment: Mapping[str, str], shape: str, source_memory: str, joiner_memory: str
) -> None:
    sizes = SHAPES[shape]
    with worker(0, environment) as source, worker(1, environment) as joiner:
        ticket = source.does(do="offer", sizes=sizes, memory=source_memory)["ticket"]
        for attempt in range(4):
            done = joiner.does(do="pull", ticket=ticket, sizes=sizes, memory=joiner_memory)
            print(f"{shape}, {source_memory} to {joiner_memory}, pull {attempt}:", done)
            assert done["reason"] == ""
            assert done["wrong"] == 0
            assert done["landed"] == done["stream"]


@pytest.mark.parametrize("ctas", ["", "1", "2", "8"])
def test_rates_by_thread_blocks(environment: Mapping[str, str], ctas: str) -> None:
    sizes = [8 * GIB]
    capped = {**environment, "COLDSTART_NCCL_CTAS": ctas}
    with worker(0, capped) as source, worker(1, capped) as joiner:
        ticket = source.does(do="offer", sizes=sizes, memory="flat")["ticket"]
        for attempt in range(3):
            done = joiner.does(do="pull", ticket=ticket, sizes=sizes, memory="flat")
            print(f"ctas {ctas or 'default'}, pull {attempt}:", done)
            assert (done["reason"], done["wrong"]) == ("", 0)


def test_the_source_keeps_its_cap(environment: Mapping[str, str]) -> None:
    sizes = [4 * GIB]
    with worker(0, environment, rate=4e9) as source, worker(1, environment) as joiner:
        ticket = source.does(do="offer", sizes=sizes, memory="flat")["ticket"]
        done = joiner.does(do="pull", ticket=ticket, sizes=sizes, memory="flat")
        print("capped at 4 GB/s:", done)
        assert (done["reason"], done["wrong"]) == ("", 0)
        assert isinstance(done["gbps"], float)
        assert 2.0 < done["gbps"] < 4.5


@pytest.mark.parametrize(("blow", "reason"), [(signal.SIGKILL, "closed"), (signal.SIGSTOP, "timeout")])
@pytest.mark.parametrize("memory", ["flat", "scattered"])
def test_a_source_that_is_struck_ends_the_pull(
    environment: Mapping[str, str], memory: str, blow: signal.Signals, reason: str
) -> None:
    """And the joiner's device still works: it pulls everything from another source afterwards."""
    sizes = [GIB] * 8
    with worker(1, environment, io=3.0) as joiner:
        with worker(0, environment, rate=2e9) as source:
            ticket = source.does(do="offer", sizes=sizes, memory=memory)["ticket"]
            joiner.tell(do="pull", ticket=ticket, sizes=sizes, memory=memory, tell=True)
            assert "first" in joiner.hear()
            source.process.send_signal(blow)
            began = time.monotonic()
            done = joiner.hear()
            print(f"{blow.name}: {time.monotonic() - began:.2f} s,", done)
            assert done["reason"] == reason
            assert done["abortable"] is True, "abort did not come back"
            assert done["written_late"] is False
            assert time.monotonic() - began < 8
        with worker(0, environment) as source:
            ticket = source.does(do="offer", sizes=sizes, memory=memory)["ticket"]
            done = joiner.does(do="pull", ticket=ticket, sizes=sizes, memory=memory)
            assert (done["reason"], done["wrong"]) == ("", 0)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("memory", ["flat", "scattered"])
def test_a_joiner_that_is_struck_costs_the_source_nothing_lasting(
    environment: Mapping[str, str], memory: str, blow: signal.Signals
) -> None:
    sizes = [GIB] * 8
    with worker(0, environment, rate=2e9, io=3.0) as source:
        ticket = source.does(do="offer", sizes=sizes, memory=memory)["ticket"]
        with worker(1, environment) as joiner:
            joiner.tell(do="pull", ticket=ticket, sizes=sizes, memory=memory, tell=True)
            assert "first" in joiner.hear()
            joiner.process.send_signal(blow)
            quiet = source.does(do="quiet", seconds=10)
            print(f"{blow.name}: the source is quiet after", quiet)
            assert quiet["quiet"] is True
            revoked = source.does(do="revoke")
            assert revoked["reason"] == ""
        with worker(1, environment, io=30.0) as joiner:
            few = [GIB]
            ticket = source.does(do="offer", sizes=few, memory=memory)["ticket"]
            done = joiner.does(do="pull", ticket=ticket, sizes=few, memory=memory)
            assert (done["reason"], done["wrong"]) == ("", 0)


@pytest.mark.parametrize("how", ["revoke", "cancel"])
def test_ending_a_transfer_is_quick(environment: Mapping[str, str], how: str) -> None:
    sizes = [GIB] * 8
    with worker(0, environment, rate=2e9) as source, worker(1, environment) as joiner:
        ticket = source.does(do="offer", sizes=sizes, memory="flat")["ticket"]
        joiner.tell(do="pull", ticket=ticket, sizes=sizes, memory="flat", tell=True, cancel=how == "cancel")
        assert "first" in joiner.hear()
        if how == "revoke":
            print("revoked:", source.does(do="revoke"))
        done = joiner.hear()
        print(f"{how}:", done)
        assert done["reason"] == {"revoke": "revoked", "cancel": "cancelled"}[how]
        assert done["written_late"] is False
        assert done["abortable"] is True
        assert source.does(do="quiet", seconds=5)["quiet"] is True


def test_a_hundred_pairs_leave_nothing(environment: Mapping[str, str]) -> None:
    """Device memory on both sides is what it was after the tenth, and so are threads and descriptors."""
    sizes = [64 * 1024 * 1024, 13]
    with worker(0, environment) as source, worker(1, environment) as joiner:
        ticket = source.does(do="offer", sizes=sizes, memory="scattered")["ticket"]
        marks: list[tuple[dict[str, object], dict[str, object]]] = []
        seconds: list[object] = []
        for number in range(100):
            done = joiner.does(do="pull", ticket=ticket, sizes=sizes, memory="flat")
            assert (done["reason"], done["wrong"]) == ("", 0)
            seconds.append(done["seconds"])
            if number in (9, 99):
                marks.append((source.does(do="footprint"), joiner.does(do="footprint")))
        print("seconds of the first, the second and the last pull:", seconds[0], seconds[1], seconds[-1])
        for name, before, after in zip(("source", "joiner"), *marks, strict=True):
            print(name, before, after)
            assert_no_more(before, after)


def assert_no_more(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    slack = {"device_mib": 64, "threads": 1, "descriptors": 4}
    for what, allowed in slack.items():
        was, now = before[what], after[what]
        assert isinstance(was, int)
        assert isinstance(now, int)
        assert now <= was + allowed, (what, was, now)


def keyed(environment: Mapping[str, str], path: Path) -> Mapping[str, str]:
    """``environment`` for members of a fleet with keys, which digest by one of them."""
    return {**environment, "COLDSTART_KEYS": str(keys_file(path)), "COLDSTART_DIGEST": "blake2b"}


@pytest.mark.parametrize("with_keys", [False, True])
def test_ten_cold_starts_give_their_memory_back(
    with_keys: bool, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    """Whole cold starts by ``coldstart.join`` that name the transport, all in one process of the joiner's."""
    from safetensors.torch import save_file

    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    tensors = {f"layer.{index}.weight": torch.randn(4096, 4096, dtype=torch.float16) for index in range(32)}
    save_file(tensors, checkpoint / "model.safetensors")
    member = keyed(environment, tmp_path / "keys") if with_keys else environment
    named = {**member, "COLDSTART_TRANSPORTS": "nccl", "COLDSTART_DIRECTORY": os.fspath(tmp_path / "store")}
    with worker(0, named) as source, worker(1, named) as joiner:
        first = source.does(do="join", checkpoint=os.fspath(checkpoint), name="first", stay=True)
        assert first["path"] == "storage", first
        footprints: list[dict[str, object]] = []
        for number in range(10):
            report = joiner.does(do="join", checkpoint=os.fspath(checkpoint), name=f"second{number}", stay=False)
            print("cold start", number, report)
            assert (report["path"], report["transport"], report["verified"]) == ("peer", "nccl", True), report
            footprints.append(joiner.does(do="footprint"))
        print("footprints:", footprints)
        assert_no_more(footprints[1], footprints[-1])
