"""``coldstart keys`` and what doctor says of protection, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coldstart.cli.checks import security
from coldstart.config import Settings
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
