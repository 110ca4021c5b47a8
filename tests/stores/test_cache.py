"""The disk cache: what it keeps, what it believes, what goes when there is no room, and two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from coldstart.errors import CheckpointError
from coldstart.shelves import cache as module
from coldstart.shelves.bucket import Stored
from coldstart.shelves.cache import DiskCache
from coldstart.shelves.extents import covers, missing, union

SIZE = 1 << 20
ROOM = SIZE + 64 * 1024
"""What one object takes, and the file system's own blocks."""


def stored(name: str, size: int = SIZE) -> Stored:
    return Stored(name, size, f'"{name}"', name)


def keep(cache: DiskCache, name: str) -> None:
    with cache.using("s3://b", stored(name)) as file:
        file.write(0, memoryview(name.encode() * SIZE))
        file.keep()


def kept(cache: DiskCache, name: str) -> bool:
    """Whether all of it is there; not a use of it."""
    with cache.using("s3://b", stored(name)) as file:
        return file.has(0, SIZE)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use is later than the one before, however coarse the file system's time is."""
    now, utime = iter(range(10**9, 2 * 10**9)), os.utime
    monkeypatch.setattr(module.os, "utime", lambda path: utime(path, ns=(next(now),) * 2))


def test_what_was_kept_is_there_and_nothing_else(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * SIZE)
    with cache.using("s3://b", stored("a")) as file:
        file.write(100, memoryview(b"xyz"))
        file.keep()
    with cache.using("s3://b", stored("a")) as file:
        assert (file.has(100, 103), file.has(99, 103), file.has(100, 104)) == (True, False, False)
        found = bytearray(2)
        file.read(101, memoryview(found))
        assert found == b"yz"
    with cache.using("s3://b", Stored("a", SIZE, '"new"', "new")) as file:
        assert file.have == ()


def test_what_was_not_made_known_is_not_believed(tmp_path: Path) -> None:
    """As after a crash: bytes may be on the disk or not."""
    cache = DiskCache(tmp_path, 10 * SIZE)
    with cache.using("s3://b", stored("a")) as file:
        file.write(0, memoryview(b"x" * SIZE))
    assert not kept(cache, "a")


@pytest.mark.parametrize("damage", [b"", b"[[0,", b'{"a":1}', b"[[0,99999999999999999999]]", b"\xff"])
def test_a_damaged_record_says_nothing(damage: bytes, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * SIZE)
    keep(cache, "a")
    (record,) = tmp_path.rglob("have")
    record.write_bytes(damage)
    assert not kept(cache, "a")


def test_data_that_was_cut_is_not_believed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * SIZE)
    keep(cache, "a")
    (data,) = tmp_path.rglob("data")
    os.truncate(data, SIZE // 2)
    assert not kept(cache, "a")


def test_the_least_recently_used_goes_first(tmp_path: Path, clock: None) -> None:
    cache = DiskCache(tmp_path, 2 * ROOM)
    for name in ("a", "b"):
        keep(cache, name)
    assert kept(cache, "a")
    keep(cache, "c")
    assert [kept(DiskCache(tmp_path, 100 * SIZE), name) for name in "abc"] == [True, False, True]


def test_what_is_in_use_stays_and_the_rest_is_not_kept(tmp_path: Path, clock: None) -> None:
    cache = DiskCache(tmp_path, 2 * ROOM)
    with ExitStack() as stack:
        for name in ("a", "b"):
            keep(cache, name)
            stack.enter_context(cache.using("s3://b", stored(name)))
        with cache.using("s3://b", stored("c")) as file:
            file.write(0, memoryview(b"c" * SIZE))
            file.keep()
            assert file.have == ()
            file.write(0, memoryview(b"c" * SIZE), must=True)
            assert file.has(0, SIZE)
    assert [kept(DiskCache(tmp_path, 100 * SIZE), name) for name in "ab"] == [True, True]


def test_another_processs_use_counts(tmp_path: Path, clock: None) -> None:
    """One process holds an object, is killed in mid-use, and leaves nothing that keeps it from going."""
    cache = DiskCache(tmp_path, ROOM)
    keep(cache, "a")
    program = (
        "import sys; from pathlib import Path; from coldstart.shelves.cache import DiskCache, Stored\n"
        f"with DiskCache(Path({str(tmp_path)!r}), {ROOM}).using('s3://b', Stored('a', {SIZE}, '\"a\"', 'a')):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        keep(cache, "b")
        assert kept(DiskCache(tmp_path, 100 * SIZE), "a")
        other.kill()
        other.wait()
        keep(cache, "b")
    assert [kept(DiskCache(tmp_path, 100 * SIZE), name) for name in "ab"] == [False, True]


def test_two_who_keep_different_parts_have_both(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * SIZE)
    with cache.using("s3://b", stored("a")) as one, cache.using("s3://b", stored("a")) as other:
        one.write(0, memoryview(b"1" * (SIZE // 2)))
        other.write(SIZE // 2, memoryview(b"2" * (SIZE // 2)))
        one.keep()
        other.keep()
    assert kept(cache, "a")


def test_a_removal_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    (tmp_path / ".gone-1234").mkdir(parents=True)
    (tmp_path / ".gone-1234" / "data").write_bytes(b"x")
    keep(DiskCache(tmp_path, 10 * SIZE), "a")
    assert not (tmp_path / ".gone-1234").exists()


def test_a_full_disk_costs_nothing_but_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with DiskCache(tmp_path, 10 * SIZE).using("s3://b", stored("a")) as file:
        monkeypatch.setattr(module.os, "pwrite", full)
        file.write(0, memoryview(b"x"))
        assert file.have == ()
        with pytest.raises(CheckpointError, match="No space left on device; make room"):
            file.write(0, memoryview(b"x"), must=True)


def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="check COLDSTART_DISK_CACHE"), DiskCache(tmp_path / "file", 1).using(
        "s3://b", stored("a")
    ):
        pass


def test_extents() -> None:
    have = union([(5, 9)], [(1, 3), (3, 4), (7, 12), (20, 20)])
    assert have == ((1, 4), (5, 12))
    assert covers(have, 5, 12)
    assert covers(have, 8, 8)
    assert not covers(have, 3, 6)
    assert list(missing(have, 15, 2)) == [(0, 1), (4, 5), (12, 14), (14, 15)]
    assert list(missing((), 0, 2)) == []
