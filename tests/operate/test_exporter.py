"""``coldstart exporter``: a worker that failed and is gone is still in what Prometheus gets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.checkpoint import read_checkpoint
from coldstart.errors import TruthConflict
from tests.operate.scraping import environment, exporter, needs_promtool, promtool, samples, scrape

Write = Callable[..., Path]
pytestmark = pytest.mark.processes


def flip_a_bit(checkpoint: Path) -> None:
    """Where no sample is taken, and without a trace in the file's times: the checkpoint keeps its name."""
    stored = read_checkpoint(checkpoint).tensors["embed.weight"]
    before = stored.file.stat()
    with stored.file.open("r+b") as file:
        file.seek(stored.offset)
        byte = file.read(1)
        file.seek(stored.offset)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(stored.file, ns=(before.st_atime_ns, before.st_mtime_ns))


def scraped(port: int, name: str, value: float) -> str:
    """The scrape in which a sample first has this value."""
    deadline = time.monotonic() + 30
    while True:
        text = scrape(port)
        if samples(text).get(name) == value:
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


@needs_promtool
def test_a_failed_start_is_counted_after_its_worker_has_gone(tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = write_checkpoint(tmp_path / "m", mib=8)
    worker = [sys.executable, "-m", "coldstart.cli.main", "worker", "--checkpoint", str(checkpoint)]
    words = [*worker, "--skeleton", "tensors"]
    first = subprocess.Popen([*words, "--name", "w1"], stdout=subprocess.PIPE, text=True, env=environment(tmp_path))
    try:
        assert first.stdout is not None
        model = first.stdout.readline().split()[2].rstrip(":")
        with exporter(tmp_path) as port:
            assert samples(scraped(port, f"coldstart_fleet_holders,{model}", 1))["coldstart_fleet_up"] == 1
            first.send_signal(signal.SIGSTOP)
            flip_a_bit(checkpoint)
            second = subprocess.run(
                [*words, "--name", "w2"], capture_output=True, text=True, timeout=60, env=environment(tmp_path),
                check=False,
            )  # fmt: skip
            assert second.returncode == TruthConflict.exit_code, second.stderr
            text = scraped(port, f"coldstart_fleet_failures_total,conflict,{model}", 1)
            found = samples(text)
            assert found[f"coldstart_fleet_starts_total,failed,none,{model}"] == 1
            assert found[f"coldstart_fleet_truth_conflicts_total,{model}"] == 1
            assert found[f"coldstart_fleet_starts_total,served,storage,{model}"] == 1
            promtool("check", "metrics", text=text)
            spoilt = write_checkpoint(tmp_path / "spoilt") / "model.safetensors"
            spoilt.write_bytes(spoilt.read_bytes()[:-1000])
            third = [*words[:-3], str(spoilt), *words[-2:], "--name", "w3"]
            assert subprocess.run(third, capture_output=True, timeout=60, env=environment(tmp_path)).returncode == 3
            text = scraped(port, "coldstart_fleet_failures_total,build,unbuilt", 1)
            assert samples(text)["coldstart_fleet_starts_total,failed,none,unbuilt"] == 1
            first.send_signal(signal.SIGCONT)
            first.terminate()
            first.wait(timeout=30)
            gone = scraped(port, "coldstart_fleet_up", 0)
            assert samples(gone)[f"coldstart_fleet_truth_conflicts_total,{model}"] == 1
            assert f"coldstart_fleet_holders,{model}" not in samples(gone)
    finally:
        first.send_signal(signal.SIGCONT)
        first.kill()
        first.communicate(timeout=30)


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["exporter", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            [sys.executable, "-m", "coldstart.cli.main", *words], capture_output=True, text=True, timeout=30,
            env=environment(tmp_path), check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "metrics cannot be shown at 127.0.0.1" in done.stderr
    assert "give another --port" in done.stderr, "it has no --metrics-port"
