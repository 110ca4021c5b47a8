"""Performs what the joiner's machine asks for, against the ports.

Decides nothing about the path; every effect is answered with events, whatever happens, also
when a plugin is broken. How bytes move and are verified is in ``moving.py``, what goes over the bus in
``claiming.py`` and ``truths.py``. The other side is ``lending.py``; both are driven by
``runner.py`` and connected in ``node.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread
import msgspec

from coldstart import effects, events
from coldstart.beside import beside
from coldstart.claiming import Claiming
from coldstart.connections import Connections
from coldstart.effects import Effect
from coldstart.errors import BusError, ColdstartError, IntegrityError, TransportError
from coldstart.events import Event
from coldstart.group import READY
from coldstart.identity import Truth
from coldstart.layout import Span
from coldstart.links.memory import Links
from coldstart.links.meter import Meter
from coldstart.moving import Asked, Moving, reason_of
from coldstart.plan import Chunks, spans_of
from coldstart.ports import Digester, Landed, Memory, Probe, Transport
from coldstart.probing import Prober
from coldstart.telemetry import logger
from coldstart.truths import Truths
from coldstart.voting import Voting


class Storage(Protocol):
    """The checkpoint as the joiner reads it. ``partial``: only the spans asked for are touched."""

    @property
    def partial(self) -> bool: ...

    @property
    def loaded(self) -> bool:
        """Whether everything is in the memory already; ``read`` then brings nothing."""
        ...

    async def sample(self) -> None:
        """See that what is in the memory already is the checkpoint's; raises ColdstartError."""
        ...

    async def read(self, spans: Sequence[Span], landed: Landed) -> None:
        """Bring the bytes of ``spans`` into the target memory; raises ColdstartError."""
        ...


class Target(msgspec.Struct, frozen=True):
    """What is to be filled, and from which checkpoint.

    Args:
        self_check: problems of the finished module; blocks.
        replace_memory: leaves the memory to a late writer and provides fresh memory, with copies of the
            spans given; blocks.
        probe: numbers that the finished module computes, if its builder has a probe; blocks.
        mount: what the rate of this storage is remembered by; empty: it is not.
    """

    memory: Memory
    digester: Digester
    storage: Storage
    self_check: Callable[[], Sequence[str]]
    replace_memory: Callable[[Sequence[Span]], None]
    probe: Callable[[], Probe | None] | None = None
    mount: str = ""


class Joining:
    """The joiner's hands.

    Args:
        target: what is to be filled.
        claiming, truths: its dealings over the bus.
        transports: those that can serve this device, in order of preference.
        links: how fast each was, from whom.
        voting: its dealings with its group, if it has one.

    ``post`` queues an event for the joiner's machine, ``post_to_source`` for the source's; both are
    set by whoever connects the parts.
    """

    def __init__(
        self,
        target: Target,
        claiming: Claiming,
        truths: Truths,
        transports: Mapping[str, Transport],
        links: Links,
        voting: Voting | None = None,
    ) -> None:
        self._target = target
        self._claiming, self._truths = claiming, truths
        self._prober = Prober(target.probe, truths)
        self._voting = voting
        self._transports, self._links = transports, links
        self._connections = Connections(target.memory)
        self._moving = Moving(target.memory, target.digester)
        claiming.taken = self._moving.taken.__getitem__
        self._unstated: set[int] = set()
        self._stating = anyio.Lock()
        self.post_to_source: Callable[[Event], None] = lambda event: None

    @property
    def post(self) -> Callable[[Event], None]:
        """Told of what comes of effects; set by assignment."""
        return self._moving.post

    @post.setter
    def post(self, post: Callable[[Event], None]) -> None:
        self._moving.post = post

    # ------------------------------------------------------------------------------- dispatch

    async def perform(self, effect: Effect) -> None:
        """Perform one effect and post what comes of it; never raises but for cancellation."""
        try:
            await self._perform(effect)
        except Exception as error:  # a plugin may raise anything; the machine wants an event
            answer = _answer_to_failure(effect, reason_of(error))
            if not isinstance(error, ColdstartError):
                logger().error("effect broke", effect=type(effect).__name__, error=repr(error))
            elif answer is None:
                logger().warning("effect failed", effect=type(effect).__name__, error=str(error))
            if answer is not None:
                self.post(answer)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.ClaimSource():
                await self._claiming.claim(effect)
            case effects.FetchTruth(attempt=attempt, root=root):
                await self._truths.named(root)
                self.post(events.TruthReceived(attempt))
            case effects.Connect():
                await self._connect(effect)
            case effects.ShowLife():
                await self._claiming.show_life(effect)
            case effects.Pull():
                await self._pull(effect)
            case effects.ReadStorage():
                await self._read_storage(effect)
            case effects.StateDigests():
                await self._state(effect)
            case effects.Share(have=have, parts=parts):
                self.post_to_source(events.ChunksShared(have, parts))
            case effects.EndSharing():
                self.post_to_source(events.SharingEnded())
            case effects.Abandon(attempt=attempt):
                self._moving.abandon(attempt)
            case effects.Release(attempt=attempt, outcome=outcome):
                await self._connections.close(attempt)
                await self._claiming.release(attempt, outcome)
            case effects.PublishTruth(attempt=attempt):
                self.post(await self._publish(attempt))
            case effects.Check():
                self.post(await self._check(effect))
            case effects.ReplaceMemory():
                self.post(await self._replace_memory(effect))
            case effects.Strike():
                await self._claiming.strike(effect)
            case effects.Admit():
                await self._claiming.admit(effect)
            case effects.LeaveStorage():
                await self._claiming.leave_storage()
            case effects.Resign():
                await self._claiming.resign()
            case effects.Vote():
                await self._vote(effect)
            case effects.StartLending():
                self.post_to_source(events.LendingStarted())
            case effects.StopLending():
                self.post_to_source(events.DrainRequested())
            case _:
                raise AssertionError(f"not an effect of the joiner: {effect}")

    # --------------------------------------------------------------------------- transfer, storage

    def _offered(self, effect: effects.Connect | effects.Pull) -> Transport:
        transport = self._transports.get(effect.transport)
        if transport is None:
            what = f"{effect.source.worker} offers {effect.transport}, which we do not have"
            raise TransportError(what, reason="offer")
        return transport

    async def _connect(self, effect: effects.Connect) -> None:
        if await self._connections.open(effect.attempt, self._offered(effect), effect.ticket):
            self.post(events.Connected(effect.attempt))

    async def _pull(self, effect: effects.Pull) -> None:
        transport = self._offered(effect)
        if self._truths.known is None:
            root = await self._truths.learn(effect.chunks)
            if root:
                self.post(events.TruthReceived(effect.attempt, root))
        chunks = Chunks.of(chunk for chunk in effect.chunks if self._truths.expected(chunk) is not None)
        asked = Asked(transport, effect.ticket, effect.chunks)
        if await self._moving.joined(effect.attempt, asked, chunks):
            return
        spans, meter = self._spans(chunks), self._links.meter(effect.source, effect.transport)

        async def move(landed: Landed) -> None:
            if spans and await self._connections.open(effect.attempt, transport, effect.ticket):
                await transport.pull(effect.ticket, spans, self._target.memory, meter.counting(landed))

        ended = await self._moving.pull(effect.attempt, asked, chunks, move, self._truths.expected, meter)
        whole = effect.source.have >= effect.source.total
        sound = whole and not ended.reason and not meter.doubted
        passage = self._links.learn(effect.source, effect.transport, ended.route, meter, sound=sound)
        self.post(msgspec.structs.replace(ended, passage=passage))

    async def _read_storage(self, effect: effects.ReadStorage) -> None:
        target, truth = self._target, None
        if effect.root or target.storage.loaded:
            try:
                truth = await self._known_truth(effect)
            except (BusError, IntegrityError) as error:  # no reason not to start from our own storage
                self.post(events.TruthMissed(effect.attempt, str(error)))
        spans, meter = self._spans(effect.chunks), Meter()

        async def move(landed: Landed) -> None:
            if truth is None:  # what is here is about to become it
                await target.storage.sample()
            await target.storage.read(spans, meter.counting(landed))

        progress = (lambda: self._moving.landed) if target.storage.partial else None
        async with beside(partial(self._claiming.keep_lead, progress)):
            digests = None if truth is None else truth.digest
            ended = await self._moving.read(effect.attempt, effect.chunks, move, digests, meter)
        if not (ended.reason or target.storage.loaded):
            self._links.learn_storage(target.mount, meter)
        self.post(ended)

    async def _known_truth(self, effect: effects.ReadStorage) -> Truth | None:
        """The truth that the machine named; for memory that was filled by others, any that is published."""
        if effect.root:
            return await self._truths.named(effect.root)
        truth = await self._truths.published_now()
        if truth is not None:
            self.post(events.TruthReceived(effect.attempt, truth.root))
        return truth

    async def _state(self, effect: effects.StateDigests) -> None:
        """State the digests of what we have read; one call for all that come while another is on its way."""
        self._unstated.update(effect.chunks)
        async with self._stating:
            digests = {chunk: self._moving.digests[chunk] for chunk in sorted(self._unstated)}
            if not digests:
                return
            self._unstated.clear()
            if await self._truths.state(digests):
                self.post(events.DigestsStated(effect.attempt, Chunks.of(digests)))
            else:
                reason = "another reader of storage has stated other digests"
                self.post(events.StatementRefused(effect.attempt, reason))

    def _spans(self, chunks: Chunks) -> tuple[Span, ...]:
        return spans_of(self._target.memory.layout, chunks)

    async def _replace_memory(self, effect: effects.ReplaceMemory) -> Event:
        """A late writer may have been faster than the copy: what was taken along is verified again."""
        target, kept = self._target, Chunks()
        await anyio.to_thread.run_sync(target.replace_memory, self._spans(effect.keep))
        for chunk in effect.keep:
            span = target.memory.layout.chunk(chunk)
            digest = await anyio.to_thread.run_sync(target.digester.digest, target.memory, span)
            if self._truths.expected(chunk) == digest:
                kept = kept.add(chunk)
        return events.MemoryReplaced(effect.attempt, kept)

    # ------------------------------------------------------------------------------------- verify

    async def _publish(self, attempt: int) -> Event:
        async with beside(self._claiming.keep_lead):
            probe = await self._prober.numbers()
        digests = [self._moving.digests[chunk] for chunk in range(self._target.memory.layout.chunks)]
        truth = self._truths.make(digests, probe)
        roots = await self._truths.publish()
        if roots == (truth.root,):
            return events.TruthPublished(attempt, truth.root)
        return events.TruthConflicted(attempt, roots)

    async def _check(self, effect: effects.Check) -> Event:
        await self._connections.close(effect.attempt)
        if effect.source is not None:
            changed = await self._claiming.changed(effect.attempt, effect.source)
            if changed:
                return events.SourceChanged(effect.attempt, effect.source.worker, changed)
        if not self._proven():
            return events.CheckFailed(effect.attempt, "what was stated before the truth was known does not equal it")
        async with beside(self._claiming.keep_lead):
            problems = await anyio.to_thread.run_sync(self._target.self_check)
            if problems:
                return events.CheckFailed(effect.attempt, "; ".join(problems[:5]))
            probe = await self._prober.compared()
        if probe.refusal:
            return events.CheckFailed(effect.attempt, probe.refusal)
        return events.CheckPassed(effect.attempt, probe.said)

    def _proven(self) -> bool:
        """Whether every chunk has the truth's digest, whoever told us what it was when the chunk arrived."""
        truth, chunks = self._truths.known, range(self._target.memory.layout.chunks)
        return truth is not None and all(self._moving.digests.get(chunk) == truth.digest(chunk) for chunk in chunks)

    async def _vote(self, effect: effects.Vote) -> None:
        """Give the answer; until the group may serve, followers of ours go on waiting for us."""
        assert self._voting is not None, "only a rank of a group is asked"
        if effect.question == READY and effect.yes:
            async with beside(self._claiming.keep_lead):
                await self._voting.vote(effect)
                await self._voting.settled.wait()
        else:
            await self._voting.vote(effect)


def _answer_to_failure(effect: Effect, reason: str) -> Event | None:
    """What the machine hears when an effect could not be performed."""
    match effect:
        case effects.ClaimSource(attempt=attempt):
            return events.ClaimFailed(attempt, reason)
        case effects.Connect(attempt=attempt):
            return events.ConnectFailed(attempt, reason)
        case effects.Admit(attempt=attempt):
            return events.StorageRefused(attempt)
        case effects.FetchTruth(attempt=attempt):
            return events.TruthMissed(attempt, reason)
        case effects.Pull(attempt=attempt, chunks=chunks):
            return events.PullEnded(attempt, reason, chunks=chunks)
        case effects.ReadStorage(attempt=attempt):
            return events.PullEnded(attempt, reason)
        case effects.ReplaceMemory(attempt=attempt):
            return events.MemoryRefused(attempt, reason)
        case effects.PublishTruth(attempt=attempt):
            return events.TruthUnpublished(attempt, reason)
        case effects.Check(attempt=attempt):
            return events.CheckFailed(attempt, reason)
        case effects.Vote():
            return events.GroupLost(reason)
        case _:
            return None
