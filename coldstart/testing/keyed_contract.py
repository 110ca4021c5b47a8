"""The suite for transports that use ``TransportSettings.signer``: members of a fleet with keys, and everybody else.

    class TestMine(AuthenticatedContract):               # or KeyedContract, if only the beginning is proven
        hello_seconds = "my_package.lender.HELLO_SECONDS"    # what a stranger has to prove itself in

        def open_source(self, settings):
            return FACTORY.open(settings)

Decides what the proof promises: members read from each other while keys are changed, nobody else reads or is read
from, each side says why, and what is heard, cut, changed or said again on the path opens nothing. Tickets are
msgpack maps with ``host``, ``port`` and ``secret``. It must not know any implementation. Needs pytest.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread
import msgspec
import pytest

from coldstart.errors import TransportError
from coldstart.keyring import made, text_of
from coldstart.ports import Transport, TransportSettings
from coldstart.proofs import NUMBER_BYTES, PROOF_BYTES
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys
from coldstart.signing import FleetSigner
from coldstart.testing import eavesdropping
from coldstart.testing.eavesdropping import Meddling, Side, What, path_to, saying
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import Landings, eventually, grant, payload, whole

OLD, NEW, FOREIGN = (Key(name, name.encode() * 8) for name in ("old1", "new2", "evil"))
STEPS = ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))
"""A key is added, then signs, then is alone."""
LAYOUT = layout_of(300_000, 7)
HELLO_BYTES = 36
SECONDS = 1.0
"""A connection on which nothing more comes is given up after this."""


def keys_file(path: Path) -> Path:
    """Write a fleet's keys to ``path``, for ``COLDSTART_KEYS`` of processes: one that signs, and one of digests."""
    path.touch(0o600)
    path.write_text(text_of(Keys((made(),), made())), encoding="utf-8")
    return path


class KeyedContract:
    """What a transport that uses keys promises besides the other contracts."""

    hello_seconds: ClassVar[str]
    answers: ClassVar[tuple[int, ...]] = (1, 1)
    """Bytes with which the source answers hello and proof, before its number and its proof."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    def open_source(self, settings: TransportSettings) -> Transport:
        """A transport; called for both sides."""
        raise NotImplementedError

    def opened(self, *keys: Key, refusals: Refusals | None = None, seconds: float = 5.0) -> Transport:
        """One with these keys, or without any."""
        signer = FleetSigner(lambda: Keys(keys), refusals or Refusals()) if keys else None
        return self.open_source(TransportSettings(io_seconds=seconds, connections=1, signer=signer))

    # ------------------------------------------------------------------------- who is admitted

    @pytest.mark.parametrize(("before", "after"), list(pairwise(STEPS)))
    async def test_members_read_from_each_other_while_keys_are_changed(
        self, before: tuple[Key, ...], after: tuple[Key, ...]
    ) -> None:
        await _pulled(self.opened(*before), self.opened(*after))
        await _pulled(self.opened(*after), self.opened(*before))

    @pytest.mark.parametrize(
        ("source", "joiner", "words"),
        [
            ((OLD,), (FOREIGN,), "wants a proof by a key"),
            ((OLD,), (Key(OLD.ident, FOREIGN.secret),), "wants a proof by a key"),
            ((OLD,), (), "wants a proof by a key"),
            ((), (OLD,), "has no keys"),
        ],
    )
    async def test_who_has_no_key_gets_nothing_and_each_side_says_why(
        self,
        source: tuple[Key, ...],
        joiner: tuple[Key, ...],
        words: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        refusals, told = Refusals(), list[str]()
        refusals.heard = lambda reason, what, count: told.append(what)
        with pytest.raises(TransportError, match=words) as caught:
            await _pulled(self.opened(*source, refusals=refusals), self.opened(*joiner))
        assert caught.value.reason == "refused"
        assert "\n" not in str(caught.value)
        told += [record.getMessage() for record in caplog.records if "COLDSTART_KEYS" in record.getMessage()]
        assert len(told) == 1, "the source says it once"

    # ------------------------------------------------------------------------- who is on the path

    async def test_what_is_heard_opens_nothing(self) -> None:
        """Neither key nor secret is said, and what is said serves for no other connection, in either direction."""
        async with self._heard(None) as (source, joiner, ticket, rerouted, path):
            await _pull(joiner, rerouted)
            asked, answered = bytes(path.said["joiner"]), bytes(path.said["source"])
            for text in (asked, answered):
                assert OLD.secret not in text
                assert _secret(ticket) not in text
            await eventually(lambda: not source.reading("t"))
            said = await anyio.to_thread.run_sync(_answer, ticket, asked)
            assert len(said) <= self._proven_bytes("source") - PROOF_BYTES, "it was taken for the joiner"
            assert not source.reading("t")
            with saying(answered) as port:
                refusal = await _refused(joiner, _rerouted(ticket, port))
            assert "does not prove that it has a key" in refusal

    @pytest.mark.parametrize("what", ["flip", "cut"])
    @pytest.mark.parametrize("side", ["joiner", "source"])
    async def test_what_is_changed_or_cut_before_the_proof_is_over_opens_nothing(self, side: Side, what: What) -> None:
        last = self._proven_bytes(side) - 1
        for at in (0, 1, 17, 30, 40, last - 40, last):
            async with self._heard(Meddling(side, at, what)) as (_, joiner, _, rerouted, _):
                await _refused(joiner, rerouted)

    # ------------------------------------------------------------------------- who wastes time

    async def test_strangers_before_their_proof_cost_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that says nothing more, one that says a byte now and then, one that says far too much."""
        monkeypatch.setattr(self.hello_seconds, 0.4)
        source, joiner = self.opened(OLD), self.opened(OLD)
        ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
        with path_to(*_address(ticket)) as (port, path):
            await _pull(joiner, _rerouted(ticket, port))
        hello = bytes(path.said["joiner"][:HELLO_BYTES])
        await eventually(lambda: not source.reading("t"))
        for stranger in (_silent, _slow, _loud):
            with anyio.fail_after(5), socket.create_connection(_address(ticket), timeout=5) as sock:
                sock.sendall(hello)
                await anyio.to_thread.run_sync(stranger, sock)
            assert not source.reading("t")
        await _pull(joiner, ticket)
        await joiner.aclose()
        await source.aclose()

    # ------------------------------------------------------------------------- helpers

    def _proven_bytes(self, side: Side) -> int:
        """What ``side`` says until it has proven itself."""
        if side == "joiner":
            return HELLO_BYTES + PROOF_BYTES
        return sum(self.answers) + NUMBER_BYTES + PROOF_BYTES

    @asynccontextmanager
    async def _heard(
        self, meddling: Meddling | None
    ) -> AsyncIterator[tuple[Transport, Transport, bytes, bytes, eavesdropping.Path]]:
        """Source, joiner, the ticket, the same by way of somebody on the path, and what is said there."""
        source, joiner = self.opened(OLD, seconds=SECONDS), self.opened(OLD, seconds=SECONDS)
        try:
            ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
            with path_to(*_address(ticket), meddling) as (port, path):
                yield source, joiner, ticket, _rerouted(ticket, port), path
        finally:
            await joiner.aclose()
            await source.aclose()


class AuthenticatedContract(KeyedContract):
    """What a transport promises besides whose control connection is authenticated after the proof (``Channel``)."""

    control: ClassVar[int] = 64
    """So many bytes of what follows are looked at, of each side at most."""

    @pytest.mark.parametrize("side", ["joiner", "source"])
    async def test_what_is_changed_later_is_noticed(self, side: Side) -> None:
        """At the latest when there is something that depends on it: the right bytes come, or none of it counts."""
        first = self._proven_bytes(side)
        for at in range(first, first + self.control, 9):
            async with self._heard(Meddling(side, at, "flip")) as (source, joiner, _, rerouted, path):
                target, failure = BytesMemory(LAYOUT), ""
                try:
                    with anyio.fail_after(10):
                        await joiner.pull(rerouted, [whole(LAYOUT)], target, Landings())
                except TransportError as error:
                    failure = error.reason
                if failure:
                    assert failure in ("protocol", "closed", "timeout")
                else:
                    assert payload(target, LAYOUT) == payload(BytesMemory(LAYOUT, seed=1), LAYOUT)
                    assert side == "joiner" or len(path.said[side]) <= at, "the joiner took what was changed"
                await eventually(lambda: not source.reading("t"))


async def _pulled(source: Transport, joiner: Transport) -> None:
    try:
        await _pull(joiner, await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    finally:
        await joiner.aclose()
        await source.aclose()


async def _pull(joiner: Transport, ticket: bytes) -> None:
    """A pull of everything, compared; where it fails nothing has come."""
    target = BytesMemory(LAYOUT)
    try:
        with anyio.fail_after(10):
            await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
    except TransportError:
        assert target.storages == BytesMemory(LAYOUT).storages, "something came without a proof"
        raise
    assert payload(target, LAYOUT) == payload(BytesMemory(LAYOUT, seed=1), LAYOUT)


async def _refused(joiner: Transport, ticket: bytes) -> str:
    with pytest.raises(TransportError) as caught:
        await _pull(joiner, ticket)
    assert caught.value.reason in ("refused", "protocol", "closed", "timeout"), caught.value
    return str(caught.value)


def _fields(ticket: bytes) -> dict[str, object]:
    return msgspec.msgpack.decode(ticket, type=dict[str, object])


def _address(ticket: bytes) -> tuple[str, int]:
    fields = _fields(ticket)
    return str(fields["host"]), msgspec.convert(fields["port"], int)


def _secret(ticket: bytes) -> bytes:
    secret = _fields(ticket)["secret"]
    assert isinstance(secret, bytes)
    return secret


def _rerouted(ticket: bytes, port: int) -> bytes:
    return msgspec.msgpack.encode({**_fields(ticket), "port": port})


def _answer(ticket: bytes, words: bytes) -> bytes:
    """All that the source says to ``words``."""
    heard = b""
    with socket.create_connection(_address(ticket), timeout=10) as sock, suppress(ConnectionError):
        sock.sendall(words)
        while more := sock.recv(1 << 16):
            heard += more
    return heard


def _silent(sock: socket.socket) -> None:
    with suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass


def _slow(sock: socket.socket) -> None:
    sock.settimeout(0.05)
    with suppress(ConnectionError):
        while True:
            sock.sendall(b"x")
            with suppress(TimeoutError):
                while sock.recv(1 << 16):
                    pass
                return


def _loud(sock: socket.socket) -> None:
    with suppress(OSError):
        for _ in range(64):
            sock.sendall(bytes(1 << 16))
    with suppress(OSError):
        _silent(sock)
