"""A real transfer through one transport, from one arena of this process into another, verified.

Decides what "this transport works here" means: the bytes of a small arena arrive, all of them, and
their digests are those of the source. Imports the arena and with it torch; ``links.py`` imports it
late and in a thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from time import perf_counter

from coldstart.arena import Arena
from coldstart.cli.checks.check import in_daemon_thread
from coldstart.digest import ChunkDigester
from coldstart.errors import IntegrityError, TransportError
from coldstart.layout import Layout, Span, Tensor, chunk_bytes_for, gaps
from coldstart.ports import Grant, Transport

MIB = 1 << 20
BYTES = 64 * MIB
GRANT_SECONDS = 30.0


async def transfer(transport: Transport, source: str, target: str, nbytes: int = BYTES) -> float:
    """Move ``nbytes`` from device ``source`` to device ``target``; returns bytes per second.

    Raises:
        TransportError: the transport refused, broke or left something out.
        IntegrityError: something else arrived.
    """
    layout = _layout(nbytes)
    lent, made = await in_daemon_thread(lambda: (_filled(layout, source), Arena(layout, target)))
    grant = Grant(f"doctor-{secrets.token_hex(8)}", "doctor", 1, GRANT_SECONDS)
    landed: list[Span] = []
    ticket = await transport.offer(grant, lent)
    began = perf_counter()
    await transport.pull(ticket, [layout.chunk(chunk) for chunk in range(layout.chunks)], made, landed.append)
    elapsed = perf_counter() - began
    await transport.revoke(grant.transfer)
    if missing := gaps(landed, Span(0, layout.nbytes)):
        raise TransportError(f"said nothing of {sum(gap.length for gap in missing)} bytes", reason="incomplete")
    await in_daemon_thread(lambda: _compare(lent, made))
    return nbytes / elapsed


def _layout(nbytes: int) -> Layout:
    tensor = Tensor("loopback", "uint8", (nbytes,), (1,), 0, 0)
    return Layout((tensor,), (nbytes,), chunk_bytes_for(nbytes))


def _filled(layout: Layout, device: str) -> Arena:
    """An arena of random bytes."""
    arena = Arena(layout, device)
    for span in _chunks(layout):
        with arena.writing(span) as views:
            for view in views:
                view[:] = secrets.token_bytes(len(view))
    return arena


def _compare(lent: Arena, made: Arena) -> None:
    digester = ChunkDigester()
    wrong = [s for s in _chunks(lent.layout) if digester.digest(lent, s) != digester.digest(made, s)]
    if wrong:
        raise IntegrityError(
            f"{len(wrong)} of {lent.layout.chunks} chunks arrived damaged, the first at byte {wrong[0].offset}"
        )


def _chunks(layout: Layout) -> Iterator[Span]:
    return (layout.chunk(index) for index in range(layout.chunks))
