"""What Prometheus would get from real processes, and Prometheus's own tool that judges it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)")


def promtool(*words: str, text: str = "") -> None:
    done = subprocess.run(["promtool", *words], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}
    return {**clean, "COLDSTART_DIRECTORY": str(home / "v"), "COLDSTART_METRICS_HOST": "127.0.0.1"}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    """Values by name and label values."""
    return {
        ",".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def exporter(home: Path, *words: str) -> Iterator[int]:
    """A real exporter of the fleet whose store is in ``home``; gives its port."""
    command = [sys.executable, "-m", "coldstart.cli.main", "exporter", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--every", "0.2", *words], stdout=subprocess.PIPE, text=True, env=environment(home)
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
