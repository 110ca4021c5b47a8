"""Performs what the joiner's machine asks for, against the ports.

Decides nothing about the path; every effect is answered with events, whatever happens, also
when a plugin is broken. It knows ports, messages and identities, no adapter. The other side is
``lending.py``; both are driven by ``runner.py`` and wired in ``replica.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, assert_never

import anyio
import anyio.to_thread
import msgspec

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.errors import BusError, ColdstartError, IntegrityError, TransportError
from coldstart.events import AttemptEvent, Event
from coldstart.identity import DIGEST_BYTES, Shard, Truth, decode_truth
from coldstart.landing import Landing
from coldstart.layout import Span, differences
from coldstart.messages import Accept, Done, Hello, Offer, Refusal, encode
from coldstart.plan import Chunks, spans_of
from coldstart.ports import (
    Advert,
    Bus,
    Claim,
    Conflicted,
    Deferred,
    Digester,
    Elected,
    Granted,
    Landed,
    Memory,
    Skip,
    Transport,
)
from coldstart.telemetry import logger

LEAD_SECONDS = 3.0
SLOT_SECONDS = 30.0
SIGN_OF_LIFE = 4.0
"""A joiner says that it is alive so often; sources wait several times as long."""


class Worker(msgspec.Struct, frozen=True):
    """Who we are: a name that may return, and an incarnation that never does."""

    name: str
    incarnation: str

    @property
    def inbox(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Storage(Protocol):
    """The checkpoint as the joiner reads it. ``partial``: only the spans asked for are touched."""

    @property
    def partial(self) -> bool: ...

    async def read(self, spans: Sequence[Span], landed: Landed) -> None:
        """Bring the bytes of ``spans`` into the target memory; raises ColdstartError."""
        ...


class _Transfer(msgspec.Struct):
    """One claim of ours, as we remember it."""

    ident: str
    number: int
    source: Advert | None = None
    early: list[AttemptEvent] | None = []
    """Letters of a source that was faster than the answer to the claim; None once that is here."""


class Joining:
    """The joiner's hands.

    Args:
        bus: None when there is no coordination; ``no_bus`` says why.
        transports: those that can serve this device, in order of preference.
        post: queues an event for the joiner's machine.
        carrier: the current trace context, for the source.
        self_check: problems of the finished module; blocks.
        replace_memory: leaves the target to a late writer and provides fresh memory; blocks.
        start_lending, stop_lending: reach the source's machine.
    """

    def __init__(
        self,
        *,
        shard: Shard,
        worker: Worker,
        bus: Bus | None,
        no_bus: str,
        transports: Mapping[str, Transport],
        memory: Memory,
        digester: Digester,
        storage: Storage,
        self_check: Callable[[], Sequence[str]],
        carrier: Callable[[], str],
        replace_memory: Callable[[], None],
        start_lending: Callable[[], None],
        stop_lending: Callable[[], None],
    ) -> None:
        self._shard, self._worker = shard, worker
        self._bus, self._no_bus = bus, no_bus
        self._transports = transports
        self._memory, self._digester, self._storage = memory, digester, storage
        self._self_check = self_check
        self._carrier = carrier
        self._replace_memory = replace_memory
        self._start_lending, self._stop_lending = start_lending, stop_lending
        self._transfers: dict[int, _Transfer] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._digests: dict[int, bytes] = {}
        self._landed = 0
        self._leading = False
        self.truth: Truth | None = None
        self.post: Callable[[Event], None] = lambda event: None

    # ------------------------------------------------------------------------------- dispatch

    async def perform(self, effect: Effect) -> None:
        """Perform one effect and post what comes of it; never raises but for cancellation."""
        try:
            await self._perform(effect)
        except Exception as error:  # a plugin may raise anything; the machine wants an event
            answers = _answers_to_failure(effect, _reason_of(error))
            if not isinstance(error, ColdstartError):
                logger().error("effect broke", effect=type(effect).__name__, error=repr(error))
            elif not answers:
                logger().warning("effect failed", effect=type(effect).__name__, error=str(error))
            for event in answers:
                self.post(event)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.ClaimSource():
                await self._claim(effect)
            case effects.FetchTruth():
                await self._fetch_truth(effect)
            case effects.Pull():
                await self._pull(effect)
            case effects.ReadStorage():
                await self._read_storage(effect)
            case effects.Abandon(attempt=attempt):
                self._abandon(attempt)
            case effects.Release(attempt=attempt, outcome=outcome):
                await self._release(attempt, outcome)
            case effects.PublishTruth(attempt=attempt):
                self.post(await self._publish(attempt))
            case effects.Check():
                await self._check(effect)
            case effects.ReplaceMemory(attempt=attempt):
                await anyio.to_thread.run_sync(self._replace_memory)
                self.post(events.MemoryReplaced(attempt))
            case effects.Resign():
                await self.resign()
            case effects.StartLending():
                self._start_lending()
            case effects.StopLending():
                self._stop_lending()
            case _:
                raise AssertionError(f"not an effect of the joiner: {effect}")

    # ------------------------------------------------------------------------ discover, handshake

    async def _claim(self, effect: effects.ClaimSource) -> None:
        bus, attempt = self._bus, effect.attempt
        if bus is None:
            self.post(events.ClaimFailed(attempt, self._no_bus))
            return
        transfer = _Transfer(secrets.token_hex(8), secrets.randbits(62))
        self._transfers[attempt] = transfer
        layout = self._memory.layout.digest
        hello = Hello(
            transfer=transfer.ident,
            joiner=self._worker.inbox,
            number=transfer.number,
            layout=layout,
            transports=tuple(self._transports),
            trace=self._carrier(),
        )
        outcome = await bus.claim(
            Claim(
                shard=self._shard.key,
                layout=layout,
                worker=self._worker.name,
                transfer=transfer.ident,
                hello=encode(hello),
                exclude=(self._worker.name, *effect.exclude),
                transports=tuple(self._transports),
                slot_seconds=SLOT_SECONDS,
                lead_seconds=LEAD_SECONDS,
                luck=secrets.randbelow(2**31),
            )
        )
        match outcome:
            case Granted():
                transfer.source = outcome.source
                self.post(events.SourceClaimed(attempt, outcome.source, outcome.root, outcome.skipped))
            case Elected():
                self._leading = True
                skipped = await self._explained(bus, outcome.skipped)
                self.post(events.LoaderElected(attempt, outcome.root, skipped))
            case Deferred():
                self.post(events.ClaimDeferred(attempt, outcome.leader, outcome.skipped))
            case Conflicted():
                self.post(events.TruthDisputed(attempt, outcome.roots))
            case _:
                assert_never(outcome)
        early, transfer.early = transfer.early or (), None
        for event in early:
            self.post(event)

    async def _explained(self, bus: Bus, skipped: Sequence[Skip]) -> tuple[Skip, ...]:
        """``skipped`` with the first differences in words where the layout was the reason."""
        explained: list[Skip] = []
        words: dict[str, str] = {}
        for skip in skipped:
            if skip.reason == "layout" and skip.layout not in words:
                words[skip.layout] = await self._compared(bus, skip.layout)
            reason = f"layout differs: {words[skip.layout]}" if skip.reason == "layout" else skip.reason
            explained.append(msgspec.structs.replace(skip, reason=reason))
        return tuple(explained)

    async def _compared(self, bus: Bus, layout: str) -> str:
        try:
            data = await bus.fetch_truth(self._shard.key, layout)
            theirs = msgspec.msgpack.decode(data or b"", type=Truth).layout
        except (BusError, msgspec.DecodeError):
            return f"theirs is {layout[:8]}, ours {self._memory.layout.digest[:8]}"
        found = "; ".join(differences(self._memory.layout, theirs))
        logger().warning("layout differs", shard=str(self._shard), differences=found)
        return found

    async def _fetch_truth(self, effect: effects.FetchTruth) -> None:
        await self._truth_of(effect.root)
        self.post(events.TruthReceived(effect.attempt))

    async def _truth_of(self, root: str) -> Truth:
        """The truth called ``root``; raises IntegrityError or BusError."""
        if self.truth is not None and self.truth.root == root:
            return self.truth
        if self._bus is None:
            raise BusError(self._no_bus)
        layout = self._memory.layout
        data = await self._bus.fetch_truth(self._shard.key, layout.digest)
        if data is None:
            raise IntegrityError(f"the truth of {self._shard} is announced but missing")
        truth = decode_truth(data, shard=self._shard.key, root=root)
        if truth.layout != layout:
            raise IntegrityError(f"layout differs: {'; '.join(differences(layout, truth.layout))}")
        if truth.algorithm != self._digester.algorithm:
            ours = self._digester.algorithm
            raise IntegrityError(f"truth is in {truth.algorithm} digests, this worker computes {ours}")
        self.truth = truth
        return truth

    def letter(self, message: Offer | Refusal) -> None:
        """A source's letter: an event if it proves that it means a transfer of ours, else nothing."""
        for attempt, transfer in self._transfers.items():
            if transfer.ident == message.transfer and message.answer == transfer.number + 1:
                event = _event_of(message, attempt)
                if transfer.early is None:
                    self.post(event)
                else:
                    transfer.early.append(event)
                return
        logger().warning("stray letter dropped", transfer=message.transfer, type=type(message).__name__)

    # --------------------------------------------------------------------------- transfer, storage

    async def _pull(self, effect: effects.Pull) -> None:
        truth, transport = self.truth, self._transports.get(effect.transport)
        if truth is None or transport is None:
            what = f"{effect.source.worker} offers {effect.transport}, which we do not have"
            raise TransportError(what, reason="offer")
        spans = spans_of(self._memory.layout, effect.chunks)

        async def move(landed: Landed) -> None:
            await transport.pull(effect.ticket, spans, self._memory, landed)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_life, effect)
            await self._land(effect.attempt, effect.chunks, move, truth, quiet_after_cancel=transport.traits.abortable)
            tasks.cancel_scope.cancel()

    async def _read_storage(self, effect: effects.ReadStorage) -> None:
        truth: Truth | None = None
        if effect.root:
            try:
                truth = await self._truth_of(effect.root)
            except (BusError, IntegrityError) as error:  # no reason not to start from our own storage
                self.post(events.TruthMissed(effect.attempt, str(error)))
        # A reader that touches everything makes even verified chunks unproven again.
        chunks = effect.chunks if self._storage.partial else Chunks.first(self._memory.layout.chunks)
        spans = spans_of(self._memory.layout, chunks)

        async def move(landed: Landed) -> None:
            await self._storage.read(spans, landed)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_lead, self._storage.partial)
            await self._land(effect.attempt, chunks, move, truth, quiet_after_cancel=True)
            tasks.cancel_scope.cancel()

    async def _land(
        self,
        attempt: int,
        chunks: Chunks,
        move: Callable[[Landed], Awaitable[None]],
        truth: Truth | None,
        *,
        quiet_after_cancel: bool,
    ) -> None:
        """Move bytes and verify chunks side by side; ends with exactly one PullEnded."""
        broken: list[str] = []

        def on_bytes(nbytes: int) -> None:
            self._landed += nbytes
            self.post(events.BytesLanded(attempt, nbytes))

        async def on_chunk(chunk: int, digest: bytes) -> None:
            self._digests[chunk] = digest
            if truth is not None and truth.digest(chunk) != digest:
                self.post(events.ChunkCorrupted(attempt, chunk))
            else:
                self.post(events.ChunkVerified(attempt, chunk))

        async def verify() -> None:
            try:
                await landing.verify()
            except Exception as error:  # a digester may raise anything
                logger().error("digest broke", error=repr(error))
                broken.append(f"digest broke: {_reason_of(error)}")
                self._abandon(attempt)

        landing = Landing(self._memory, self._digester, chunks, on_bytes, on_chunk)
        reason = "abandoned"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(verify)
            with anyio.CancelScope() as scope:
                self._scopes[attempt] = scope
                reason = await _outcome(move, landing.landed)
            del self._scopes[attempt]
            await landing.settle()
        reason = broken[0] if broken else reason
        self.post(events.PullEnded(attempt, reason, quiet_after_cancel or not scope.cancelled_caught))

    def _abandon(self, attempt: int) -> None:
        scope = self._scopes.get(attempt)
        if scope is not None:
            scope.cancel()

    async def _show_life(self, effect: effects.Pull) -> None:
        """Accept the offer, and again while the pull goes on. A running pull needs no bus."""
        transfer = self._transfers[effect.attempt]
        accept = encode(Accept(transfer=transfer.ident, answer=effect.number + 1))
        while self._bus is not None:
            try:
                await self._bus.send(self._shard.key, effect.source.inbox, accept, secrets.token_hex(8))
            except BusError as error:
                logger().warning("sign of life not sent", source=effect.source.worker, error=str(error))
            await anyio.sleep(SIGN_OF_LIFE)

    # ------------------------------------------------------------------------------ verify, the end

    async def _publish(self, attempt: int) -> Event:
        layout = self._memory.layout
        digests = b"".join(self._digests[chunk] for chunk in range(layout.chunks))
        assert len(digests) == layout.chunks * DIGEST_BYTES
        truth = Truth(self._shard.key, layout, self._digester.algorithm, digests)
        self.truth = truth
        if self._bus is None:
            return events.TruthUnpublished(attempt, self._no_bus)
        try:
            roots = await self._bus.publish_truth(self._shard.key, layout.digest, truth.root, truth.encode())
        except BusError as error:
            return events.TruthUnpublished(attempt, str(error))
        if roots == (truth.root,):
            return events.TruthPublished(attempt, truth.root)
        return events.TruthConflicted(attempt, tuple(roots))

    async def _check(self, effect: effects.Check) -> None:
        if effect.source is not None:
            changed = await self._released(effect.attempt, effect.source)
            if changed:
                self.post(events.SourceChanged(effect.attempt, effect.source.worker, changed))
                return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_lead)
            problems = await anyio.to_thread.run_sync(self._self_check)
            tasks.cancel_scope.cancel()
        if problems:
            self.post(events.CheckFailed(effect.attempt, "; ".join(problems[:5])))
        else:
            self.post(events.CheckPassed(effect.attempt))

    async def _released(self, attempt: int, source: Advert) -> str:
        """Give the slot back; returns how the source changed since the claim, if it did.

        A source that is gone or a bus that is down cannot tell; the digests have told already.
        """
        try:
            now = await self._release(attempt, "ok")
        except BusError:
            return ""
        if now is None or now.incarnation != source.incarnation:
            return ""
        if now.generation != source.generation:
            return f"weights of {source.worker} changed while they were read"
        return ""

    async def _release(self, attempt: int, outcome: str) -> Advert | None:
        transfer = self._transfers.get(attempt)
        if transfer is None or transfer.source is None or self._bus is None:
            return None
        source, transfer.source = transfer.source, None
        done = encode(Done(transfer=transfer.ident, outcome=outcome[:512]))
        try:  # before the release: whoever gets the slot must find it free at the source, too
            await self._bus.send(self._shard.key, source.inbox, done, secrets.token_hex(8))
        except BusError as error:
            logger().warning("source not told of the end", source=source.worker, error=str(error))
        return await self._bus.release(self._shard.key, source.worker, transfer.ident)

    async def _keep_lead(self, while_bytes_land: bool = False) -> None:
        """Others must go on waiting for us until the first advert, as long as we get on.

        A final check, or a loader that shows no progress, has a limit of its own.
        """
        seen = -1
        while True:
            if self._leading and not (while_bytes_land and self._landed == seen):
                seen = self._landed
                await self._renew_lead()
            await anyio.sleep(LEAD_SECONDS / 3)

    async def _renew_lead(self) -> None:
        if self._bus is not None:
            try:
                await self._bus.lead(self._shard.key, self._memory.layout.digest, self._worker.name, LEAD_SECONDS)
            except BusError as error:
                logger().warning("loader's lease not renewed", error=str(error))

    async def resign(self) -> None:
        """Give up the loader's lease: others may read storage, or find us advertised."""
        if self._leading and self._bus is not None:
            self._leading = False
            await self._bus.lead(self._shard.key, self._memory.layout.digest, self._worker.name, 0)


async def _outcome(move: Callable[[Landed], Awaitable[None]], landed: Landed) -> str:
    """Move the bytes; returns why it ended, or nothing."""
    try:
        await move(landed)
    except ColdstartError as error:
        return _reason_of(error)
    except Exception as error:  # a transport may raise anything
        logger().error("transport broke", error=repr(error))
        return _reason_of(error)
    return ""


def _reason_of(error: Exception) -> str:
    """What happened, in one line; a group of one is what is in it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return str(error) if isinstance(error, ColdstartError) else f"{type(error).__name__}: {error}"


def _event_of(message: Offer | Refusal, attempt: int) -> AttemptEvent:
    match message:
        case Offer():
            return events.OfferReceived(attempt, message.transport, message.ticket, message.number)
        case Refusal():
            return events.OfferRefused(attempt, message.reason)
        case _:
            assert_never(message)


def _answers_to_failure(effect: Effect, reason: str) -> tuple[Event, ...]:
    """What the machine hears when an effect could not be performed."""
    match effect:
        case effects.ClaimSource(attempt=attempt):
            return (events.ClaimFailed(attempt, reason),)
        case effects.FetchTruth(attempt=attempt):
            return (events.TruthMissed(attempt, reason),)
        case effects.Pull(attempt=attempt) | effects.ReadStorage(attempt=attempt):
            return (events.PullEnded(attempt, reason),)
        case effects.PublishTruth(attempt=attempt):
            return (events.TruthUnpublished(attempt, reason),)
        case effects.Check(attempt=attempt):
            return (events.CheckFailed(attempt, reason),)
        case _:
            return ()
