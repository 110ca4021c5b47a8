"""The copies that ``coldstart bench`` compares, as they run in its child processes.

Decides how each way of bringing a checkpoint's bytes into memory is timed: plain sockets as the
limit, the tcp transport, the transport with digests as the joiner computes them, digests alone,
and ``load_file``. All but the last use the arena of the checkpoint's own layout, allocated and
touched before. What the times mean is decided in ``bench_tcp.py``.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from coldstart import config
from coldstart.cli.bench_words import Hash, Lent, Load, Plain, Pull
from coldstart.errors import ColdstartError
from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.plan import Chunks
from coldstart.ports import Grant, TransportSettings
from coldstart.transports.tcp import FACTORY

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Built

HOST = "127.0.0.1"
GRANT_SECONDS = 24 * 3600.0


class Copies:
    """One arena, and the ways to lend it or to fill it."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._whole = Span(0, built.arena.layout.nbytes)
        self._settings = TransportSettings(host=HOST, connections=config.load().connections)

    @classmethod
    async def built(cls, checkpoint: str) -> Copies:
        """An arena for ``checkpoint``, every page of it touched, no weights in it."""

        def build() -> Built:
            from coldstart.skeletons import assembly

            return assembly.build(assembly.Order(Path(checkpoint), "tensors"))

        return cls(await anyio.to_thread.run_sync(build))

    async def lend(self) -> Lent:
        """Read the weights, then serve them both ways until the process ends."""
        await self._built.storage.read([self._whole], lambda span: None)
        transport = FACTORY.open(self._settings)
        grant = Grant(transfer="bench", joiner="bench", fence=1, seconds=GRANT_SECONDS)
        ticket = await transport.offer(grant, self._built.arena)
        listener = socket.create_server((HOST, 0))
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        return Lent(listener.getsockname()[1], ticket)

    def _serve(self, listener: socket.socket) -> None:
        with self._built.arena.writing(self._whole) as (view,):  # as one piece, padding included
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(view)

    async def run(self, request: Plain | Pull | Hash) -> float:
        """Seconds that the copy, or the digests, took."""
        match request:
            case Plain(port=port):
                return await anyio.to_thread.run_sync(self._plain, port)
            case Pull(ticket=ticket, digest=False):
                return await self._pull(ticket)
            case Pull(ticket=ticket):
                return await self._pull_and_digest(ticket)
            case Hash(threads=threads):
                return await anyio.to_thread.run_sync(self._hash, threads)

    def _plain(self, port: int) -> float:
        with self._built.arena.writing(self._whole) as (left,):
            began = time.perf_counter()
            with socket.create_connection((HOST, port)) as sock:
                while len(left):
                    count = sock.recv_into(left)
                    if count == 0:
                        raise ColdstartError("the plain source ended early")
                    left = left[count:]
            return time.perf_counter() - began

    async def _pull(self, ticket: bytes) -> float:
        transport = FACTORY.open(self._settings)
        began = time.perf_counter()
        await transport.pull(ticket, [self._whole], self._built.arena, lambda span: None)
        seconds = time.perf_counter() - began
        await transport.aclose()
        return seconds

    async def _pull_and_digest(self, ticket: bytes) -> float:
        arena, digests = self._built.arena, dict[int, bytes]()
        transport = FACTORY.open(self._settings)

        async def on_chunk(chunk: int, digest: bytes) -> None:
            digests[chunk] = digest

        chunks = Chunks.first(arena.layout.chunks)
        landing = Landing(arena, self._built.digester, chunks, lambda nbytes: None, on_chunk)
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(landing.verify)
            await transport.pull(ticket, [self._whole], arena, landing.landed)
            await landing.settle()
        seconds = time.perf_counter() - began
        await transport.aclose()
        if len(digests) != len(chunks):
            raise ColdstartError(f"{len(digests)} of {len(chunks)} chunks were digested")
        return seconds

    def _hash(self, threads: int) -> float:
        arena, digester = self._built.arena, self._built.digester
        spans = [arena.layout.chunk(chunk) for chunk in range(arena.layout.chunks)]
        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            for digest in pool.map(lambda span: digester.digest(arena, span), spans):
                assert digest
            return time.perf_counter() - began


def load(request: Load) -> float:
    """Seconds until ``load_file``'s tensors are in memory; the call alone only maps the file."""
    from safetensors.torch import load_file

    began = time.perf_counter()
    tensors = load_file(request.file)
    if request.way == "copied":
        copies = [tensor.clone() for tensor in tensors.values()]
        seconds = time.perf_counter() - began
        del copies
        return seconds
    for tensor in tensors.values():
        tensor.numpy().reshape(-1).view("u1")[::4096].sum()
    return time.perf_counter() - began
