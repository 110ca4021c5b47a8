"""What the operator decides: whether it runs here, how fast, and how much of a GPU it may take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coldstart_nccl import GLOO, NCCL
from coldstart_nccl.pacing import LINK_CTAS, Pace

from coldstart.errors import ConfigError, TransportError
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import Landings, grant, resources, whole


def test_gloo_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLDSTART_NCCL_GLOO", raising=False)
    assert GLOO.probe().usable is False
    assert "COLDSTART_NCCL_GLOO=1" in GLOO.probe().reason
    monkeypatch.setenv("COLDSTART_NCCL_GLOO", "1")
    assert GLOO.probe().usable is True


def only(*modules: str) -> Callable[[str], object]:
    return lambda name: object() if name in modules else None


def test_nccl_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resources()
    monkeypatch.setattr("coldstart_nccl.find_spec", only())
    assert NCCL.probe().usable is False
    assert "no module nccl.core: pip install 'coldstart-nccl[cuda13]'" in NCCL.probe().reason
    monkeypatch.setattr("coldstart_nccl.find_spec", only("nccl.core"))
    assert "no module cuda.core" in NCCL.probe().reason
    monkeypatch.setattr("coldstart_nccl.find_spec", only("nccl.core", "cuda.core", "cuda.bindings"))
    monkeypatch.setattr("coldstart_nccl.Path.exists", lambda path: False)
    assert NCCL.probe().reason == "no NVIDIA device on this machine"
    monkeypatch.setattr("coldstart_nccl.Path.exists", lambda path: True)
    assert NCCL.probe().usable is True
    assert resources() == before


def test_a_broken_installation_is_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ModuleNotFoundError("No module named 'nccl'")

    monkeypatch.setattr("coldstart_nccl.find_spec", broken)
    assert NCCL.probe().usable is False


@pytest.mark.parametrize("given", ["0", "33", "-1", "two", "1.5", "²"])
def test_a_cap_that_is_no_number_is_the_operator_s_mistake(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("COLDSTART_NCCL_CTAS", given)
    with pytest.raises(ConfigError, match="from 1 to 32"):
        NCCL.open(TransportSettings())


async def test_memory_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened for a worker on the host's memory, nccl loads nothing and moves nothing."""
    monkeypatch.delenv("COLDSTART_NCCL_CTAS", raising=False)
    layout = layout_of(10)
    transport = NCCL.open(TransportSettings(device="cpu"))
    await transport.prepare(BytesMemory(layout))
    with pytest.raises(TransportError, match="does not move cpu memory"):
        await transport.offer(grant("t"), BytesMemory(layout))
    with pytest.raises(TransportError, match="does not move cpu memory"):
        await transport.pull(b"", [whole(layout)], BytesMemory(layout), Landings())
    await transport.aclose()


class TestPace:
    def test_without_a_cap_everything_goes_at_once(self) -> None:
        pace = Pace(0.0)
        assert pace.reserve(10**12, 5.0) == 5.0
        assert pace.message_bytes(1000) == 1000
        assert pace.ctas(0) == LINK_CTAS

    def test_messages_go_one_after_the_other(self) -> None:
        pace = Pace(1000.0)
        assert [pace.reserve(500, 0.0), pace.reserve(500, 0.0), pace.reserve(1, 0.9)] == [0.0, 0.5, 1.0]
        assert pace.reserve(1, 100.0) == 100.0

    @pytest.mark.parametrize(("rate", "expected"), [(1.0, 65536), (10e6, 1_000_000), (1e15, 1 << 28)])
    def test_messages_under_a_cap_are_short(self, rate: float, expected: int) -> None:
        assert Pace(rate).message_bytes(1 << 28) == expected

    @pytest.mark.parametrize(("rate", "asked", "expected"), [(1e9, 0, 1), (35e9, 0, 1), (60e9, 0, 2), (1e9, 8, 8)])
    def test_a_cap_takes_few_thread_blocks(self, rate: float, asked: int, expected: int) -> None:
        assert Pace(rate).ctas(asked) == expected
