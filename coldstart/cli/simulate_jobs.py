"""The processes among which ``coldstart simulate`` spreads its seeds, and that none of them is left behind.

Decides who plays which seed, and that outcomes come in the order of seeds however many processes
there are. Whatever way it ends, the processes are killed; should the command itself be killed, they
end with their stdin. It must not know what is made of outcomes. What a process does is in
``simulate_child.py``.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress

import msgspec

from coldstart.cli.interruption import Interruption
from coldstart.cli.simulate_words import Played, Task
from coldstart.errors import ColdstartError

AHEAD = 2
"""Seeds that a process has at one time, so that it need not wait for the next."""


class Player:
    """One process that plays seeds."""

    def __init__(self, task: Task) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coldstart.cli.simulate_child", msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends its children
        )
        self._asked: deque[int] = deque()
        self._unread = b""

    def fileno(self) -> int:
        """For ``selectors``: readable when something was played, or the process has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, seed: int) -> None:
        """Play ``seed`` after those that were asked for before."""
        pipe = self._process.stdin
        assert pipe is not None
        self._asked.append(seed)
        with suppress(BrokenPipeError):  # it has ended: played() says so
            pipe.write(b"%d\n" % seed)
            pipe.flush()

    def played(self) -> list[Played]:
        """What has come since the last look.

        Raises:
            ColdstartError: the process has ended, which it never does by itself.
        """
        data = os.read(self.fileno(), 1 << 20)
        if not data:
            raise ColdstartError(
                f"the process that played seed {self._asked[0]} ended with status {self._process.wait()}",
                advice="if it was killed for memory, give fewer --workers or --jobs",
            )
        *lines, self._unread = (self._unread + data).split(b"\n")
        for _ in lines:
            self._asked.popleft()
        return [msgspec.json.decode(line, type=Played) for line in lines]

    def end(self) -> None:
        """Kill the process; it holds nothing worth finishing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def plays(task: Task, seeds: range, *, jobs: int, stop: Interruption) -> Generator[Played, None, None]:
    """Play ``seeds`` in ``jobs`` processes; outcomes come in the order of seeds.

    After ``stop`` come those that are there already, with gaps.

    Raises:
        ColdstartError: a process ended; what others had played by then has been given.
    """
    with ExitStack() as resources:
        selector = resources.enter_context(selectors.DefaultSelector())
        selector.register(stop, selectors.EVENT_READ)
        players: list[Player] = []
        for _ in range(min(jobs, len(seeds))):
            players.append(Player(task))
            resources.callback(players[-1].end)
            selector.register(players[-1], selectors.EVENT_READ, players[-1])
        yield from _in_order(seeds, players, selector, stop)


def _in_order(
    seeds: range, players: list[Player], selector: selectors.BaseSelector, stop: Interruption
) -> Iterator[Played]:
    free, asked, window = deque(AHEAD * players), 0, 2 * AHEAD * len(players)
    early: dict[int, Played] = {}
    try:
        for given, seed in enumerate(seeds):
            while seed not in early and not stop.number:
                while free and asked < min(len(seeds), given + window):  # nobody runs ahead of the slowest for ever
                    free.popleft().ask(seeds[asked])
                    asked += 1
                for key, _ in selector.select():
                    if isinstance(key.data, Player):
                        for played in key.data.played():
                            early[played.outcome.seed] = played
                            free.append(key.data)
            if stop.number:
                break
            yield early.pop(seed)
    except ColdstartError:
        yield from (early[seed] for seed in sorted(early))
        raise
    yield from (early[seed] for seed in sorted(early))
