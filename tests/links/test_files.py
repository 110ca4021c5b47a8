"""Rates on disk: what is written is read, and nothing that is wrong with a directory is more than one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path as File

import pytest

from coldstart.links import files
from coldstart.links.rates import WEEK, Path, Rate

PATH = Path("here", "cuda:0", "10.0.0.7", "cuda:1", "transfer-engine", "rdma")
RATE = Rate(4.5e10, "probe", 1_700_000_000.0)


@pytest.fixture
def directory(tmp_path: File) -> File:
    return tmp_path / "cache" / "links"


def load(directory: File) -> tuple[dict[Path, Rate], list[str]]:
    said: list[str] = []
    return dict(files.load(directory, said.append)), said


def only(directory: File) -> File:
    (file,) = directory.iterdir()
    return file


def test_what_is_saved_is_loaded(directory: File) -> None:
    assert load(directory) == ({}, [])
    other = Path("here", "cuda:0", "10.0.0.8", "cpu", "tcp")
    files.save(directory, PATH, Rate(1.0, "transfer", 1.0))
    files.save(directory, PATH, RATE)
    files.save(directory, other, RATE)
    assert load(directory) == ({PATH: RATE, other: RATE}, [])
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.suffix for file in directory.iterdir()} == {".json"}


def change(file: File, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


HARM: dict[str, Callable[[File], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "noise": lambda file: file.write_bytes(os.urandom(200)),
    "deep": lambda file: file.write_bytes(b"[" * 4000),
    "another shape": lambda file: file.write_text("[1, 2]"),
    "not text": lambda file: file.write_bytes(file.read_bytes().replace(b"here", b"\xff\xfe\xff\xfe")),
    "huge": lambda file: file.write_bytes(file.read_bytes() + b" " * files.MAX_BYTES),
    "another version": lambda file: change(file, version=2),
    "more fields": lambda file: change(file, more=1),
    "no rate": lambda file: change(file, bytes_per_second=0),
    "a rate below nothing": lambda file: change(file, bytes_per_second=-1e9),
    "a rate beyond everything": lambda file: change(file, bytes_per_second=1e300),
    "no origin": lambda file: change(file, origin="none"),
    "open to others": lambda file: file.chmod(0o666),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a link": lambda file: (file.rename(file.with_suffix(".real")), file.symlink_to(file.with_suffix(".real"))),
    "a link to itself": lambda file: (file.unlink(), file.symlink_to(file)),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_a_damaged_file_is_one_line_and_hides_no_other(directory: File, harm: Callable[[File], object]) -> None:
    files.save(directory, PATH, RATE)
    harm(only(directory))
    other = Path("here", "cpu", "10.0.0.8", "cpu", "tcp")
    files.save(directory, other, RATE)
    found, said = load(directory)
    assert found == {other: RATE}
    assert len(said) == 1
    assert str(directory) in said[0]


def test_a_damaged_file_is_written_anew(directory: File) -> None:
    files.save(directory, PATH, RATE)
    only(directory).write_bytes(b"{")
    files.save(directory, PATH, RATE)
    assert load(directory) == ({PATH: RATE}, [])


def test_a_file_under_anothers_name_is_not_believed(directory: File) -> None:
    files.save(directory, PATH, RATE)
    only(directory).rename(directory / "copied.json")
    assert load(directory)[0] == {}


@pytest.mark.parametrize("which", ["directory", "file"])
def test_what_belongs_to_another_user_is_neither_read_nor_written(
    directory: File, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    files.save(directory, PATH, RATE)
    owner = os.stat(directory).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if which == "file":
        checked: list[File] = []
        check = files._check
        monkeypatch.setattr(
            files, "_check", lambda facts, file: checked.append(file) if file == directory else check(facts, file)
        )
    else:
        with pytest.raises(files.Trouble, match="another user"):
            files.save(directory, PATH, RATE)
    found, said = load(directory)
    assert found == {}
    assert len(said) == 1
    assert "belongs to another user" in said[0]


def test_a_directory_that_others_may_write_to_is_not_used(directory: File) -> None:
    files.save(directory, PATH, RATE)
    directory.chmod(0o777)
    found, said = load(directory)
    assert (found, len(said)) == ({}, 1)
    assert f"chmod go-w {directory}" in said[0]
    with pytest.raises(files.Trouble):
        files.save(directory, PATH, RATE)


def test_a_directory_that_cannot_be_is_an_error_of_writing_and_no_more(tmp_path: File) -> None:
    (tmp_path / "cache").write_text("a file")
    directory = tmp_path / "cache" / "links"
    found, said = load(directory)
    assert (found, len(said)) == ({}, 1)
    with pytest.raises(OSError, match=r"."):
        files.save(directory, PATH, RATE)


WRITER = """
import sys
from pathlib import Path as File
from coldstart.links import files
from coldstart.links.rates import Path, Rate
directory, number, said = File(sys.argv[1]), int(sys.argv[2]), []
for turn in range(60):
    for device in ("cpu", f"cuda:{number}"):
        files.save(directory, Path("here", device, "there", "cpu", "tcp"), Rate(1e9 + number, "probe", float(turn)))
    assert len(files.load(directory, said.append)) >= 2
assert not said, said
"""


@pytest.mark.processes
def test_many_processes_write_and_read_at_once(directory: File) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(directory), str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        assert writer.communicate(timeout=40)[1] == ""
        assert writer.returncode == 0
    found, said = load(directory)
    assert said == []
    assert {path.device for path in found} == {"cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:3"}
    assert {rate.at for rate in found.values()} == {59.0}
    assert {file.suffix for file in directory.iterdir()} == {".json"}


def test_what_is_old_is_tidied_up(directory: File) -> None:
    files.save(directory, PATH, RATE)
    old, unfinished, foreign = (directory / name for name in ("old.json", "0f.part", "notes.txt"))
    for file in (old, unfinished, foreign):
        file.write_text("x")
        os.utime(file, (0, time.time() - WEEK - 60))
    files.tidy(directory)
    assert not old.exists()
    assert not unfinished.exists()
    assert foreign.exists(), "it is not ours"
    assert load(directory)[0] == {PATH: RATE}
    files.tidy(directory / "missing")
