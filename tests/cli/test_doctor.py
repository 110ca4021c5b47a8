"""``coldstart doctor``: looks at the real thing, says what to do, and never breaks itself."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from typer.testing import CliRunner, Result

from coldstart.bus import acl
from coldstart.cli.checks import loopback, machine
from coldstart.cli.checks.check import Check, blocking, guarded
from coldstart.cli.main import app
from coldstart.config import Settings
from coldstart.errors import IntegrityError, TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits, TransportSettings
from coldstart.replica import join
from coldstart.transports.tcp import FACTORY

Doctor = Callable[..., Result]


@pytest.fixture
def doctor(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """The command in this process, which has imported torch already."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "COLDSTART_REDIS"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, **environment: str) -> Result:
        return CliRunner().invoke(app, ["doctor", *words], env={"COLDSTART_DIRECTORY": str(directory), **environment})

    return run


def found(result: Result) -> Mapping[str, Check]:
    """The checks of ``--json`` by name."""
    told = json.loads(result.stdout)
    checks = {check["name"]: Check(**check) for check in told["checks"]}
    assert len(told["next"]) == sum(check.status != "ok" for check in checks.values())
    assert len(checks) == len(told["checks"]), "a name stands for two checks"
    failed = [check for check in checks.values() if check.status == "fail"]
    assert told["ok"] is (not failed)
    assert result.exit_code == (1 if failed else 0)
    assert all(check.advice for check in checks.values() if check.status != "ok")
    assert not any("\n" in check.finding + check.advice for check in checks.values())
    return checks


# ------------------------------------------------------------------------------- another process


@pytest.mark.processes
def test_a_healthy_machine_in_a_pipe(coldstart: Any, directory: Path) -> None:
    began = time.monotonic()
    done = coldstart("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    if lines[-1].startswith("next: "):
        assert sum("warn" in line[:6] for line in lines) > 0
        lines.pop()
    assert {line[:6].strip() for line in lines[:-1]} <= {"ok", "warn", ""}
    assert any(line.startswith("ok    loopback tcp ") and "67.1 MB verified at" in line for line in lines)
    assert any(line.startswith("ok    store ") and "the embedded store answers: Valkey" in line for line in lines)
    assert lines[-1].endswith("no failures")


@pytest.mark.processes
def test_a_terminal_gets_colours_and_a_broken_plugin_is_a_warning(coldstart: Any, broken_plugin: str) -> None:
    done = coldstart("doctor", PYTHONPATH=broken_plugin, FORCE_COLOR="1")
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "\x1b[33mwarn" in done.stdout
    assert "cannot open [shared] object file" in done.stdout
    assert "checking " in done.stderr
    assert "checking " not in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("url", ["http://example.org", "redis://:p@ss@word@[::1"])
def test_a_malformed_url_is_a_failed_check(coldstart: Any, url: str) -> None:
    done = coldstart("doctor", "--redis", url)
    assert (done.returncode, done.stderr) == (1, "")
    assert "fail  store " in done.stdout
    assert "-> write redis://" in done.stdout
    assert "p@ss" not in done.stdout


# ------------------------------------------------------------------------------------- the store


def test_json_tells_every_check(doctor: Doctor) -> None:
    checks = found(doctor("--json"))
    assert {"python", "torch", "memory", "shared memory", "open files", "locked memory"} <= checks.keys()
    assert {"store directory", "store", "round trip", "clock", "store memory", "address", "traces"} <= checks.keys()
    assert {"transport tcp", "loopback tcp", "skeleton tensors"} <= checks.keys()
    assert "of 50" in checks["round trip"].finding
    assert "policy noeviction" in checks["store memory"].finding
    assert all(checks[name].status == "ok" for name in ("store", "loopback tcp", "store memory", "clock"))


def test_a_refused_port_and_a_silent_server_fail_in_time(doctor: Doctor, refused: str, silent: str) -> None:
    for url in (refused, silent):
        began = time.monotonic()
        result = doctor("--json", "--redis", url)
        checks = found(result)
        assert time.monotonic() - began < 10
        assert (checks["store"].status, result.stderr) == ("fail", "")
        assert url in checks["store"].finding
        assert "reads storage" in checks["store"].advice
        assert "round trip" not in checks
        assert checks["loopback tcp"].status == "ok"


def test_without_coordination_it_warns(doctor: Doctor) -> None:
    assert found(doctor("--json", "--redis", "none"))["store"].status == "warn"


def test_a_store_that_forgets_or_hides_is_a_warning(doctor: Doctor, store: str) -> None:
    with redis.Redis(unix_socket_path=store.removeprefix("unix://")) as client:
        client.config_set("maxmemory", 64 << 20)
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.acl_setuser("shy", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=["-info"])
    forgets = found(doctor("--json", "--redis", store))["store memory"]
    assert (forgets.status, "allkeys-lru" in forgets.finding) == ("warn", True)
    assert "noeviction" in forgets.advice

    checks = found(doctor("--json", "--redis", f"{store}?username=shy&password=pw"))
    assert checks["store"].status == "warn"
    assert "does not describe itself" in checks["store"].finding
    assert checks["round trip"].status == "ok"
    assert "clock" not in checks


def test_what_this_user_may_not_do_is_named(doctor: Doctor, store: str) -> None:
    assert "letters, truths" in found(doctor("--json", "--redis", store))["permissions"].finding
    with redis.Redis(unix_socket_path=store.removeprefix("unix://")) as client:
        commands = ["-xread"]
        client.acl_setuser("deaf", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=commands)
        client.acl_setuser("else", enabled=True, passwords=["+pw"], keys=["other:*"], categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "least", "on", ">pw", *acl.rule("cs"), "+info")
    least = found(doctor("--json", "--redis", f"{store}?username=least&password=pw"))["permissions"]
    assert least.status == "ok", least
    deaf = found(doctor("--json", "--redis", f"{store}?username=deaf&password=pw"))["permissions"]
    assert (deaf.status, deaf.finding.split(":")[0]) == ("fail", "the store refuses letters")
    result = doctor("--json", "--redis", f"{store}?username=else&password=pw")
    assert found(result)["store"].status == "fail"
    assert "denies this user" in found(result)["store"].finding


def test_a_cache_that_cannot_be_written_and_a_port_that_is_taken(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        more = {"COLDSTART_METRICS_PORT": port, "COLDSTART_METRICS_HOST": "127.0.0.1", "COLDSTART_CACHE": str(file)}
        checks = found(doctor("--json", "--redis", "none", **more))
    assert (checks["cache"].status, checks["metrics"].status) == ("warn", "warn")
    assert "no leave to write" in checks["cache"].finding
    assert port in checks["metrics"].finding


def test_a_directory_open_to_others_fails(doctor: Doctor, directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    checks = found(doctor("--json"))
    assert checks["store directory"].status == checks["store"].status == "fail"
    assert f"chmod 700 {directory}" in checks["store directory"].advice


# ------------------------------------------------------------------------ settings and the network


def test_a_bad_setting_is_a_failed_check_that_names_the_variable(doctor: Doctor) -> None:
    checks = found(doctor("--json", COLDSTART_SLOTS="many"))
    assert checks["settings"].status == "fail"
    assert "COLDSTART_SLOTS" in checks["settings"].finding
    assert checks["torch"].status == "ok"
    assert "store" not in checks


def test_an_address_of_another_machine_fails(doctor: Doctor) -> None:
    checks = found(doctor("--json", COLDSTART_HOST="203.0.113.1"))
    assert checks["address"].status == checks["loopback tcp"].status == "fail"
    assert "COLDSTART_HOST" in checks["address"].advice


def test_an_address_that_says_nothing_fails(doctor: Doctor) -> None:
    checks = found(doctor("--json", COLDSTART_HOST="0.0.0.0"))
    assert checks["address"].status == checks["loopback tcp"].status == "fail"


def test_a_transport_asked_for_and_not_installed_fails(doctor: Doctor) -> None:
    checks = found(doctor("--json", COLDSTART_TRANSPORTS="warp,tcp"))
    assert checks["transport warp"].status == "fail"
    assert "tcp" in checks["transport warp"].advice
    assert checks["loopback tcp"].status == "ok"


def test_the_endpoint_of_traces_is_tried(doctor: Doctor, refused: str, silent: str) -> None:
    port = refused.rpartition(":")[2]
    checks = found(doctor("--json", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}"))
    assert (checks["traces"].status, f"127.0.0.1:{port}" in checks["traces"].finding) == ("warn", True)
    port = silent.rpartition(":")[2]
    checks = found(doctor("--json", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}"))
    assert checks["traces"].status == "ok"


@pytest.mark.processes
def test_directories_that_cannot_be_looked_at_are_no_broken_checks(coldstart: Any, tmp_path: Path) -> None:
    """A name that is too long fails as one does that may not be searched, for root, too."""
    unseen = str(tmp_path / ("x" * 300))
    homes = {"COLDSTART_CONFIG": "", "XDG_CONFIG_HOME": unseen, "XDG_CACHE_HOME": unseen}
    done = coldstart("doctor", COLDSTART_DIRECTORY=unseen, **homes)
    assert (done.returncode, done.stderr) == (1, "")
    assert "the check broke" not in done.stdout
    assert "ok    cache " in done.stdout
    assert "socket path" in done.stdout, "of the store, which says what is wrong by itself"


def test_low_limits_are_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 512))
    (files,) = machine.open_files()
    assert (files.status, "its hard limit" in files.advice) == ("warn", True)
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 4096))
    (tmp_path / "mlx5_0").touch()
    monkeypatch.setattr(machine, "_INFINIBAND", tmp_path)
    (files,), (locked,) = machine.open_files(), machine.locked_memory()
    assert (files.status, files.advice) == ("warn", "raise it with: ulimit -n 4096")
    assert (locked.status, "memlock" in locked.advice) == ("warn", True)


# --------------------------------------------------------------------------------------- its links


def test_every_path_is_told_and_a_damaged_cache_is_one_warning(doctor: Doctor, cache: Path) -> None:
    checks = found(doctor("--json"))
    assert {"rdma", "network cards", "path tcp"} <= checks.keys()
    assert "not measured" in checks["path tcp"].finding
    assert "--links PEER" in checks["path tcp"].advice
    assert "link rates" not in checks
    cache.mkdir(parents=True, mode=0o700)
    for name in ("a.json", "b.json"):
        (cache / name).write_text("{")
    damaged = found(doctor("--json"))["link rates"]
    assert damaged.status == "warn"
    assert "a.json" in damaged.finding
    assert damaged.finding.endswith("and 1 more")


@pytest.mark.processes
async def test_the_links_to_a_peer_are_measured_and_remembered(
    coldstart: Any, directory: Path, tmp_path: Path, write_checkpoint: Callable[..., Path], cache: Path
) -> None:
    settings = Settings(directory=str(directory))
    async with join(write_checkpoint(tmp_path / "m"), skeleton="tensors", worker="a", settings=settings) as replica:
        for wanted in ("a", "127.0.0.1"):
            done = await coldstart.beside("doctor", "--json", "--links", wanted)
            checks = {check["name"]: Check(**check) for check in json.loads(done.stdout)["checks"]}
            assert checks["link tcp from a"].status == "ok", checks["link tcp from a"]
            assert "/s to cpu" in checks["link tcp from a"].finding
            assert "(probe, " in checks["path tcp"].finding
        with anyio.fail_after(10):
            while replica.lending:  # noqa: ASYNC110 - the end of a grant is the source's own business
                await anyio.sleep(0.01)
        kept = sorted("storage" in file.read_text() for file in cache.iterdir())  # noqa: ASYNC240
        assert kept == [False, True], "one link, and the storage that worker a read"
        async with join(tmp_path / "m", skeleton="tensors", worker="b", settings=settings) as other:
            assert other.report.path == "peer"
            assert other.report.link_gbps > 0
            assert other.report.link_age > 0 or other.report.link_from == "transfer"


@pytest.mark.processes
async def test_a_peer_that_cannot_be_measured_is_a_failed_check(
    coldstart: Any, directory: Path, tmp_path: Path, write_checkpoint: Callable[..., Path]
) -> None:
    settings = Settings(directory=str(directory), slots=1)
    async with join(write_checkpoint(tmp_path / "m"), skeleton="tensors", worker="a", settings=settings) as replica:
        replica._wired.node.withhold()
        for wanted, name, said in (("nobody", "links to nobody", "no worker"), ("a", "links to a", "no worker")):
            done = await coldstart.beside("doctor", "--json", "--links", wanted)
            assert done.returncode == 1
            checks = {check["name"]: Check(**check) for check in json.loads(done.stdout)["checks"]}
            assert (checks[name].status, said in checks[name].finding) == ("fail", True)


# ------------------------------------------------------------------------------- checks that break


async def test_a_check_that_breaks_or_hangs_is_a_failed_check() -> None:
    def breaks() -> Sequence[Check]:
        raise RuntimeError("driver\nversion 3")

    never = threading.Event()

    def hangs() -> Sequence[Check]:
        never.wait(30)
        return []

    (broken,) = await guarded("gpu", blocking(breaks))
    assert (broken.name, broken.status) == ("gpu", "fail")
    assert broken.finding == "the check broke: RuntimeError: driver version 3"
    with anyio.fail_after(5):
        (hung,) = await guarded("gpu", blocking(hangs), 0.05)
    assert hung.finding == "did not end within 0.05 s"
    never.set()


@pytest.mark.processes
def test_a_hanging_plugin_does_not_keep_the_process(coldstart: Any, tmp_path: Path) -> None:
    info = tmp_path / "stuck-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[coldstart.transports]\nstuck = stuck:FACTORY\n")
    (tmp_path / "stuck.py").write_text("import threading\nthreading.Event().wait()\n")
    done = coldstart("doctor", "--json", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "transports"]
    assert check["finding"] == "did not end within 8 s"


class Careless:
    """A transport that says all is well, whatever its tcp did to the bytes."""

    name = "careless"
    traits: Traits = FACTORY.open(TransportSettings()).traits

    def __init__(self, harm: Callable[[Memory], None] | None = None, *, moves: bool = True, tells: bool = True) -> None:
        self._inner = FACTORY.open(TransportSettings())
        self._harm, self._moves, self._tells = harm, moves, tells

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        return await self._inner.offer(grant, memory)

    async def revoke(self, transfer: str) -> None:
        await self._inner.revoke(transfer)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        if self._moves:
            await self._inner.pull(ticket, spans, into, lambda span: None)
        for span in spans if self._tells else spans[1:]:
            landed(span)
        if self._harm is not None:
            self._harm(into)

    async def aclose(self) -> None:
        await self._inner.aclose()


def flip_a_bit(memory: Memory) -> None:
    with memory.writing(Span(1_500_000, 1)) as views:
        views[0][0] ^= 1


async def test_the_loopback_believes_digests_and_not_transports() -> None:
    size = 2 * loopback.MIB
    fine = Careless()
    assert await loopback.transfer(fine, "cpu", "cpu", size) > 0
    await fine.aclose()
    for careless, error, said in (
        (Careless(flip_a_bit), IntegrityError, "1 of 2 chunks arrived damaged, the first at byte 1048576"),
        (Careless(moves=False), IntegrityError, "2 of 2 chunks"),
        (Careless(tells=False), TransportError, "said nothing of 1048576 bytes"),
    ):
        with pytest.raises(error, match=said):
            await loopback.transfer(careless, "cpu", "cpu", size)
        await careless.aclose()


def test_the_refused_port_is_really_free(refused: str) -> None:
    """What the tests above rely on."""
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(refused.rpartition(":")[2])))
