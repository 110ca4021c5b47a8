"""Checkpoints removed, cut short, changed and unreadable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.case import Case
from rig.fleet import SLOW, Fleet

from coldstart.checkpoint import read_checkpoint
from coldstart.errors import ColdStartFailed, TruthConflict

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

ANSWER = 2.0
READ = 0.5
STALL = 2.0
QUIET = 5.0
CLOSE = 7.0
"""What the end of a worker may take whose reader does not come back."""
FAILED, CONFLICT = ColdStartFailed.exit_code, TruthConflict.exit_code

Damage = Callable[[Path], None]


def _second(checkpoint: Path) -> Path:
    return checkpoint / "model-00002-of-00002.safetensors"


def remove(checkpoint: Path) -> None:
    _second(checkpoint).unlink()


def truncate(checkpoint: Path) -> None:
    os.truncate(_second(checkpoint), _second(checkpoint).stat().st_size // 2)


def replace_by_shorter(checkpoint: Path) -> None:
    shorter = checkpoint / "new"
    shorter.write_bytes(_second(checkpoint).read_bytes()[:-4096])
    shorter.replace(_second(checkpoint))


def flip(name: str, *, hidden: bool = False) -> Damage:
    """Turn the first bit of a tensor; ``hidden``: the time of the last write is set back."""

    def damage(checkpoint: Path) -> None:
        stored = read_checkpoint(checkpoint).tensors[name]
        before = stored.file.stat()
        with stored.file.open("r+b") as file:
            file.seek(stored.offset)
            byte = file.read(1)
            file.seek(stored.offset)
            file.write(bytes([byte[0] ^ 1]))
        if hidden:
            os.utime(stored.file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return damage


@pytest.mark.parametrize(
    ("damage", "code", "reason"),
    [
        pytest.param(remove, FAILED, "No such file", id="removed"),
        pytest.param(truncate, FAILED, "after its header was read", id="truncated"),
        pytest.param(replace_by_shorter, FAILED, "after its header was read", id="replaced"),
        pytest.param(flip("layer.2.weight", hidden=True), CONFLICT, "differs from the published truth", id="bit"),
    ],
)
@fault("a file", "HANDSHAKE, before FALLBACK", "exit code 9, the file named; 8 for a bit", ANSWER + READ)
async def test_files_damaged_before_the_fallback(
    damage: Damage, code: int, reason: str, workers: Fleet, case: Case
) -> None:
    source = await workers.serving("source")
    source.stop()
    copy = workers.damageable()
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    damage(copy)
    with case.clock():
        ended, error = await joiner.failed()
    assert ended == code
    assert reason in error
    assert code == CONFLICT or _second(copy).name in error
    source.resume()
    await workers.check(source)


@fault("one bit of a file", "TRANSFER, where the peer has sent", "it serves: only what is missing is read", READ)
async def test_files_damaged_where_nothing_is_missing(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW)
    copy = workers.damageable()
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=6 << 20)
    flip("layer.1.weight", hidden=True)(copy)
    source.kill()
    with case.clock():
        report = await joiner.serving()
    assert report.path == "mixed"
    assert report.bytes_peer >= before.bytes_verified
    await workers.check(joiner)


@pytest.mark.parametrize("damage", [remove, truncate, flip("layer.1.weight")], ids=["removed", "truncated", "one bit"])
@fault("a file", "TRANSFER, and the peer sends all", "no effect", 3.2)
async def test_files_damaged_and_not_needed(damage: Damage, workers: Fleet, case: Case) -> None:
    await workers.serving("source", lend_gbps=SLOW)
    copy = workers.damageable()
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER")
    damage(copy)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources) == ("peer", ("source",))
    await workers.check(joiner)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        pytest.param("DISCOVER", "was written to after its header was read", id="before it is opened"),
        pytest.param("FALLBACK", "changed while it was read", id="meanwhile"),
    ],
)
@fault("a file is written to", "DISCOVER or FALLBACK", "exit code 9, the file named", READ)
async def test_a_file_that_changes(where: str, reason: str, workers: Fleet, case: Case) -> None:
    """Nobody knows the truth yet: what stands in the file would become it."""
    copy = workers.damageable()
    if where == "DISCOVER":
        workers.store.stop()
        loader = await workers.start("loader")
        await loader.reached("DISCOVER")
    else:
        loader = await workers.start("loader", disk="hold:1")
        await workers.stuck("loader")
    flip("layer.2.bias")(copy)
    if where == "DISCOVER":
        workers.store.resume()
    else:
        workers.open_gate()
    with case.clock():
        code, error = await loader.failed()
    assert code == FAILED
    assert f"{_second(copy)} {reason}" in error


@fault("EIO", "FALLBACK", "exit code 9, file and offset named; the waiting worker reads", 1.5)
async def test_a_disk_that_fails_under_the_loader(workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", disk="hold:1,eio:2")
    await workers.stuck("loader")
    joiner = await workers.start("joiner")
    await joiner.begun()
    workers.open_gate()
    with case.clock():
        code, error = await loader.failed()
        report = await joiner.serving()
    assert code == FAILED
    assert "Input/output error" in error
    assert ".safetensors at offset" in error
    assert report.path == "storage"
    await workers.check(joiner)


@fault("EIO, after the source was killed", "TRANSFER", "exit code 9, file and offset named", READ)
async def test_a_disk_that_fails_under_the_rest(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW)
    joiner = await workers.start("joiner", disk="eio:0")
    await joiner.reached("TRANSFER", nbytes=1)
    source.kill()
    with case.clock():
        code, error = await joiner.failed()
    assert code == FAILED
    assert "Input/output error" in error
    assert "source: " in error, "how it came to read storage at all"


@fault("a read does not return", "FALLBACK", "exit code 9, 'stalled', and the process ends", STALL + QUIET + CLOSE)
async def test_a_disk_that_hangs(workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", disk="stall:1", storage_stall=STALL)
    await workers.stuck("loader")
    with case.clock():
        code, error = await loader.failed()
    assert code == FAILED
    assert "storage read stalled" in error


@fault("a read does not return", "the headers, before DISCOVER", "exit code 9, and the process ends", STALL + CLOSE)
async def test_a_disk_that_hangs_at_once(workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", disk="headers:1", build=STALL)
    await workers.stuck("loader")
    with case.clock():
        code, error = await loader.failed()
    assert code == FAILED
    assert "the skeleton was not built within 2 s" in error


@pytest.mark.parametrize("disk", [pytest.param("stall:1", id="weights"), pytest.param("headers:1", id="headers")])
@fault("a read does not return, SIGTERM", "FALLBACK or before", "exit code 0, as told", CLOSE)
async def test_a_worker_told_to_end_on_a_disk_that_hangs(disk: str, workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", disk=disk)
    await workers.stuck("loader")
    loader.signal(signal.SIGTERM)
    with case.clock():
        assert await loader.ended() == 0
