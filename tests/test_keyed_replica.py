"""Cold starts of a fleet with keys: a real store under its ACL, real sockets, a keyed digest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

import coldstart
from coldstart import config, wiring
from coldstart.bus.embedded import _binary
from coldstart.chronicle.lines import unpack
from coldstart.cli.checks.links import LinkChecks
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.keyring import made, text_of
from coldstart.seals import Keys
from tests.bus.conftest import Server
from tests.conftest import WriteCheckpoint


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        server = Server(str(_binary()), Path(directory))
        yield server
        server.kill()


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    path = tmp_path / "keys"
    path.write_text(text_of(Keys((made(),), made())))
    path.chmod(0o600)
    return config.load({"redis": server.url, "keys": str(path), "digest": "blake3", "host": "127.0.0.1"})


async def test_members_start_from_each_other_and_everybody_else_from_storage(
    server: Server, settings: Settings, tmp_path: Path, write_checkpoint: WriteCheckpoint
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    without = msgspec.structs.replace(settings, keys="", digest="csfp1")
    other = tmp_path / "others"
    other.write_text(text_of(Keys((made(),), made())))
    other.chmod(0o600)
    foreign = msgspec.structs.replace(settings, keys=str(other))
    async with coldstart.join(checkpoint, settings=settings, worker="a") as a:
        assert a.report.path == "storage"
        async with coldstart.join(checkpoint, settings=settings, worker="b") as b:
            assert (b.report.path, b.report.sources, b.report.refused) == ("peer", ("a",), {})
            for strange in (without, foreign, msgspec.structs.replace(settings, digest="blake2b")):
                async with coldstart.join(checkpoint, settings=strange, worker="c") as c:
                    assert (c.report.path, c.report.sources) == ("storage", ())
                    assert any("authenticated" in reason or "digests are" in reason for reason in c.report.skipped)
        with anyio.fail_after(10):  # a journal is written behind
            while not {"a", "b"} <= _journalled(server, a.report.shard):  # noqa: ASYNC110
                await anyio.sleep(0.02)


def _journalled(server: Server, shard: str) -> set[str]:
    """Who has written to the shard's journal."""
    entries = server.ask("XRANGE", f"cs:{{{shard}}}:journal", "-", "+")
    assert isinstance(entries, list)
    return {unpack(text)[0].worker for _, fields in entries for text in fields.values()}


async def test_doctor_measures_the_link_to_a_member_as_a_member(
    settings: Settings, tmp_path: Path, write_checkpoint: WriteCheckpoint
) -> None:
    async with (
        coldstart.join(write_checkpoint(tmp_path / "model"), settings=settings, worker="a"),
        wiring.open_bus(settings) as bus,
    ):
        links = LinkChecks(settings, "127.0.0.1")
        await links.transports()
        found = {check.name: check for check in await links.to_peer("a", bus)}
        assert "wants a proof" not in found["link tcp from a"].finding
        assert found["link tcp from a"].status in ("ok", "warn"), found  # few bytes tell little


async def test_what_strangers_did_is_in_the_report(
    settings: Settings, tmp_path: Path, write_checkpoint: WriteCheckpoint
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    async with (
        coldstart.join(checkpoint, settings=settings, worker="a") as a,
        wiring.open_bus(msgspec.structs.replace(settings, keys="")) as raw,
    ):
        (advert,) = await raw.adverts(a.report.shard)
        await raw.withdraw(a.report.shard, "a", advert.incarnation)
        await raw.advertise(a.report.shard, msgspec.structs.replace(advert, worker="imp", seal=""), 60)
        await raw.send(a.report.shard, advert.inbox, b"nonsense", "n1")
        async with coldstart.join(checkpoint, settings=settings, worker="b") as b:
            assert set(b.report.refused) <= {"advert unsealed"}
            if b.report.path == "storage":
                assert any("imp: refused (its advert is not proven" in detour for detour in b.report.detours)
        assert a.report.refused == {"letter unsealed": 1}


async def test_keys_that_cannot_be_used_stop_the_start_with_one_line(
    settings: Settings, tmp_path: Path, write_checkpoint: WriteCheckpoint
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    os.chmod(settings.keys, 0o644)
    with pytest.raises(ConfigError, match="open to other users"):
        async with coldstart.join(checkpoint, settings=settings):
            pass
    with pytest.raises(ConfigError, match="COLDSTART_DIGEST=blake3 needs a digest key"):
        async with coldstart.join(checkpoint, settings=msgspec.structs.replace(settings, keys="", redis="none")):
            pass
