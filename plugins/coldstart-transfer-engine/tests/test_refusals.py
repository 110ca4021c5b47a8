"""Everything that can be wrong with a ticket, a source or a machine ends in one clear line."""

from __future__ import annotations

import os
import socket
import threading
import time

import anyio
import msgspec
import pytest
from coldstart_transfer_engine import FACTORY, lender, library, line, places, sockets, transport
from coldstart_transfer_engine.library import Engine
from coldstart_transfer_engine.line import Ticket, Way, decode_ticket

from coldstart.errors import PluginUnavailable, TransportError
from coldstart.layout import Span
from coldstart.ports import TransportSettings
from coldstart.testing.late_writes import Pulling
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import Landings, eventually, grant, resources, whole

LAYOUT = layout_of(1000, 5000)


async def refusal(ticket: Ticket) -> TransportError:
    """What a pull with ``ticket`` says; nothing has been written then."""
    joiner, target, landed = FACTORY.open(TransportSettings(io_seconds=1.0)), BytesMemory(LAYOUT), Landings()
    with pytest.raises(TransportError) as caught:
        await joiner.pull(ticket.encode(), [whole(LAYOUT)], target, landed)
    assert landed.spans == []
    assert target.storages == BytesMemory(LAYOUT).storages
    assert "\n" not in str(caught.value)
    await joiner.aclose()
    return caught.value


class TestTickets:
    async def test_with_another_secret_for_another_transfer_or_for_nobody(self) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
        assert (await refusal(msgspec.structs.replace(ticket, secret=bytes(16)))).reason == "refused"
        assert (await refusal(msgspec.structs.replace(ticket, transfer="u"))).reason == "refused"
        await source.aclose()
        assert (await refusal(ticket)).reason == "unreachable"

    async def test_whose_engine_is_gone_or_another_process_s(self) -> None:
        """The line still stands; what the engine's port answers now is nobody's business."""
        source = FACTORY.open(TransportSettings())
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
        other = Engine("127.0.0.1", "tcp", "cpu")
        for session in ("127.0.0.1:1", other.session):
            error = await refusal(msgspec.structs.replace(ticket, ways=(Way("tcp", session),)))
            assert error.reason == "failed"
        other.close()
        await source.aclose()

    async def test_for_other_memory_or_another_machine(self) -> None:
        source = FACTORY.open(TransportSettings())
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
        error = await refusal(msgspec.structs.replace(ticket, ways=(Way("nvlink", "127.0.0.1:1"),)))
        assert error.reason == "unsupported"
        assert "lends over nvlink, which does not reach cpu memory here" in str(error)
        await source.aclose()

    @pytest.mark.parametrize(
        ("machine", "process", "neighbour"),
        [
            (line.machine(), os.getpid() + 1, True),
            (line.machine(), os.getpid(), False),
            ("another boot", 1, False),
            ("", 1, False),
        ],
        ids=["another process", "this process", "another machine", "an unknown machine"],
    )
    async def test_nvlink_is_for_another_process_of_this_machine(
        self, machine: str, process: int, neighbour: bool
    ) -> None:
        joiner = transport.TransferEngineTransport(TransportSettings(device="cuda:0"), "127.0.0.1", ("nvlink", "rdma"))
        ways = (Way("rdma", "10.0.0.1:1"), Way("nvlink", "10.0.0.1:2"))
        ticket = Ticket("10.0.0.1", 1, bytes(16), "t", machine, process, ways)
        assert joiner._way(ticket, "cuda:0").route == ("nvlink" if neighbour else "rdma")
        assert joiner.traits.device_kinds == ("cuda",)


class TestLines:
    async def test_strangers_and_silent_callers_do_not_hold_a_source_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line, "HELLO_SECONDS", 0.2)
        source = FACTORY.open(TransportSettings())
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
        before = resources()
        silent = [socket.create_connection((ticket.host, ticket.port)) for _ in range(5)]
        with socket.create_connection((ticket.host, ticket.port)) as rude:
            rude.sendall(bytes(line.HELLO_BYTES))
            assert rude.recv(100)[:1] == bytes([line.Status.REFUSED])
        assert not source.reading("t")
        target = BytesMemory(LAYOUT)
        joiner = FACTORY.open(TransportSettings())
        await joiner.pull(ticket.encode(), [whole(LAYOUT)], target, Landings())
        for caller in silent:
            assert caller.recv(1) == b""
            caller.close()
        await eventually(lambda: resources() <= before)
        await joiner.aclose()
        await source.aclose()

    async def test_many_silent_strangers_do_not_keep_a_joiner_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest of them goes for each who comes; a joiner that reads stays."""
        monkeypatch.setattr(line, "HELLO_SECONDS", 60.0)
        source, joiner = FACTORY.open(TransportSettings()), FACTORY.open(TransportSettings())
        target = BytesMemory(LAYOUT)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
        reader = line.Line(ticket, 5.0)
        silent = [socket.create_connection((ticket.host, ticket.port)) for _ in range(lender.MAX_LINES + 20)]
        with anyio.fail_after(20):
            await joiner.pull(ticket.encode(), [whole(LAYOUT)], target, Landings())
        reader.rate()
        for each in (*silent, reader):
            each.close()
        await joiner.aclose()
        await source.aclose()

    async def test_a_source_that_says_nothing(self) -> None:
        """It has stopped, or is something else."""
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
            ticket = Ticket("127.0.0.1", port, bytes(16), "t", "", 1, (Way("tcp", "127.0.0.1:1"),))
            error = await refusal(ticket)
            assert (error.reason, "said nothing" in str(error)) == ("closed", True)

    async def test_a_large_table_does_not_hold_the_source_up(self) -> None:
        """Its reader takes nothing: the source must not wait for it."""
        source, layout = FACTORY.open(TransportSettings()), layout_of(*[1] * places.MAX_PLACES)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(layout, seed=1)))
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((ticket.host, ticket.port))
            idle.sendall(line.hello(ticket))
            await eventually(lambda: source.reading("t"))
        await eventually(lambda: not source.reading("t"))
        target = BytesMemory(layout)
        await source.pull(ticket.encode(), [whole(layout)], target, Landings())
        assert target.storages == BytesMemory(layout, seed=1).storages
        await source.aclose()

    async def test_the_cap_is_divided_among_those_who_read(self) -> None:
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=6e9))
        lines: list[line.Line] = []
        for name in ("a", "b", "c"):
            ticket = decode_ticket(await source.offer(grant(name), BytesMemory(LAYOUT)))
            lines.append(line.Line(ticket, 5.0))
            await eventually(lambda: {each.rate() for each in lines} == {6e9 / len(lines)})
        lines.pop(0).close()
        await eventually(lambda: {each.rate() for each in lines} == {3e9})
        for each in lines:
            each.close()
        await source.aclose()


class TestEngines:
    def test_the_route_is_what_was_found_and_not_what_was_asked_for(self) -> None:
        with pytest.raises(TransportError, match="took tcp where rdma was wanted") as caught:
            Engine("127.0.0.1", "rdma", "cpu")
        assert caught.value.reason == "unsupported"
        engine = Engine("127.0.0.1", "tcp", "cpu")
        assert engine.route == "tcp"
        engine.close()

    def test_ending_one_does_not_stop_the_interpreter(self) -> None:
        """Left alone, its destructor holds everything up for as long as a second."""
        gaps: list[float] = []
        stop = threading.Event()

        def tick() -> None:
            last = time.perf_counter()
            while not stop.wait(0.001):
                gaps.append(time.perf_counter() - last)
                last = time.perf_counter()

        ticking = threading.Thread(target=tick)
        ticking.start()
        for _ in range(3):
            Engine("127.0.0.1", "tcp", "cpu").close()
        stop.set()
        ticking.join()
        assert max(gaps) < 0.4

    async def test_a_pull_that_hangs_before_its_first_read_can_be_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The library may wait for a minute in its handshake; it has not got the target then, and never will."""
        hanging, go = threading.Event(), threading.Event()
        read = Engine.read

        def slow(self: Engine, session: str, local: int, remote: int, length: int) -> int:
            hanging.set()
            assert go.wait(30)
            return read(self, session, local, remote, length)

        source, joiner = FACTORY.open(TransportSettings()), FACTORY.open(TransportSettings())
        ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
        monkeypatch.setattr(Engine, "read", slow)
        target, landed = BytesMemory(LAYOUT, fill=0xAA), Landings()
        pulling = Pulling(joiner, ticket, target, landed)
        await eventually(hanging.is_set)
        pulling.cancel("by anyio")
        assert await pulling.returns_within(1)
        go.set()
        await eventually(lambda: not any("te-pull" in each.name for each in threading.enumerate()))
        assert target.storages == BytesMemory(LAYOUT, fill=0xAA).storages
        assert landed.spans == []
        await joiner.aclose()
        await source.aclose()

    async def test_what_is_prepared_is_used_and_given_back(self) -> None:
        before = resources()
        memory = BytesMemory(LAYOUT, seed=1)
        source, joiner = FACTORY.open(TransportSettings()), FACTORY.open(TransportSettings())
        target = BytesMemory(LAYOUT)
        for _ in range(2):
            await source.prepare(memory)
            await joiner.prepare(target)
        opened = set(sockets.listening())
        ticket = await source.offer(grant("t"), memory)
        assert set(sockets.listening()) == opened, "an engine was started although there was one"
        await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
        assert target.storages == memory.storages
        memory.storages = [bytearray(memory.storages[0]), *memory.storages[1:]]  # as if it had been quarantined
        moved = await source.offer(grant("u"), memory)
        await joiner.pull(moved, [Span(0, 10)], target, Landings())
        for each in (source, joiner):
            await each.aclose()
            with pytest.raises(TransportError, match="is closed"):
                await each.prepare(memory)
        await eventually(lambda: resources() <= before)


class TestWhereItCanRun:
    def test_here(self) -> None:
        before = resources()
        assert FACTORY.probe().usable
        assert FACTORY.probe().reason.startswith("mooncake-transfer-engine")
        assert resources() == before

    @pytest.mark.parametrize(
        "error",
        [
            ModuleNotFoundError("No module named 'mooncake'"),
            ImportError("libibverbs.so.1: cannot open shared object file"),
        ],
    )
    def test_not_without_the_library_or_what_it_needs(
        self, monkeypatch: pytest.MonkeyPatch, error: ImportError
    ) -> None:
        def missing() -> library.Module:
            raise error

        monkeypatch.setattr(library, "module", missing)
        found = FACTORY.probe()
        assert not found.usable
        assert str(error) in found.reason
        assert "apt-get install libibverbs1 libnuma1 libcurl4" in found.reason

    @pytest.mark.skipif(
        not library.obstacle() and getattr(library.module(), "SUPPORT_INTRA_NVLINK", False), reason="it can, here"
    )
    def test_not_for_device_memory_with_a_variant_that_cannot_reach_it(self) -> None:
        with pytest.raises(PluginUnavailable, match="cannot reach cuda:0 memory"):
            FACTORY.open(TransportSettings(device="cuda:0"))

    @pytest.mark.parametrize("address", ["::1", "0.0.0.0", "no.such.host.invalid"])
    def test_not_at_an_address_that_peers_cannot_call(self, address: str) -> None:
        with pytest.raises(PluginUnavailable, match="transfer-engine"):
            FACTORY.open(TransportSettings(host=address))
