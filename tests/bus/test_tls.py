"""TLS to a real store: its certificate is checked, ours is shown, and every refusal says what to do."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from coldstart import wiring
from coldstart.bus import acl
from coldstart.bus.address import Tls
from coldstart.bus.redis import RedisBus
from coldstart.config import Settings
from coldstart.errors import BusError, ConfigError
from coldstart.ports import Cursor, Granted
from coldstart.testing.bus_contract import SHARD, advert, claim
from tests.bus.conftest import Server, _free_port


class Pki(msgspec.Struct):
    """Files of one authority, and of certificates that it has issued."""

    ca: str
    cert: str
    cert_key: str
    other_ca: str
    foreign_cert: str
    foreign_key: str


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    place = tmp_path_factory.mktemp("pki")
    ours, others = trustme.CA(), trustme.CA()
    paths: list[str] = []
    for number, authority in enumerate((ours, others)):
        issued = authority.issue_cert("127.0.0.1")
        names = [str(place / f"{part}{number}.pem") for part in ("ca", "cert", "key")]
        authority.cert_pem.write_to_path(names[0])
        issued.cert_chain_pems[0].write_to_path(names[1])
        issued.private_key_pem.write_to_path(names[2])
        paths += names
    return Pki(*paths[:4], *paths[4:])


@pytest.fixture(scope="module")
def store(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that is spoken to over TLS, under the ACL, by clients with a certificate."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None or "ssl" not in subprocess.run(["ldd", binary], capture_output=True, text=True).stdout:
        pytest.skip("no server with TLS on the PATH (apt-get install redis-server)")
    port = _free_port()
    options = ("--tls-port", str(port), "--tls-auth-clients", "yes", "--tls-ca-cert-file", pki.ca)
    files = ("--tls-cert-file", pki.cert, "--tls-key-file", pki.cert_key)
    server = Server(binary, tmp_path_factory.mktemp("tls"), *options, *files)
    server.ask("ACL", "SETUSER", "coldstart", "on", ">secret", *acl.rule("cs"))
    yield f"rediss://coldstart:secret@127.0.0.1:{port}"
    server.kill()


async def test_a_bus_works_over_tls_and_under_the_acl(store: str, pki: Pki) -> None:
    settings = Settings(redis=store, redis_ca=pki.ca, redis_cert=pki.cert, redis_cert_key=pki.cert_key)
    async with wiring.open_bus(settings, probe=True) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        assert isinstance(await bus.claim(claim()), Granted)
        (letter,) = (await bus.listen(SHARD, "source.in", Cursor(), 1)).letters
        assert letter.body == b"hello"


@pytest.mark.parametrize("case", ["another authority", "no certificate of ours", "a foreign certificate", "no TLS"])
async def test_who_cannot_be_trusted_is_refused_in_one_line(case: str, store: str, pki: Pki) -> None:
    tls = {
        "another authority": Tls(pki.other_ca, pki.cert, pki.cert_key),
        "no certificate of ours": Tls(pki.ca),
        "a foreign certificate": Tls(pki.ca, pki.foreign_cert, pki.foreign_key),
        "no TLS": None,
    }[case]
    url = store.replace("rediss:", "redis:") if case == "no TLS" else store
    began = time.monotonic()
    with pytest.raises(BusError) as caught:
        await RedisBus.open(url, tls=tls)
    assert time.monotonic() - began < 5
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_name_that_the_certificate_does_not_have_is_refused(store: str, pki: Pki) -> None:
    with pytest.raises(BusError, match=r"TLS.*localhost"):
        await RedisBus.open(store.replace("127.0.0.1", "localhost"), tls=Tls(pki.ca, pki.cert, pki.cert_key))


@pytest.mark.parametrize(
    ("url", "tls", "words"),
    [
        ("redis://127.0.0.1", Tls(ca="/ca.pem"), "without TLS"),
        ("unix:///s", Tls(ca="/ca.pem"), "without TLS"),
        ("rediss://127.0.0.1", Tls(ca="/nowhere/ca.pem"), "/nowhere/ca.pem"),
        ("rediss://127.0.0.1", Tls(cert=__file__), "belong together"),
        ("rediss://127.0.0.1", Tls(cert_key=__file__), "belong together"),
    ],
)
async def test_files_that_cannot_be_meant_are_refused_before_connecting(url: str, tls: Tls, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await RedisBus.open(url, tls=tls)


async def test_a_file_that_is_no_certificate_is_refused(store: str, pki: Pki, tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("nothing of the kind")
    with pytest.raises(BusError, match="COLDSTART_REDIS_CA") as caught:
        await RedisBus.open(store, tls=Tls(str(wrong), pki.cert, pki.cert_key))
    assert "\n" not in str(caught.value)
