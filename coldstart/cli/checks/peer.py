"""Measures every transport to one peer, with bytes of its weights that are thrown away.

Decides which peer is meant and what a measurement costs it: a slot, as long as :data:`SECONDS` or
:data:`BYTES` take. It claims as a joiner would, of that peer only, so slots, refusals and doubts count here as
they do there. What was measured is kept for the workers of this machine (``coldstart.links``). Imports torch, late.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec

from coldstart.cli.checks.check import Check, fail, in_daemon_thread, ok, warn
from coldstart.cli.output import size
from coldstart.config import Settings
from coldstart.errors import ColdstartError, TransportError
from coldstart.identity import decode_truth
from coldstart.layout import Layout, Span
from coldstart.links.memory import Links
from coldstart.links.meter import Meter
from coldstart.messages import Accept, Done, Hello, Offer, Refusal, decode, encode
from coldstart.ports import Advert, Bus, Claim, Cursor, Granted, Routing, Transport

if TYPE_CHECKING:
    from coldstart.arena import Arena

BYTES = 256 << 20
SECONDS = 1.0
ANSWER_SECONDS = 3.0
SLOT_SECONDS = 15.0

_left: list[Arena] = []
"""Memory that something may still write into: it lives as long as the process."""


class Peer(msgspec.Struct, frozen=True):
    """A worker that lends, and of which shard."""

    shard: str
    advert: Advert
    others: tuple[str, ...]
    """Workers of that shard that are not meant."""


async def find(bus: Bus, wanted: str) -> Peer | None:
    """The peer whose name, or whose host, is ``wanted``; the one with most free slots of several."""
    found: list[Peer] = []
    for shard in await bus.shards():
        adverts = await bus.adverts(shard)
        for advert in adverts:
            if wanted in (advert.worker, advert.host) and advert.have:
                others = tuple(each.worker for each in adverts if each.worker != advert.worker)
                found.append(Peer(shard, advert, others))
    return max(found, key=lambda peer: (peer.advert.slots - peer.advert.used, peer.advert.have), default=None)


async def measured(bus: Bus, peer: Peer, transport: Transport, device: str, settings: Settings) -> Check:
    """One transport to one peer, as a finding; the rate is kept if there is somewhere to."""
    title = f"link {transport.name} from {peer.advert.worker}"
    try:
        layout = await _head(bus, peer)
        target = await in_daemon_thread(lambda: _scratch(layout, device))
        meter = await _pulled(bus, peer, transport, target)
    except ColdstartError as error:
        return fail(title, error.what, error.advice or "try again; look at that worker's log")
    links = Links(settings.links_directory, target.device)
    route = transport.route if isinstance(transport, Routing) else ""
    passage = links.learn(peer.advert, transport.name, route, meter)
    if not passage.moved.rate:
        return warn(title, f"{size(meter.moved.nbytes)} came, too few to tell", "measure a peer with more weights")
    await links.flush()
    way = f" by {route}" if route not in ("", transport.name) else ""
    return ok(title, f"{size(passage.moved.rate)}/s{way} to {target.device}, {size(passage.moved.nbytes)} moved")


async def _head(bus: Bus, peer: Peer) -> Layout:
    """The layout of the first storages of the peer's weights, up to :data:`BYTES` or one storage."""
    record = await bus.fetch_truth(peer.shard, peer.advert.layout)
    if record is None:
        raise TransportError("the store has no truth for its weights, so their layout is not known", reason="layout")
    whole = decode_truth(record, shard=peer.shard).layout
    count = max(1, sum(start < BYTES for start in whole.starts))
    tensors = tuple(tensor for tensor in whole.tensors if 0 <= tensor.storage < count)
    return Layout(tensors, whole.storages[:count], whole.chunk_bytes)


def _scratch(layout: Layout, device: str) -> Arena:
    from coldstart.arena import Arena

    return Arena(layout, device)


async def _pulled(bus: Bus, peer: Peer, transport: Transport, target: Arena) -> Meter:
    """Claim, shake hands, pull for a moment, give the slot back."""
    transfer, number, inbox = secrets.token_hex(8), secrets.randbits(62), f"doctor.{secrets.token_hex(6)}"
    hello = Hello(
        transfer=transfer, joiner=inbox, number=number, layout=peer.advert.layout, transports=(transport.name,)
    )
    outcome = await bus.claim(
        Claim(
            peer.shard,
            peer.advert.layout,
            inbox,
            transfer,
            encode(hello),
            exclude=peer.others,
            transports=(transport.name,),
            slot_seconds=SLOT_SECONDS,
            lead_seconds=0.0,
        )
    )
    if not isinstance(outcome, Granted) or outcome.source.worker != peer.advert.worker:
        raise TransportError(f"{peer.advert.worker} has no free slot, or is doubted", reason="busy")
    try:
        offer = await _offered(bus, peer.shard, inbox, transfer, number)
        accept = encode(Accept(transfer=transfer, answer=offer.number + 1))
        await bus.send(peer.shard, peer.advert.inbox, accept, secrets.token_hex(8))
        return await _timed(transport, offer.ticket, target)
    finally:
        with anyio.move_on_after(ANSWER_SECONDS, shield=True):
            done = encode(Done(transfer=transfer, outcome="measured"))
            await bus.send(peer.shard, peer.advert.inbox, done, secrets.token_hex(8))
            await bus.release(peer.shard, peer.advert.worker, transfer)


async def _offered(bus: Bus, shard: str, inbox: str, transfer: str, number: int) -> Offer:
    """The peer's answer that proves that it means us."""
    cursor, until = Cursor(), time.monotonic() + ANSWER_SECONDS
    while (left := until - time.monotonic()) > 0:
        heard = await bus.listen(shard, inbox, cursor, left)
        cursor = heard.cursor
        for letter in heard.letters:
            match decode(letter.body):
                case Offer(transfer=named, answer=answer) as offer if (named, answer) == (transfer, number + 1):
                    return offer
                case Refusal(transfer=named, reason=reason) if named == transfer:
                    raise TransportError(f"it refuses: {reason}", reason="refused")
                case _:
                    pass
    raise TransportError(f"it does not answer within {ANSWER_SECONDS:g} s", reason="timeout")


async def _timed(transport: Transport, ticket: bytes, target: Arena) -> Meter:
    meter, layout = Meter(), target.layout
    with anyio.move_on_after(SECONDS) as limit:
        await transport.pull(ticket, [Span(0, min(BYTES, layout.nbytes))], target, meter.counting(lambda span: None))
    if limit.cancelled_caught and not transport.traits.abortable:
        _left.append(target)
    meter.probe = meter.moved  # nothing else was done meanwhile
    return meter
