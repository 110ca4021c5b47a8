"""The public API: ``async with coldstart.join(...) as replica``, and ``lend`` for weights that are loaded.

Decides what a host sees and when it has to wait. Installs no signal handlers, no global
providers, and does nothing slow on the loop: building, and importing heavy libraries, happens
in worker threads (``wiring.py``). What goes on behind it is ``session.py``.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import anyio

from coldstart import arguments, config, membership
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.group import Group
from coldstart.health import Health, health_of
from coldstart.identity import Rank
from coldstart.identity import checked as checked_rank
from coldstart.phases.states import Phase
from coldstart.policies import AtOnce, Prefer, source_bound
from coldstart.ports import Bus, Consensus
from coldstart.report import Progress, Report
from coldstart.session import PROGRESS_SECONDS, Session
from coldstart.shelves.location import located
from coldstart.telemetry import logger
from coldstart.wiring import Wired

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Built, ChosenT, Module, SkeletonChoice


class Replica:
    """One worker's weights: on their way, then served and lent. Made by :func:`join`."""

    def __init__(self, worker: str, session: Session) -> None:
        self.worker = worker
        self._session = session

    @property
    def module(self) -> Module:
        """The module; its weights are right once :meth:`ready` has returned."""
        return self._wired.built.module

    @property
    def report(self) -> Report:
        """What has happened so far; final once serving."""
        return self._wired.recorder.report()

    @property
    def built(self) -> Built:
        """The module with its builder, checkpoint and memory; for tools."""
        return self._wired.built

    @property
    def phase(self) -> Phase:
        """Where the cold start stands; IDLE while the skeleton is built."""
        return self._session.phase

    @property
    def lending(self) -> int:
        """How many joiners may read these weights now."""
        wired = self._session.wired
        return len(wired.node.source.state.grants) if wired else 0

    @property
    def withheld(self) -> str:
        """Why these weights are not lent although they serve: the host changes them, or they are not what was
        verified any more (which tensor, which chunk). Empty while nothing is wrong."""
        wired = self._session.wired
        return wired.node.source.state.why if wired else ""

    @property
    def verified(self) -> bool:
        """Whether the weights are here and right, so that :attr:`module` may be used; stays true after a drain."""
        return self._session.ready.is_set() and self._session.error is None

    @property
    def draining(self) -> bool:
        """Whether the host takes it out of service: :meth:`drain` was called, or its block is being left."""
        return self._session.draining

    @property
    def health(self) -> Health:
        """How it stands, for a readiness check: quick, and without the store or a peer."""
        wired, error = self._session.wired, self._session.error
        return health_of(
            self._step(),
            verified=self.verified,
            draining=self.draining,
            path=wired.recorder.report().path if wired is not None else "none",
            error=str(error or ""),
            withheld=self.withheld,
        )

    async def ready(self) -> Report:
        """Wait for SERVE; raises the ColdstartError that the cold start failed with."""
        await self._session.ready.wait()
        if self._session.error is not None:
            raise self._session.error
        return self.report

    async def progress(self) -> AsyncIterator[Progress]:
        """Progress from now on: at every change of phase, at the first bytes of each, and some times a second.

        Ends with SERVE, FAILED or GONE.
        """
        session, told, phase, moving = self._session, -PROGRESS_SECONDS, Phase.IDLE, False
        while True:
            changed, over = session.changed, session.ready.is_set() or session.gone.is_set()
            step, now = self._step(), anyio.current_time()
            news = step.phase is not phase or (step.rate > 0) is not moving
            if over or news or (session.wired and now - told >= PROGRESS_SECONDS):
                told, phase, moving = now, step.phase, step.rate > 0
                yield step
            if over:
                return
            await changed.wait()

    async def drain(self) -> None:
        """Stop lending: withdraw now, let transfers in flight end in their time, then return.

        The module stays usable. Idempotent. Before SERVE it ends the cold start.
        """
        self._session.drain()
        await self._session.gone.wait()

    async def drained(self) -> None:
        """Wait until nothing is lent any more: after :meth:`drain`, or when an operator has asked this worker to leave
        (``coldstart drain``). The module stays usable; whether the host ends then is its own matter.

        Raises:
            ConfigError: another live worker has this one's name (``namesakes.py``), so that this one lends no more.
        """
        await self._session.gone.wait()
        if self._session.wired is not None and (lost := self._session.wired.node.lost) is not None:
            raise lost

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change the weights in place inside this block: merge an adapter, quantise, balance experts, free memory.

        The block is entered when nobody reads them any more, this worker's own digests included, and nobody is sent
        here. After it they are looked at and digested anew, in the background, and lent again only if they are where
        they were and equal what was verified; else :attr:`withheld` says which tensor is not. The worker serves on in
        either case. Weights that became others for good are not offered as another version. Blocks may be nested, or
        open in several tasks: the last one to end counts. After :meth:`drain` there is nobody to wait for.

        Raises:
            ConfigError: the weights are not here yet.
        """
        if self.phase not in (Phase.SERVE, Phase.GONE):
            raise ConfigError("weights can be changed only while serving", advice="await replica.ready() first")
        try:
            await self._session.withhold()
            yield
        finally:
            self._session.settle()

    def _step(self) -> Progress:
        session = self._session
        if session.wired is not None:
            return session.wired.recorder.progress()
        reason = str(session.error) if session.error else ""
        return Progress(session.phase, "", 0, 0, 0, 0.0, session.elapsed, 0, reason)

    @property
    def _wired(self) -> Wired:
        if self._session.wired is None:
            raise ConfigError("the skeleton is not built yet", advice="await replica.ready() first")
        return self._session.wired


@asynccontextmanager
async def join(
    checkpoint: str | Path,
    *,
    skeleton: SkeletonChoice[ChosenT] = "auto",
    dtype: str = "",
    device: str = "cpu",
    rank: Rank | None = None,
    group: Group | Literal["torchrun"] | None = None,
    consensus: Consensus | None = None,
    prefer: Prefer | None = None,
    at_once: AtOnce = source_bound,
    revision: str = "",
    worker: str = "",
    redis: str | None = None,
    settings: Settings | None = None,
    bus: Bus | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    wait: bool = True,
) -> AsyncIterator[Replica]:
    """Cold-start this process: weights from a peer, or from ``checkpoint``; then lend them.

    Args:
        checkpoint: directory with safetensors (one file or sharded) and, for ``transformers`` and
            ``diffusers``, ``config.json``; a pipeline's directory with ``model_index.json``; or one
            safetensors file. On this machine, or in an object store by its URL (``s3://``, ``gs://``, ``az://``).
        skeleton: name of an installed builder, a builder, or a function that makes the module (of the rank,
            if it has an argument);
            ``auto`` takes ``transformers`` for a checkpoint with an architecture and ``diffusers`` for one
            with a class of its, if installed.
        dtype: requested dtype, such as ``bfloat16``; empty for the checkpoint's own. A builder object has its own.
        device: ``cpu`` or ``cuda[:N]``.
        rank: coordinates in a group; only equal ranks exchange weights.
        group: the ranks that start together and act as one: they take one path, and serve together or not at
            all. ``torchrun`` reads it from the environment; so does None where ``rank`` is given and torchrun
            has started this process. A group of size 1 is none.
        prefer: which source this worker would rather have; see :mod:`coldstart.policies`.
        at_once: from how many sources a transfer should come, by how it goes; see there.
        consensus: the host's own way to have the group agree, such as :class:`coldstart.allreduce.AllReduce`; it is
            checked against the group's record, and decides alone where there is no store.
        revision: separates versions that the files alone do not tell apart.
        worker: this worker's name, unique in the fleet; made from host, process id and chance if empty. While another
            one of that name lives, this one is refused; who takes the name of a dead one is not kept waiting.
        redis: URL of the store; see :class:`coldstart.config.Settings`.
        settings: everything else; if None, read from the environment and the file of settings (``coldstart.config``).
        bus: a bus of the caller's own instead of ``redis``; not closed here.
        on_progress: called on the loop's thread with progress; must be quick, and not async.
        wait: whether entering the block waits for SERVE. If not, use :meth:`Replica.ready`.

    Raises:
        ConfigError: a setting, the checkpoint, or a name is wrong.
        ColdStartFailed, IntegrityError, SkeletonError: no path led to verified weights.
    """
    order = _Order(checkpoint, cast("SkeletonChoice[Module]", skeleton), dtype, device, rank, revision)
    others = _Others(arguments.group_of(group, rank), consensus, prefer, at_once)
    async with _replica(order, worker, redis, settings, bus, on_progress, others) as replica:
        if wait:
            await replica.ready()
        yield replica


@asynccontextmanager
async def lend(
    module: Module,
    checkpoint: str | Path,
    *,
    skeleton: SkeletonChoice[ChosenT] = "auto",
    dtype: str = "",
    device: str = "cpu",
    rank: Rank | None = None,
    group: Group | Literal["torchrun"] | None = None,
    consensus: Consensus | None = None,
    revision: str = "",
    worker: str = "",
    redis: str | None = None,
    settings: Settings | None = None,
    bus: Bus | None = None,
) -> AsyncIterator[Replica]:
    """Lend the weights of a module that was loaded in another way, from where they lie.

    For engines that load by themselves. The block is entered when every byte has been digested:
    equal to the published truth, or published as the truth where there is none yet. Before that, where storage
    is read in chunks, a sample of its tensors (4 KiB of 256 at most) is compared with the module's. Arguments as in
    :func:`join`; ``skeleton`` is the builder that a joiner of these weights will use. With ``group`` its ranks lend
    together or not at all, and wait for each other; without one each rank lends alone, also where torchrun has started
    it.

    Raises:
        SkeletonError: the module is not what the builder makes from this checkpoint.
        TruthConflict: its bytes are not those that the fleet has verified.
        ColdStartFailed: nobody has verified any, and a tensor is not what the checkpoint holds; else as :func:`join`.
        ConfigError: as :func:`join`.
    """
    given: object = module
    if given is None:  # an order without a module is one to load it
        raise ConfigError("lend was given no module", advice="load it first, or use join")
    order = _Order(checkpoint, cast("SkeletonChoice[Module]", skeleton), dtype, device, rank, revision, module)
    others = _Others(arguments.group_of(group, None), consensus)
    async with _replica(order, worker, redis, settings, bus, None, others) as replica:
        await replica.ready()
        yield replica


class _Others(NamedTuple):
    """With whom a replica acts, and whom it would rather read: what the host may say besides the settings."""

    group: Group | None = None
    consensus: Consensus | None = None
    prefer: Prefer | None = None
    at_once: AtOnce = source_bound


class _Order(NamedTuple):
    """What :class:`coldstart.skeletons.assembly.Order` is made of, before torch is imported."""

    checkpoint: str | Path
    skeleton: SkeletonChoice[Module]
    dtype: str
    device: str
    rank: Rank | None
    revision: str
    loaded: Module | None = None

    def build(self, settings: Settings) -> Built:
        """Blocks; the first call in a process imports torch."""
        digester = membership.digester(settings)
        assembly = import_module("coldstart.skeletons.assembly")
        rank = self.rank or Rank()
        order = assembly.Order(
            self.checkpoint, *self[1:4], rank, self.revision, self.loaded, settings.shelves, digester
        )
        return cast("Built", assembly.build(order))


@asynccontextmanager
async def _replica(
    order: _Order,
    worker: str,
    redis: str | None,
    settings: Settings | None,
    bus: Bus | None,
    on_progress: Callable[[Progress], None] | None,
    others: _Others,
) -> AsyncIterator[Replica]:
    """A replica under way; it is left, or closed after an error, when the block ends."""
    name = worker or _own_name()
    arguments.check_path(order.checkpoint)
    arguments.check_worker(name)
    if settings is not None and redis is not None:
        raise ConfigError("both settings and redis are given", advice="put the URL into the settings")
    located(order.checkpoint)  # a URL that is none is said before torch is imported
    arguments.check_texts(
        {"dtype": (order.dtype, "bfloat16"), "device": (order.device, "cuda:0"), "revision": (order.revision, "v2")}
    )
    arguments.check_helpers(bus, others.consensus, others.prefer, others.at_once, on_progress)
    if order.rank is not None:
        checked_rank(order.rank)
    chosen = config.checked(settings) if settings is not None else _from_surroundings(redis)
    session = Session(partial(order.build, chosen), name, order.device, chosen, bus, on_progress, *others)
    session.begin()
    try:
        yield Replica(name, session)
        await session.leave()
    finally:
        with anyio.CancelScope(shield=True):
            await session.close()


def _from_surroundings(redis: str | None) -> Settings:
    """The settings of this process; what it has misspelt among them is said, once."""
    for given, meant in config.slips().items():
        if given not in _told:
            _told.add(given)
            logger().warning("no setting of coldstart", variable=given, meant=meant)
    return config.load({"redis": redis})


_told: set[str] = set()


def _own_name() -> str:
    """Host, process, and a few letters of chance: containers that share a host's name are all process 1."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:48] or "worker"
    return f"{host}-{getpid()}-{secrets.token_hex(3)}"
