"""``coldstart config``: what holds and where it comes from, as operators meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coldstart import config
from tests.cli.conftest import CommandLine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "coldstart.toml"
    path.write_text('redis = "redis://ann:s3cret@store"\nslots = 4\n')
    return path


def test_each_value_has_its_origin(coldstart: CommandLine, file: Path) -> None:
    done = coldstart("config", "lease=7", COLDSTART_CONFIG=str(file), COLDSTART_HOST="10.0.0.1", COLDSTART_SLOT="1")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert set(config.declared()) <= set(rows)
    assert rows["redis"] == ["redis://ann:***@store", f"{file}:1"]
    assert rows["slots"] == ["4", f"{file}:2"]
    assert rows["host"] == ["10.0.0.1", "COLDSTART_HOST"]
    assert rows["lease"] == ["7", "s", "argument", "lease"]
    assert rows["patience"] == ["5", "s", "default"]
    assert "COLDSTART_SLOT is no setting; did you mean COLDSTART_SLOTS?" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr


def test_json_tells_the_same(coldstart: CommandLine, file: Path, directory: Path) -> None:
    done = coldstart("config", "--json", COLDSTART_CONFIG=str(file), COLDSTART_NCCL_CTAS="1")
    told = json.loads(done.stdout)
    rows = {row["name"]: row for row in told["settings"]}
    assert (told["file"], told["others"]) == (str(file), ["COLDSTART_NCCL_CTAS"])
    assert set(rows) == set(config.declared())
    assert (rows["slots"]["value"], rows["slots"]["origin"], rows["slots"]["where"]) == (4, "file", f"{file}:2")
    assert rows["directory"]["value"] == str(directory)
    assert rows["patience"]["why"]
    assert "s3cret" not in done.stdout


@pytest.mark.parametrize("name", ["lend_gbps", "COLDSTART_LEND_GBPS", "lend-gbps"])
def test_a_setting_is_explained(coldstart: CommandLine, name: str) -> None:
    done = coldstart("config", "--explain", name)
    each = config.declared()["lend_gbps"]
    for words in (each.setting.about, each.setting.why, "COLDSTART_LEND_GBPS", "0 GB/s", "from 0 to 10000"):
        assert words in done.stdout


def test_the_template_can_be_read_back(coldstart: CommandLine, tmp_path: Path) -> None:
    done = coldstart("config", "--template")
    (tmp_path / "new.toml").write_text(done.stdout)
    assert coldstart("config", COLDSTART_CONFIG=str(tmp_path / "new.toml")).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slots",), "is not NAME=VALUE"),
        (("slots=many",), "slots is 'many'"),
        (("slot=1",), "did you mean slots?"),
        (("--explain", "patienc"), "did you mean patience?"),
        (("--explain", "zebra"), "there is no setting 'zebra'"),
    ],
)
def test_a_mistake_is_one_line(coldstart: CommandLine, words: tuple[str, ...], said: str) -> None:
    done = coldstart("config", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bad_file_stops_every_command_that_reads_settings(coldstart: CommandLine, file: Path) -> None:
    file.write_text("slots = 0\n")
    for command in (("config",), ("peers",), ("worker", "--checkpoint", str(file))):
        done = coldstart(*command, COLDSTART_CONFIG=str(file))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"slots in {file}:1 is 0" in done.stderr


def test_commands_go_by_the_file(coldstart: CommandLine, file: Path, refused: str) -> None:
    file.write_text(f'redis = "{refused}"\n')
    done = coldstart("peers", COLDSTART_CONFIG=str(file))
    assert done.returncode == 7
    assert refused.removeprefix("redis://") in done.stderr
