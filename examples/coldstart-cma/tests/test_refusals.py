"""Everything that can be wrong with a ticket, a source or a host ends in one clear line."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from coldstart_cma import FACTORY, board, host, native
from coldstart_cma.board import OpenBoard, Ticket, decode_ticket
from coldstart_cma.transport import STEP_BYTES, CmaTransport, step_bytes

from coldstart.errors import PluginUnavailable, TransportError
from coldstart.layout import Span
from coldstart.ports import Region, TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import Landings, grant, resources, whole

LAYOUT = layout_of(1000, 5000)


async def refusal(transport: CmaTransport, ticket: bytes | Ticket) -> TransportError:
    """What a pull with ``ticket`` says; nothing has landed then."""
    encoded = msgspec.msgpack.encode(ticket) if isinstance(ticket, Ticket) else ticket
    landed, target = Landings(), BytesMemory(LAYOUT)
    with pytest.raises(TransportError) as caught:
        await transport.pull(encoded, [whole(LAYOUT)], target, landed)
    assert landed.spans == []
    assert target.lent == 0
    assert "\n" not in str(caught.value)
    return caught.value


async def offered(transport: CmaTransport) -> Ticket:
    return decode_ticket(await transport.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))


class TestTickets:
    async def test_from_another_machine_or_container(self) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)
        for other in ("", "another boot", ticket.host.replace("pid:[", "pid:[9")):
            error = await refusal(source, msgspec.structs.replace(ticket, host=other))
            assert error.reason == "refused"
            assert "another machine" in str(error)
        await source.aclose()

    async def test_of_a_process_whose_number_was_given_to_another(self) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)
        error = await refusal(source, msgspec.structs.replace(ticket, started=ticket.started - 1))
        assert (error.reason, "has ended" in str(error)) == ("closed", True)
        await source.aclose()

    async def test_of_a_process_whose_number_is_given_away_in_mid_pull(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was read last may be the other process's, and does not land."""
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)
        answers = iter([ticket.started, ticket.started + 1])
        monkeypatch.setattr(host, "started", lambda pid: next(answers))
        assert (await refusal(source, ticket)).reason == "closed"
        await source.aclose()

    async def test_of_nobody(self) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)
        assert (await refusal(source, msgspec.structs.replace(ticket, pid=2**31 - 1))).reason == "closed"
        await source.aclose()

    async def test_for_a_descriptor_that_is_another_file_now(self) -> None:
        """Opening it could do anything, so it is only looked at."""
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)
        reading, writing = os.pipe()
        try:
            for descriptor in (reading, 2**20):
                error = await refusal(source, msgspec.structs.replace(ticket, descriptor=descriptor))
                assert error.reason == "revoked"
        finally:
            os.close(reading)
            os.close(writing)
        assert (await refusal(source, msgspec.structs.replace(ticket, token=bytes(16)))).reason == "revoked"
        await source.aclose()

    async def test_for_a_process_that_may_not_be_looked_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = await offered(source)

        def forbidden(path: str) -> str:
            raise PermissionError(errno.EACCES, "Permission denied")

        host.identity()
        monkeypatch.setattr(os, "readlink", forbidden)
        error = await refusal(source, ticket)
        assert error.reason == "refused"
        assert "ptrace_scope" in error.advice
        await source.aclose()

    def test_are_small_however_much_is_offered(self) -> None:
        ticket = Ticket(host=host.identity(), pid=2**31 - 1, started=2**63 - 1, descriptor=2**31 - 1, token=bytes(16))
        assert len(msgspec.msgpack.encode(ticket)) < board.MAX_TICKET / 4


class Elsewhere(BytesMemory):
    """Memory that gives an address at which there is nothing, for its last storage."""

    def regions(self, span: Span) -> Sequence[Region]:
        *right, last = super().regions(span)
        return [*right, msgspec.structs.replace(last, address=4096)]


class TestReading:
    async def test_memory_that_is_not_there(self) -> None:
        """The kernel stops at the storage that is missing: a short read, or no read at all."""
        source = FACTORY.open(TransportSettings())
        ticket = await source.offer(grant("t"), Elsewhere(LAYOUT, seed=1))
        error = await refusal(source, ticket)
        assert error.reason == "closed"
        assert f"process {os.getpid()} has only 1000 of the 6000 bytes that it gave" in str(error)
        landed = Landings()
        with pytest.raises(TransportError, match="no memory any more") as caught:
            await source.pull(ticket, [Span(1024, 100)], BytesMemory(LAYOUT), landed)
        assert caught.value.reason == "closed"
        await source.aclose()

    @pytest.mark.parametrize(
        ("code", "reason", "words"),
        [
            (errno.ESRCH, "closed", "is gone"),
            (errno.EPERM, "refused", "may not be read.*ptrace_scope"),
            (errno.EFAULT, "closed", "has no memory any more"),
            (errno.ENOSYS, "unsupported", "no process_vm_readv"),
            (errno.ENOMEM, "failed", "Cannot allocate memory"),
        ],
    )
    async def test_each_failure_of_the_call(
        self, monkeypatch: pytest.MonkeyPatch, code: int, reason: str, words: str
    ) -> None:
        monkeypatch.setattr(native, "_call", lambda: failing(code))
        source = FACTORY.open(TransportSettings())
        ticket = await source.offer(grant("t"), BytesMemory(LAYOUT))
        with pytest.raises(TransportError, match=words):
            raise await refusal(source, ticket)
        assert (await refusal(source, ticket)).reason == reason
        await source.aclose()


def failing(code: int) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        ctypes.set_errno(code)
        return -1

    return call


class TestOffering:
    async def test_memory_that_is_not_the_host_s(self) -> None:
        class Device(BytesMemory):
            device = "cuda:0"

        source = FACTORY.open(TransportSettings())
        with pytest.raises(TransportError, match="cannot offer cuda:0 memory") as caught:
            await source.offer(grant("t"), Device(LAYOUT))
        assert caught.value.reason == "unsupported"
        await source.aclose()

    async def test_too_many_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(board, "MAX_REGIONS", 1)
        source = FACTORY.open(TransportSettings())
        with pytest.raises(TransportError, match="2 pieces of memory, at most 1"):
            await source.offer(grant("t"), BytesMemory(LAYOUT))
        await source.aclose()

    async def test_without_a_descriptor_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def exhausted(name: str, flags: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "memfd_create", exhausted)
        source = FACTORY.open(TransportSettings())
        with pytest.raises(TransportError, match="Too many open files") as caught:
            await source.offer(grant("t"), BytesMemory(LAYOUT))
        assert caught.value.reason == "exhausted"
        await source.aclose()

    async def test_a_second_offer_of_a_transfer_ends_the_first(self) -> None:
        source = FACTORY.open(TransportSettings())
        first, held = await offered(source), BytesMemory(LAYOUT, seed=2)
        second, target = await source.offer(grant("t"), held), BytesMemory(LAYOUT)
        assert (await refusal(source, first)).reason == "revoked"
        await source.pull(second, [whole(LAYOUT)], target, Landings())
        assert target.storages == held.storages
        await source.aclose()

    async def test_the_cap_is_divided_among_those_who_may_read(self) -> None:
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=6e9))
        boards: list[OpenBoard] = []
        for name in ("a", "b", "c"):
            boards.append(OpenBoard(decode_ticket(await source.offer(grant(name), BytesMemory(LAYOUT)))))
            boards[-1].open()
            assert {each.notice().bytes_per_second for each in boards} == {6e9 / len(boards)}
        boards[0].close()
        await source.revoke("a")
        assert {each.notice().bytes_per_second for each in boards[1:]} == {3e9}
        for each in boards[1:]:
            each.close()
        await source.aclose()

    @pytest.mark.parametrize(
        ("rate", "length"), [(0.0, STEP_BYTES), (1e12, STEP_BYTES), (10e6, 1_000_000), (1.0, 64 * 1024)]
    )
    def test_steps_under_a_cap_are_short(self, rate: float, length: int) -> None:
        assert step_bytes(rate) == length


class TestWhereItCanRun:
    @pytest.mark.skipif(host.ptrace_scope() > 0, reason="whether it can run here is for Yama to say")
    def test_here(self) -> None:
        before = resources(), len(os.listdir("/proc/self/fd"))
        assert FACTORY.probe().usable, FACTORY.probe().reason
        assert (resources(), len(os.listdir("/proc/self/fd"))) == before

    @pytest.mark.parametrize(
        ("scope", "may_trace", "usable"),
        [
            ("", False, True),
            ("0", False, True),
            ("1", False, False),
            ("1", True, True),
            ("2", False, False),
            ("2", True, True),
            ("3", True, False),
        ],
    )
    def test_under_yama(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, may_trace: bool, usable: bool
    ) -> None:
        setting = tmp_path / "ptrace_scope"
        if scope:
            setting.write_text(f"{scope}\n")
        monkeypatch.setattr(host, "_YAMA", setting)
        monkeypatch.setattr(host, "_may_trace", lambda: may_trace)
        found = FACTORY.probe()
        assert found.usable == usable
        assert usable or f"ptrace_scope is {scope}" in found.reason

    def test_not_on_another_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        assert "darwin has no process_vm_readv" in FACTORY.probe().reason
        assert not FACTORY.probe().usable

    @pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
    def test_not_behind_a_filter(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        monkeypatch.setattr(native, "_call", lambda: failing(code))
        found = FACTORY.probe()
        assert not found.usable
        assert found.reason.startswith("process_vm_readv is blocked here")

    def test_not_where_the_call_does_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "_call", lambda: lambda *arguments: 8)
        assert FACTORY.probe().reason == "process_vm_readv does nothing here"

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    async def test_for_workers_whose_peers_are_here(self, address: str) -> None:
        await FACTORY.open(TransportSettings(host=address)).aclose()

    @pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::1", "worker-7", "", "0.0.0.0"])
    def test_not_for_workers_whose_peers_may_be_elsewhere(self, address: str) -> None:
        with pytest.raises(PluginUnavailable, match="inside one host"):
            FACTORY.open(TransportSettings(host=address))
