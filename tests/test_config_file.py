"""The file of settings: where it is, what it beats, and that a mistake in it is one line with the place to look at."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from coldstart import config
from coldstart.config import Origin, Settings, files, places
from coldstart.config.names import misspelt, nearest
from coldstart.config.showing import shown, template
from coldstart.errors import ConfigError


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory of settings; that of the machine is beside it."""
    monkeypatch.delenv(config.FILE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(places, "SYSTEM", tmp_path / "etc" / "config.toml")
    return tmp_path / "home" / "coldstart"


def test_arguments_beat_the_environment_beats_the_file_beats_the_defaults(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", "# ours\nslots = 3\nhost = 'h'\n\nlease = 7\n'patience' = 1.5\n")
    environment = {config.FILE: str(file), "COLDSTART_HOST": "e", "COLDSTART_LEASE": "8"}
    found = config.resolve({"lease": 9}, environment)
    assert found.settings == Settings(slots=3, host="e", lease=9.0, patience=1.5)
    assert found.file == file
    assert found.origins["slots"] == Origin("file", f"{file}:2")
    assert found.origins["patience"] == Origin("file", f"{file}:6")
    assert found.origins["host"] == Origin("environment", "COLDSTART_HOST")
    assert found.origins["lease"] == Origin("argument", "lease")
    assert found.origins["drain"] == Origin()


def test_the_users_file_is_read_before_the_machines(home: Path) -> None:
    assert config.resolve().file is None
    system = written(places.SYSTEM, "slots = 3\nshare = 4\n")
    assert config.resolve().file == system
    written(home / "config.toml", "slots = 5\n")
    assert config.load() == Settings(slots=5)


def test_a_named_file_is_read_instead_and_none_is_none(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / "config.toml", "slots = 5\n")
    file = written(tmp_path / "mine.toml", "slots = 6\n")
    monkeypatch.setenv(config.FILE, str(file))
    assert config.load().slots == 6
    assert config.load(file=written(tmp_path / "other.toml", "slots = 7\n")).slots == 7
    monkeypatch.setenv(config.FILE, "none")
    assert config.load() == Settings()
    monkeypatch.setenv(config.FILE, "")
    assert config.load().slots == 5
    assert config.load(environ={}) == Settings(), "with another environment, only what that one names"


def test_children_get_the_settings_that_they_are_given_and_no_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / "config.toml", "slots = 5\n")
    monkeypatch.setenv("COLDSTART_LEASE", "9")
    monkeypatch.setenv("COLDSTART_HOST", "h")
    child = config.environment(kept=("lease",))
    assert config.load(environ=child) == Settings(lease=9.0)
    assert child[config.FILE] == files.NONE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nslots = 'many'", ":2 is 'many'; use a whole number from 1 to 1024"),
        ("slots = '4'", ":1 is '4'"),
        ("slots = 0", ":1 is 0"),
        ("slots = 1.5", ":1 is 1.5"),
        ("slots = true", ":1 is True"),
        ("lease = nan", ":1 is nan"),
        ("lease = [6]", ":1 is [6]"),
        ("host = 10", ":1 is 10; use text"),
        ("slot = 4", "slot in {file}:1 is unknown; did you mean slots?"),
        ("zebra = 4", "'coldstart config' lists all settings"),
        ("[coldstart]\nslots = 4", "coldstart in {file}:1 is a table"),
        ("slots = 4\nslots = 5", "is not TOML"),
        ("slots: 4", "is not TOML"),
        ("\ud800", "is not UTF-8"),
        (" " * (files.MAX_BYTES + 1), "has more than"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        config.load(environ={config.FILE: str(file)})
    assert words.replace("{file}", str(file)) in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "gone.toml", "there is no file of settings"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigError, match=words) as caught:
            config.load(file=path)
        assert str(path) in str(caught.value)


def test_the_template_is_a_file_of_all_defaults(tmp_path: Path) -> None:
    assert config.load(file=written(tmp_path / "as-it-is.toml", template())) == Settings()
    names = tuple(f"# {name} = " for name in config.declared())
    chosen = [line.removeprefix("# ") for line in template().splitlines() if line.startswith(names)]
    found = config.resolve(environ={}, file=written(tmp_path / "chosen.toml", "\n".join(chosen)))
    assert found.settings == Settings()
    assert {origin.kind for origin in found.origins.values()} == {"file"}
    assert max(map(len, template().splitlines())) <= 120


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("slot", "slots"),
        ("SLOTS", "slots"),
        ("lend-gbps", "lend_gbps"),
        ("redis_url", "redis"),
        ("floor", "floor_gbps"),
        ("pateince", "patience"),
        ("nccl_ctas", ""),
        ("something_else", ""),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(name: str, meant: str) -> None:
    assert nearest(name, config.declared()) == meant


def test_no_setting_is_taken_for_a_slip() -> None:
    known = tuple(config.declared())
    given = [f"COLDSTART_{name.upper()}" for name in known]
    assert misspelt([*given, "COLDSTART_NCCL_CTAS", "SLOT", "COLDSTART_SLOT"], known) == {
        "COLDSTART_SLOT": "COLDSTART_SLOTS"
    }


def test_what_kubernetes_says_of_services_is_no_slip() -> None:
    service = ["COLDSTART_REDIS_SERVICE_HOST", "COLDSTART_REDIS_SERVICE_PORT", "COLDSTART_REDIS_PORT"]
    service += ["COLDSTART_REDIS_PORT_6379_TCP_ADDR", "COLDSTART_SERVICE_HOST", "COLDSTART_PORT"]
    assert misspelt(service, config.declared()) == {}
    assert misspelt([*service, "COLDSTART_REDIS_URL"], config.declared()) == {"COLDSTART_REDIS_URL": "COLDSTART_REDIS"}
    assert set(misspelt(["COLDSTART_REDIS_PORT"], config.declared())) == {"COLDSTART_REDIS_PORT"}


def test_passwords_are_not_shown() -> None:
    redis = config.declared()["redis"]
    for url in ("redis://:s3cret@h/0", "rediss://ann:s3cret@h:1", "redis://ann:s3@cret@h", "unix:///p?password=s3cret"):
        assert "cret" not in shown(redis, url)
    assert shown(redis, "redis://ann:x@h:1/2") == "redis://ann:***@h:1/2"
    assert shown(redis, "unix:///p?db=1") == "unix:///p?db=1"


UNSEEN = "x" * 300
"""A name that is too long fails as a directory does that may not be searched, for root, too."""


def test_places_that_cannot_be_looked_at_hold_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of another user, whose HOME a container may have kept."""
    for variable in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / UNSEEN))
    assert config.load() == Settings()
    assert places.runtime().parent == Path(tempfile.gettempdir())
    assert config.load().embedded_directory == places.runtime()
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        config.load(file=tmp_path / UNSEEN)


def test_a_runtime_directory_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert places.runtime() == tmp_path / "coldstart"
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    assert places.runtime().parent == Path(tempfile.gettempdir())
