"""The cold start of one family: two processes, one store, TCP between them; and the judgement.

Worker one reads storage, worker two reads worker one. Equal means: every tensor of both has the
bytes, strides and flags of the ordinarily loaded module's, and all three answer with the same bits.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from tests.zoo.family import Family
from tests.zoo.outcome import Outcome
from tests.zoo.seen import NOTHING, Seen
from tests.zoo.worker import Order, Told, run

PATIENCE = 120.0
"""Seconds that a worker may take for one family."""


class Pair:
    """A lender and a joiner; one that dies or is silent for too long is replaced for the next family."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="zoo"))  # short enough for a socket
        self._workers: dict[str, tuple[SpawnProcess, Connection]] = {}

    def start(self, family: Family) -> Outcome:
        """Start ``family`` cold, twice, and compare."""
        directory = self._place / "model"
        directory.mkdir()
        try:
            lent = self._tell("lend", family, directory)
            joined = None if lent.error else self._tell("join", family, directory)
            self._stop("lend", "join")
        finally:
            shutil.rmtree(directory)
        return judged(family, lent, joined)

    def close(self) -> None:
        """End both processes."""
        for name in list(self._workers):
            self._end(name)
        shutil.rmtree(self._place, ignore_errors=True)

    def _tell(self, name: str, family: Family, directory: Path) -> Told:
        if name not in self._workers:
            self._workers[name] = self._spawn()
        process, connection = self._workers[name]
        try:
            connection.send(Order(name, family.name, str(directory)))  # type: ignore[arg-type]
            if connection.poll(PATIENCE):
                told: Told = connection.recv()
                return told
            words = f"said nothing for {PATIENCE:.0f} s"
        except (EOFError, OSError):
            process.join(5)
            words = f"died with exit code {process.exitcode}"
        self._end(name)
        return Told(error=f"the worker that was to {name} {words}")

    def _stop(self, *names: str) -> None:
        for name in names:
            if name in self._workers:
                self._workers[name][1].send(Order("stop"))

    def _spawn(self) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(theirs, str(self._place / "v")), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _end(self, name: str) -> None:
        process, connection = self._workers.pop(name)
        connection.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def pair() -> Iterator[Pair]:
    """Two workers for as many families as you like."""
    made = Pair()
    try:
        yield made
    finally:
        made.close()


def judged(family: Family, lent: Told, joined: Told | None) -> Outcome:
    """What the words of both workers mean."""
    ordinary, cold, last = lent.ordinary, lent.cold, joined or lent
    wrong = _refusal_wrong(family, lent) if family.refused else _wrong(lent, joined, lends=family.lends)
    return Outcome(
        name=family.name,
        library=family.library,
        kind=family.kind,
        bytes=last.bytes,
        carried=last.counts.get("carried", 0),
        recomputed=tuple(last.recomputed),
        runtime=tuple(cold.appeared) if cold else (),
        naive=lent.naive if ordinary else "",
        whole=lent.whole,
        refusal="" if wrong else family.refused,
        wrong=wrong,
        seconds=lent.seconds + (joined.seconds if joined else 0.0),
    )


def _refusal_wrong(family: Family, lent: Told) -> str:
    if not lent.error:
        return f"it was to be refused: {family.refused}"
    return "" if lent.refused and family.refused in lent.error else f"refused in other words: {lent.error}"


def _wrong(lent: Told, joined: Told | None, *, lends: bool) -> str:
    if lent.error or joined is None or joined.error:
        return lent.error or (joined.error if joined else "there was no joiner")
    if (lent.path, joined.path == "peer") != ("storage", lends):
        return f"the paths were {lent.path} and {joined.path}"
    if not (lent.verified and joined.verified and joined.bytes_peer == (joined.bytes if lends else 0)):
        return f"only {joined.bytes_peer} of {joined.bytes} bytes came verified from the peer"
    assert lent.ordinary
    return "; ".join(
        f"{who}: {found}"
        for who, cold in (("from storage", lent.cold), ("from the peer", joined.cold))
        if cold and (found := _difference(lent.ordinary, cold))
    )


def _difference(ordinary: Seen, cold: Seen) -> str:
    if len(ordinary.answers) != len(cold.answers):
        return f"it gives {len(cold.answers)} answers, not {len(ordinary.answers)}"
    if ordinary.answers != cold.answers:
        other = [i for i, (a, b) in enumerate(zip(ordinary.answers, cold.answers, strict=True)) if a != b]
        where = f"answers {other} of {len(ordinary.answers)} differ"
        return "; ".join(filter(None, (where, _names_that_differ(ordinary.state, cold.state))))
    return _names_that_differ(ordinary.state, cold.state)


def _names_that_differ(ordinary: Mapping[str, str], cold: Mapping[str, str]) -> str:
    if missing := sorted(ordinary.keys() ^ cold.keys()):
        side = "missing" if missing[0] in ordinary else "too much"
        return f"{missing[0]} is {side} (and {len(missing) - 1} more)"
    if other := sorted(name for name in ordinary if ordinary[name] not in (cold[name], NOTHING)):
        return f"{other[0]} is {cold[other[0]]}, not {ordinary[other[0]]} (and {len(other) - 1} more)"
    return ""
