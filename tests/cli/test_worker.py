"""``coldstart worker`` as an operator runs it: good and bad input, signals, pipes, JSON, traces."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from coldstart.cli.worker import Asked, serve
from coldstart.config import Settings
from coldstart.replica import Replica

Write = Callable[..., Path]
pytestmark = pytest.mark.processes


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "coldstart.cli.main", *words]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}
    return {**clean, "COLDSTART_DIRECTORY": str(tmp_path / "v"), **more}


def run(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=60, env=environment(tmp_path, **more), check=False
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("coldstart: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in lines[0], lines[0]


@contextmanager
def silent_server() -> Iterator[int]:
    """A port that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    assert_one_line(run(tmp_path, "worker", "--checkpoint", missing), 3, missing)


def test_a_truncated_file(tmp_path: Path, write_checkpoint: Write) -> None:
    file = write_checkpoint(tmp_path / "m") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert_one_line(run(tmp_path, "worker", "--checkpoint", str(file.parent)), 3, str(file), "1000 of")


def test_a_hostile_header(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 91_000_000) + b" " * 1000)
    assert_one_line(run(tmp_path, "worker", "--checkpoint", str(file)), 3, str(file), "header")


def test_an_unknown_skeleton_and_transport(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    assert_one_line(run(tmp_path, "worker", "--checkpoint", where, "--skeleton", "foo"), 4, "'foo'", "tensors")
    assert_one_line(
        run(tmp_path, "worker", "--checkpoint", where, "--skeleton", "tensors", "--transports", "foo"), 4, "tcp"
    )


def test_a_wrong_url_and_a_wrong_setting(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    assert_one_line(run(tmp_path, "worker", "--checkpoint", where, "--redis", "http://x"), 2, "http", "redis://")
    assert_one_line(
        run(tmp_path, "worker", "--checkpoint", where, COLDSTART_SLOTS="many"), 2, "COLDSTART_SLOTS"
    )
    assert_one_line(run(tmp_path, "worker", "--checkpoint", where, "--slots", "-1"), 2, "slots")


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_store_that_does_not_answer_means_storage_within_the_budget(
    kind: str, tmp_path: Path, write_checkpoint: Write
) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    with silent_server() as port:
        url = f"redis://127.0.0.1:{port if kind == 'silent' else 1}"
        words = ("worker", "--checkpoint", where, "--skeleton", "tensors", "--once", "--json")
        done = run(tmp_path, *words, "--redis", url)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    report = next(line["report"] for line in lines if line["event"] == "serving")
    assert report["path"] == "storage"
    assert report["verified"] is True
    assert url.removeprefix("redis://") in report["detours"][0]
    lost = report["seconds"] - report["phases"]["build"] - report["phases"]["fallback"]
    assert lost <= 5.0 + 2.0, "patience, and one call to publish"


def test_lines_in_a_pipe_and_a_drain_on_sigterm(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    process = subprocess.Popen(
        command("worker", "--checkpoint", where, "--skeleton", "tensors", "--name", "w"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("w serves m@")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines() == ["w draining", "w gone"]
    assert "FALLBACK from storage" in err
    assert "\x1b" not in err


@contextmanager
def serving(tmp_path: Path, where: str, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that has said its first line on stdout."""
    process = subprocess.Popen(
        command("worker", "--checkpoint", where, "--skeleton", "tensors", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, **more),
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_name_that_another_worker_has_is_refused_and_that_of_a_dead_one_is_not(
    tmp_path: Path, write_checkpoint: Write
) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    words = ("worker", "--checkpoint", where, "--skeleton", "tensors", "--name", "w")
    with serving(tmp_path, where, "--name", "w") as first, serving(tmp_path, where, "--name", "other"):
        refused = run(tmp_path, *words)
        assert refused.returncode == 2, refused
        assert len([line for line in refused.stderr.splitlines() if "'w' lives already, on '127.0.0.1'" in line]) == 1
        assert "Traceback" not in refused.stderr
        assert first.poll() is None
        first.kill()
        anew = run(tmp_path, *words, "--once")
        assert anew.returncode == 0, anew.stderr
        assert "from other at" in anew.stdout


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_worker_whose_reader_has_left_goes_on_serving(
    form: tuple[str, ...], tmp_path: Path, write_checkpoint: Write
) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    with serving(tmp_path, where, "--name", "w1", *form) as first:
        assert first.stdout is not None
        first.stdout.close()
        for name in ("w2", "w3"):
            done = run(tmp_path, "worker", "--checkpoint", where, "--skeleton", "tensors", "--name", name, "--once")
            assert done.returncode == 0, done.stderr
            assert "from w1 at" in done.stdout
        first.terminate()
        assert first.stderr is not None
        said = first.stderr.read()
        assert first.wait(timeout=30) == 0
    assert "Traceback" not in said
    assert "lost" not in said


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("sink", [">&-", "> /dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_worker_without_output_does_what_it_does(
    sink: str, form: tuple[str, ...], tmp_path: Path, write_checkpoint: Write
) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    words = command("worker", "--checkpoint", where, "--skeleton", "tensors", "--once", *form)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {sink}', "sh", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == int("full" in sink), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("output is lost: No space left on device") == int("full" in sink)


def test_progress_and_result_call_an_unnamed_worker_the_same(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    done = run(tmp_path, "worker", "--checkpoint", where, "--skeleton", "tensors", "--once")
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[0]
    assert name != "worker"
    assert {line.split()[2] for line in done.stderr.splitlines()} == {name}


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 0.6, 0.9, 1.2, 1.6, 2.0])
def test_a_signal_at_any_time_ends_a_worker_quietly(seconds: float, tmp_path: Path, write_checkpoint: Write) -> None:
    """With 0, or killed by the signal as any process where nothing was set up yet (143 in a shell)."""
    where = str(write_checkpoint(tmp_path / "m"))
    process = subprocess.Popen(
        command("worker", "--checkpoint", where, "--skeleton", "tensors"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    time.sleep(seconds)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), err
    assert "Traceback" not in err
    assert "gone" in out or process.returncode != 0


@pytest.mark.parametrize("between", [0.0, 0.01, 0.1])
def test_two_signals_end_a_worker_quietly(between: float, tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    with serving(tmp_path, where) as process:
        for _ in range(2):
            process.terminate()
            time.sleep(between)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=30) in (0, -signal.SIGTERM)
    assert "Traceback" not in said


async def test_a_bug_is_shown_without_groups_around_it(tmp_path: Path, write_checkpoint: Write) -> None:
    async def bug(replica: Replica) -> None:
        raise ExceptionGroup("tasks", [ZeroDivisionError("a bug")])

    asked = Asked(str(write_checkpoint(tmp_path / "m")), skeleton="tensors", json=True)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await serve(asked, Settings(redis="none"), bug)


def test_a_second_worker_pulls_from_the_first(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    first = subprocess.Popen(
        command("worker", "--checkpoint", where, "--skeleton", "tensors", "--name", "w1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(tmp_path),
    )
    try:
        assert first.stdout is not None
        first.stdout.readline()
        done = run(tmp_path, "worker", "--checkpoint", where, "--skeleton", "tensors", "--name", "w2", "--once")
        assert done.returncode == 0
        assert done.stdout.startswith("w2 serves m@")
        assert "from w1 at" in done.stdout
        assert "verified against published truth" in done.stdout
    finally:
        first.terminate()
        first.communicate(timeout=30)


class _Collector(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def test_traces_go_to_the_endpoint_that_the_environment_names(tmp_path: Path, write_checkpoint: Write) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    where = str(write_checkpoint(tmp_path / "m"))
    with HTTPServer(("127.0.0.1", 0), _Collector) as collector:
        collector.bodies = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        done = run(
            tmp_path,
            *("worker", "--checkpoint", where, "--skeleton", "tensors", "--once"),
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        )
        collector.shutdown()
        thread.join()
        bodies = collector.bodies  # type: ignore[attr-defined]
    assert done.returncode == 0, done.stderr
    names: list[str] = []
    assert {path for path, _ in bodies} == {"/v1/traces", "/v1/metrics"}
    told = [ExportMetricsServiceRequest.FromString(body) for path, body in bodies if path == "/v1/metrics"]
    scopes = [scope for each in told for group in each.resource_metrics for scope in group.scope_metrics]
    assert "coldstart.start.duration" in {metric.name for scope in scopes for metric in scope.metrics}
    for body in (body for path, body in bodies if path == "/v1/traces"):
        request = ExportTraceServiceRequest.FromString(body)
        names += [span.name for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    assert {"coldstart", "coldstart.build", "coldstart.fallback", "coldstart.verify"} <= set(names)


def test_an_endpoint_that_is_down_costs_one_line(tmp_path: Path, write_checkpoint: Write) -> None:
    where = str(write_checkpoint(tmp_path / "m"))
    began = time.monotonic()
    done = run(
        tmp_path,
        *("worker", "--checkpoint", where, "--skeleton", "tensors", "--once"),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
    )
    assert done.returncode == 0
    assert time.monotonic() - began < 40
    assert "Traceback" not in done.stderr
    assert done.stderr.count("traces are not exported") == 1
