"""Sources whose weights become others while they lend: they withdraw by themselves, and nobody else does.

Real workers, store and sockets in one process. What a host does to its weights is done to real modules.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import coldstart
from coldstart import config
from coldstart.config import Settings
from coldstart.digest import ChunkDigester
from coldstart.layout import Span
from coldstart.phases.states import Phase
from coldstart.ports import Memory
from coldstart.replica import Replica
from coldstart.source import Mode, Source

SECONDS = 20.0
"""Deadline for what takes one pass, of half a second here, on a machine that does other things meanwhile."""


class Served(nn.Module):
    """A layer, experts, and a forward that keeps count of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(300, 1000, bias=False)
        self.norm = nn.BatchNorm1d(1000)
        self.experts = nn.Parameter(torch.empty(4, 200, 1000))
        self.register_buffer("seen", torch.zeros(1000))
        self.counting = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.layer(x))
        if self.counting:
            self.seen.add_(hidden.sum(0))
        return hidden @ self.experts[0].T


class Adapter(nn.Module):
    """What an adapter library puts around a layer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base
        self.delta = nn.Linear(300, 1000, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.delta(x)


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    directory = str(tmp_path_factory.mktemp("v"))
    return config.load({"directory": directory, "drain": 2.0, "scrub": 0.5, "scrub_share": 0.5}, environ={})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    module = Served()
    nn.init.normal_(module.experts)
    path = tmp_path / "model"
    path.mkdir()
    save_file(module.state_dict(), path / "model.safetensors")
    return path


def join(checkpoint: Path, worker: str, settings: Settings) -> AbstractAsyncContextManager[Replica]:
    return coldstart.join(checkpoint, skeleton=Served, worker=worker, settings=settings)


def source(replica: Replica) -> Source:
    assert replica._session.wired is not None
    return replica._session.wired.node.source.state


async def until(replica: Replica, reached: Callable[[Source], bool]) -> None:
    """Wait for a state of the replica's source."""
    with anyio.fail_after(SECONDS):
        while not reached(source(replica)):
            await replica._session.changed.wait()


async def passes(replica: Replica, count: int) -> None:
    """Wait until everything has been digested anew ``count`` times, from now."""
    chunks = replica.built.arena.layout.chunks
    turns, last = 0, source(replica).scrubbing

    def counted(state: Source) -> bool:
        nonlocal turns, last
        turns += state.scrubbing.due != last.due
        last = state.scrubbing
        return turns > count * chunks or state.mode is Mode.WITHHELD

    await until(replica, counted)


def assert_right(module: nn.Module, checkpoint: Path) -> None:
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(module.state_dict()[name], tensor), name


# ----------------------------------------------------------------------------- what a host may do

Change = Callable[[Served], object]


def quantise(module: Served) -> None:
    weight = module.layer.weight.data
    scale = weight.abs().max() / 7
    weight.copy_((weight / scale).round() * scale)


def quantise_into_others(module: Served) -> None:
    weight = module.layer.weight.detach()
    module.layer.weight = nn.Parameter((weight * 100).to(torch.int8), requires_grad=False)


def merge(module: Served) -> None:
    with torch.no_grad():
        module.layer.weight.add_(torch.randn(1000, 4) @ torch.randn(4, 300))


def merge_unseen(module: Served) -> None:
    module.layer.weight.data += torch.randn(1000, 4) @ torch.randn(4, 300)


def reload(module: Served) -> None:
    module.load_state_dict({name: tensor + 1 for name, tensor in module.state_dict().items()})


def reload_unseen(module: Served) -> None:
    for tensor in module.state_dict().values():
        tensor.data.copy_(tensor + 1)


def swap_experts(module: Served) -> None:
    with torch.inference_mode():
        module.experts[[0, 3]] = module.experts[[3, 0]]


def swap_experts_unseen(module: Served) -> None:
    rows = module.experts.detach().numpy()
    rows[[0, 3]] = rows[[3, 0]]


def serve_counting(module: Served) -> None:
    module.counting = True
    with torch.inference_mode():
        module(torch.randn(8, 300))


def serve_in_training_mode(module: Served) -> None:
    module.train()
    with torch.inference_mode():
        module(torch.randn(8, 300))


def replace_layer(module: Served) -> None:
    module.layer = nn.Linear(300, 1000, bias=False)


def remake_parameter(module: Served) -> None:
    module.experts = nn.Parameter(module.experts.detach().clone())


def give_other_memory(module: Served) -> None:
    module.experts.data = module.experts.detach().clone()


def free(module: Served) -> None:
    module.to("meta")


CHANGES: dict[Change, str] = {
    quantise: "layer.weight) is not what was verified",
    quantise_into_others: "layer.weight was taken out of the module, or replaced",
    merge: "layer.weight) is not what was verified",
    merge_unseen: "layer.weight) is not what was verified",
    reload: "chunk 0 (experts) is not what was verified",
    reload_unseen: "is not what was verified",
    swap_experts: "(experts) is not what was verified",
    swap_experts_unseen: "(experts) is not what was verified",
    serve_counting: "(seen",
    serve_in_training_mode: "(norm.num_batches_tracked",
    replace_layer: "layer.weight was taken out of the module, or replaced",
    remake_parameter: "experts was taken out of the module, or replaced",
    give_other_memory: "experts was given other memory",
    nn.Module.half: "became float16",
    free: "was taken out of the module, or replaced",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_source_that_changed_without_a_word_withdraws(
    change: Change, settings: Settings, checkpoint: Path
) -> None:
    async with join(checkpoint, "a", settings) as first, join(checkpoint, "b", settings) as second:
        change(first.module)
        await until(first, lambda state: bool(state.why))
        assert CHANGES[change] in first.withheld
        assert (first.phase, source(first).mode) == (Phase.SERVE, Mode.WITHHELD), "its host goes on"
        async with join(checkpoint, "c", settings) as third:
            assert (third.report.sources, third.report.detours) == (("b",), ())
            assert_right(third.module, checkpoint)
        await passes(second, 1)
        assert second.withheld == ""


async def test_without_another_source_the_next_joiner_reads_storage(settings: Settings, checkpoint: Path) -> None:
    async with join(checkpoint, "a", settings) as first:
        merge(first.module)
        await until(first, lambda state: bool(state.why))
        async with join(checkpoint, "b", settings) as second:
            assert (second.report.path, second.report.detours) == ("storage", ())
            assert_right(second.module, checkpoint)


def wrap(module: Served) -> None:
    module.layer = Adapter(module.layer)


def serve(module: Served) -> None:
    with torch.inference_mode():
        module(torch.randn(8, 300))


def write_the_same(module: Served) -> None:
    module.load_state_dict({name: tensor.clone() for name, tensor in module.state_dict().items()})


def add_and_subtract_nothing(module: Served) -> None:
    with torch.no_grad():
        module.experts.mul_(1)


@pytest.mark.parametrize("use", [wrap, serve, write_the_same, add_and_subtract_nothing], ids=lambda use: use.__name__)
async def test_a_source_whose_bytes_did_not_change_goes_on_lending(
    use: Change, settings: Settings, checkpoint: Path
) -> None:
    async with join(checkpoint, "a", settings) as first:
        use(first.module)
        await passes(first, 2)
        assert (source(first).mode, source(first).generation, first.withheld) == (Mode.OPEN, 1, "")
        async with join(checkpoint, "b", settings) as second:
            assert (second.report.sources, second.report.detours) == (("a",), ())


@pytest.mark.parametrize("change", [merge, swap_experts, remake_parameter, give_other_memory, free])
async def test_without_scrubbing_a_look_before_each_offer_finds_it(
    change: Change, settings: Settings, checkpoint: Path
) -> None:
    never = msgspec.structs.replace(settings, scrub=0.0)
    async with join(checkpoint, "a", never) as first:
        change(first.module)
        async with join(checkpoint, "b", never) as second:
            assert (second.report.path, second.report.bytes_peer) == ("storage", 0)
            assert any(reason.startswith("a: ") for reason in second.report.detours)
            assert CHANGES[change] in first.withheld
            assert_right(second.module, checkpoint)


# ------------------------------------------------------------------------------- lent in place


@asynccontextmanager
async def lent(checkpoint: Path, settings: Settings) -> AsyncIterator[Replica]:
    module = Served()
    module.load_state_dict(load_file(checkpoint / "model.safetensors"))
    module.eval()
    async with coldstart.lend(module, checkpoint, skeleton=Served, worker="engine", settings=settings) as replica:
        yield replica


def free_storage(module: Served) -> None:
    module.experts.untyped_storage().resize_(0)


@pytest.mark.parametrize(
    ("change", "what"),
    [*[(change, CHANGES[change]) for change in (quantise, merge_unseen, give_other_memory, remake_parameter, free)],
     (free_storage, "the memory of experts was freed")],
)  # fmt: skip
async def test_an_engine_that_changed_what_it_lends_withdraws(
    change: Change, what: str, settings: Settings, checkpoint: Path
) -> None:
    async with lent(checkpoint, settings) as engine:
        change(engine.module)
        await until(engine, lambda state: bool(state.why))
        assert what in engine.withheld


async def test_an_engine_that_only_serves_goes_on_lending(settings: Settings, checkpoint: Path) -> None:
    async with lent(checkpoint, settings) as engine:
        serve(engine.module)
        await passes(engine, 2)
        assert engine.withheld == ""


# ---------------------------------------------------------------------------- said beforehand


def hold_digests(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Every digest from now on waits: the first event says that one has begun, the second one lets all go on."""
    reading, go = threading.Event(), threading.Event()
    digests = ChunkDigester.digests

    def held_up(self: ChunkDigester, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        reading.set()
        assert go.wait(SECONDS)
        return digests(self, memory, spans)

    monkeypatch.setattr(ChunkDigester, "digests", held_up)
    return reading, go


async def test_a_change_waits_until_the_workers_own_digest_has_left_the_memory(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may free it inside the block."""
    entered = anyio.Event()

    async def change(replica: Replica) -> None:
        async with replica.changing():
            entered.set()

    async with join(checkpoint, "a", settings) as replica:
        reading, go = hold_digests(monkeypatch)
        assert await anyio.to_thread.run_sync(reading.wait, SECONDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change, replica)
            await until(replica, lambda state: state.mode is Mode.WITHHELD and not state.grants)
            await anyio.wait_all_tasks_blocked()
            assert not entered.is_set()
            go.set()
            with anyio.fail_after(SECONDS):
                await entered.wait()


async def test_a_drain_waits_until_the_workers_own_digest_has_left_the_memory(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may end, and the memory with it, as soon as it has returned."""
    drained = anyio.Event()

    async def drain(replica: Replica) -> None:
        await replica.drain()
        drained.set()

    async with join(checkpoint, "a", settings) as replica:
        reading, go = hold_digests(monkeypatch)
        assert await anyio.to_thread.run_sync(reading.wait, SECONDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, replica)
            await until(replica, lambda state: state.mode is Mode.CLOSED)
            await anyio.wait_all_tasks_blocked()
            assert not drained.is_set()
            go.set()
            with anyio.fail_after(SECONDS):
                await drained.wait()


async def test_a_host_that_does_not_wait_for_a_block_goes_on_lending(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was changed, so nothing may stay withheld."""
    async with join(checkpoint, "a", settings) as replica:
        reading, go = hold_digests(monkeypatch)
        assert await anyio.to_thread.run_sync(reading.wait, SECONDS)
        with anyio.move_on_after(0.05) as scope:
            async with replica.changing():
                raise AssertionError("not reached")
        assert scope.cancelled_caught
        go.set()
        await until(replica, lambda state: state.mode is Mode.OPEN)
        assert replica.withheld == ""


async def test_a_block_that_raises_or_is_cancelled_settles(settings: Settings, checkpoint: Path) -> None:
    async with join(checkpoint, "a", settings) as replica:
        with pytest.raises(ZeroDivisionError):
            async with replica.changing():
                raise ZeroDivisionError
        await until(replica, lambda state: state.mode is Mode.OPEN)
        with anyio.CancelScope() as scope:
            async with replica.changing():
                scope.cancel()
                await anyio.sleep_forever()
        await until(replica, lambda state: state.mode is Mode.OPEN)
        assert replica.withheld == ""


@pytest.mark.parametrize("how", ["nested", "overlapping", "one after the other"])
async def test_nothing_is_read_in_any_block(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What a block that has ended asked for must not begin in one that is open."""
    digests, during = ChunkDigester.digests, []
    opened = 0

    def seen(self: ChunkDigester, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        during.append(opened)
        return digests(self, memory, spans)

    async def in_block(replica: Replica, beginning: anyio.Event, end: anyio.Event) -> None:
        nonlocal opened
        async with replica.changing():
            opened += 1
            beginning.set()
            await end.wait()
            opened -= 1

    async with join(checkpoint, "a", settings) as replica, anyio.create_task_group() as tasks:
        monkeypatch.setattr(ChunkDigester, "digests", seen)
        first, second, first_ends, second_ends = (anyio.Event() for _ in range(4))
        if how == "one after the other":
            async with replica.changing():
                pass
        else:
            tasks.start_soon(in_block, replica, first, first_ends)
            await first.wait()
        tasks.start_soon(in_block, replica, second, second_ends)
        await second.wait()
        during.clear()
        (second_ends if how == "nested" else first_ends).set()
        for _ in range(20):
            await anyio.wait_all_tasks_blocked()
        assert source(replica).mode is Mode.WITHHELD
        first_ends.set()
        second_ends.set()
        await until(replica, lambda state: state.mode is Mode.OPEN)
        assert set(during) == {0}


async def test_after_draining_a_block_is_entered_at_once(settings: Settings, checkpoint: Path) -> None:
    async with join(checkpoint, "a", settings) as replica:
        await replica.drain()
        with anyio.fail_after(SECONDS):
            async with replica.changing():
                pass


async def test_an_adapter_merged_and_taken_out_again_is_lent_again(settings: Settings, checkpoint: Path) -> None:
    async with join(checkpoint, "a", settings) as first:
        weight = first.module.layer.weight
        before = weight.detach().clone()
        merge(first.module)
        await until(first, lambda state: bool(state.why))
        async with first.changing():
            weight.data.copy_(before)
        await until(first, lambda state: state.mode is Mode.OPEN)
        assert first.withheld == ""
        async with join(checkpoint, "b", settings) as second:
            assert second.report.sources == ("a",)
        await passes(first, 1)
        assert first.withheld == ""


async def test_parameters_replaced_inside_the_block_are_not_lent_again(settings: Settings, checkpoint: Path) -> None:
    """Even with equal bytes: what lies where they were verified is not what the host serves."""
    async with join(checkpoint, "a", settings) as replica:
        async with replica.changing():
            assert replica.withheld == "the host changes the weights"
            remake_parameter(replica.module)
        await until(replica, lambda state: "experts was taken out" in state.why)
        assert source(replica).mode is Mode.WITHHELD
