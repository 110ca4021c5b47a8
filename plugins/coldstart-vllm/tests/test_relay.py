"""Work is done in the thread that waits, and nobody waits for a thread that has gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from coldstart_vllm.relay import Relay

DEADLINE = 20.0


def beside(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_it_runs_in_the_serving_thread() -> None:
    relay: Relay[int] = Relay()
    found: list[int] = []

    def ask() -> None:
        found.append(relay.call(threading.get_ident))
        relay.close()

    thread = beside(ask)
    relay.serve()
    thread.join(DEADLINE)
    assert found == [threading.get_ident()]


def test_errors_go_to_who_asked() -> None:
    relay: Relay[int] = Relay()
    raised: list[Exception] = []

    def ask() -> None:
        try:
            relay.call(lambda: 1 // 0)
        except ZeroDivisionError as error:
            raised.append(error)
        relay.close()

    thread = beside(ask)
    relay.serve()
    thread.join(DEADLINE)
    assert len(raised) == 1


def test_after_the_end_nobody_is_kept_waiting() -> None:
    relay: Relay[int] = Relay()
    relay.close()
    relay.close()
    relay.serve()
    with pytest.raises(RuntimeError, match="nobody waits"):
        relay.call(lambda: 1)


def test_an_interrupted_server_refuses_what_is_queued() -> None:
    relay: Relay[int] = Relay()
    refused: list[Exception] = []

    def interrupt() -> int:
        waiting.wait(DEADLINE)
        raise KeyboardInterrupt

    def ask(function: Callable[[], int]) -> None:
        try:
            relay.call(function)
        except RuntimeError as error:
            refused.append(error)

    waiting = threading.Event()
    first = beside(lambda: ask(interrupt))
    second = beside(lambda: (ask(lambda: 1), None)[1])
    waiting.set()
    with pytest.raises(KeyboardInterrupt):
        relay.serve()
    second.join(DEADLINE)
    first.join(DEADLINE)
    assert not first.is_alive()
    assert not second.is_alive()
