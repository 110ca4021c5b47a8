"""How close the tcp transport comes to a plain socket, between two processes on this machine.

Alternately copies the same bytes with one blocking socket (``sendall`` / ``recv_into``) and with
``TcpTransport.pull`` and prints both and their ratio:

    python benchmarks/tcp_pull.py --mib 1024 --rounds 5 --json
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import anyio
import msgspec

from coldstart.layout import Layout, Span, Tensor, chunk_bytes_for
from coldstart.ports import Grant, Region, TransportSettings
from coldstart.transports.tcp import FACTORY


class FlatMemory:
    """One preallocated buffer, as an arena on the CPU is."""

    device = "cpu"

    def __init__(self, size: int, fill: int) -> None:
        tensor = Tensor(name="flat", dtype="uint8", shape=(size,), stride=(1,), storage=0, offset=0)
        self.layout = Layout(tensors=(tensor,), storages=(size,), chunk_bytes=chunk_bytes_for(size))
        self.view = memoryview(bytearray([fill]) * size)

    def regions(self, span: Span) -> Sequence[Region]:
        raise NotImplementedError

    @contextmanager
    def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
        yield [self.view[span.offset : span.end]]

    writing = reading


def source(pipe: Connection, size: int) -> None:
    """The other process: serves both ways until it is told to stop."""
    memory = FlatMemory(size, fill=1)

    async def offer() -> bytes:
        grant = Grant(transfer="bench", joiner="bench", fence=1, seconds=3600)
        return await transport.offer(grant, memory)

    transport = FACTORY.open(TransportSettings())
    ticket = anyio.run(offer)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send((listener.getsockname()[1], ticket))
        while pipe.recv():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(memory.view)
    anyio.run(transport.aclose)


def plain(port: int, target: FlatMemory) -> float:
    """Seconds for one connection that is filled by one ``sendall``."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        left = target.view
        while len(left):
            count = sock.recv_into(left)
            if count == 0:
                raise ConnectionResetError("the plain source closed early")
            left = left[count:]
    return time.perf_counter() - began


def pulled(ticket: bytes, target: FlatMemory, connections: int) -> float:
    """Seconds for ``pull``, connections and admission included."""

    async def pull() -> float:
        transport = FACTORY.open(TransportSettings(connections=connections))
        began = time.perf_counter()
        await transport.pull(ticket, [Span(0, len(target.view))], target, lambda span: None)
        seconds = time.perf_counter() - began
        await transport.aclose()
        return seconds

    return anyio.run(pull)


class Result(msgspec.Struct):
    """Rates in 10^9 bytes per second."""

    mib: int
    connections: int
    plain: list[float]
    pull: list[float]
    plain_median: float
    pull_median: float
    ratio: float


def measure(mib: int, rounds: int, connections: int) -> Result:
    """Alternate both ways ``rounds`` times after one of each to warm up."""
    size = mib * 1024 * 1024
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    peer = context.Process(target=source, args=(theirs, size), daemon=True)
    peer.start()
    theirs.close()
    port, ticket = pipe.recv()
    target = FlatMemory(size, fill=2)
    by_plain: list[float] = []
    by_pull: list[float] = []
    for _ in range(rounds + 1):
        pipe.send(True)
        by_plain.append(round(size / plain(port, target) / 1e9, 3))
        by_pull.append(round(size / pulled(ticket, target, connections) / 1e9, 3))
    pipe.send(False)
    peer.join()
    del by_plain[0], by_pull[0]
    medians = statistics.median(by_plain), statistics.median(by_pull)
    return Result(mib, connections, by_plain, by_pull, *medians, round(medians[1] / medians[0], 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=TransportSettings().connections)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.mib, arguments.rounds, arguments.connections)
    if arguments.json:
        print(msgspec.json.encode(result).decode())
        return
    print(f"{arguments.mib} MiB over loopback, {arguments.connections} connections, median of {arguments.rounds}")
    print(f"  plain socket {result.plain_median:6.2f} GB/s")
    print(f"  pull         {result.pull_median:6.2f} GB/s")
    print(f"  ratio        {result.ratio:6.2f}")


if __name__ == "__main__":
    main()
