"""``coldstart keys`` and what doctor says of protection, as users meet them."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldstart.cli import keys
from coldstart.cli.checks import security
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.keyring import read


@pytest.mark.processes
def test_keys_are_made_changed_and_checked_by_name(coldstart: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "keys")
    made = json.loads(coldstart("keys", "new", path, "--json").stdout)
    assert made["believed"] == [made["signs"]]
    again = coldstart("keys", "new", path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    added = json.loads(coldstart("keys", "rotate", path, "--json").stdout)
    assert (added["signs"], len(added["believed"])) == (made["signs"], 2)
    checked = coldstart("keys", "check", COLDSTART_KEYS=path)
    assert checked.returncode == 0
    secrets = [key.secret.hex() for key in read(Path(path)).signing]
    for done in (checked, again):
        assert not any(secret in done.stdout + done.stderr for secret in secrets)
    nothing = coldstart("keys", "check", str(tmp_path / "none"))
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)


@contextmanager
def no_room() -> Iterator[None]:
    """Every file ends at its first byte, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_no_half_file_of_keys_is_left_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with no_room(), pytest.raises(ConfigError, match="cannot write"):
        keys.new(path, json=True)
    assert list(tmp_path.iterdir()) == []
    keys.new(path, json=True)
    before = path.read_bytes()
    with no_room(), pytest.raises(ConfigError, match="cannot write"):
        keys.rotate(path, json=True)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("keys", before)]


def test_doctor_says_in_a_line_each_what_protects_and_what_does_not(tmp_path: Path) -> None:
    bare = Settings(redis="redis://store")
    (keys,) = security.authentication(bare)
    (digest,) = security.digest(bare)
    (tls,) = security.transport_security(bare)
    assert {each.status for each in (keys, digest, tls)} == {"ok"}
    assert "not authenticated" in keys.finding
    assert "not forgers" in digest.finding
    assert "without TLS" in tls.finding
    wrong = Settings(redis="rediss://store?ssl_cert_reqs=none", keys=str(tmp_path / "none"), digest="blake3")
    assert [check.status for look in (security.authentication, security.digest) for check in look(wrong)] == [
        "fail",
        "fail",
    ]
    assert security.transport_security(wrong)[0].status == "warn"


def test_what_is_in_the_way_of_new_keys_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a file in it"):
        keys.new(tmp_path, json=True)
    path = tmp_path / "keys"
    keys.new(path, json=True)
    with pytest.raises(ConfigError, match="keys rotate"):
        keys.new(path, json=True)
