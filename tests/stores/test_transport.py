"""Weights by ranges from a real S3 server: the contract, the exact bytes, and every way a store can fail."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")
import torch
from anyio.from_thread import start_blocking_portal
from msgspec.structs import replace

from coldstart.errors import CheckpointError, TransportError
from coldstart.layout import Layout, Span, merged
from coldstart.plan import Chunks, spans_of
from coldstart.ports import Checkpoint, Memory, StoredTensor, Transport
from coldstart.shelves import bucket
from coldstart.shelves.bucket import Bucket
from coldstart.shelves.location import ShelfSettings, StoreUrl, located
from coldstart.shelves.objects import Prefix
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import MIB, Landings, PullContract, whole
from coldstart.transports import objects
from coldstart.transports.conversions import Conversion
from coldstart.transports.objects import ObjectTransport
from coldstart.transports.placement import Placement, place
from tests.stores.conftest import Store

SETTINGS = ShelfSettings(allow_http=True, reads=4, io_seconds=1.0, retry_seconds=4.0)
STEP = MIB // 4
NAME = "weights.safetensors"
HEAD = b"header!"
_number = itertools.count()


@pytest.fixture(autouse=True)
def _small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "READ_BYTES", STEP)


def uploaded(store: Store, memory: BytesMemory, settings: ShelfSettings = SETTINGS) -> tuple[Prefix, Placement]:
    """``memory``'s storages back to back in one object, after some other bytes."""
    root, name, at = Path("/nowhere"), f"{next(_number)}/{NAME}", len(HEAD)
    tensors: dict[str, StoredTensor] = {}
    for index, data in enumerate(memory.storages):
        tensors[f"t{index}"] = StoredTensor(f"t{index}", "uint8", (len(data),), root / name, at, len(data))
        at += len(data)
    store.put(name, HEAD + b"".join(memory.storages))
    url = located(store.url)
    assert isinstance(url, StoreUrl)
    with start_blocking_portal() as portal:
        stored = portal.call(Bucket(url, settings).stat, f"{store.prefix}/{name}")
    assert stored is not None
    checkpoint = Checkpoint(path=root, fingerprint="", files=(root / name,), tensors=tensors)
    placement = place(memory.layout, {each: each for each in tensors}, checkpoint)
    assert isinstance(placement, Placement)
    store.gateway.seen.clear()
    return Prefix(url, settings, root, {root / name: stored}), placement


def read(store: Store, prefix: Prefix) -> list[tuple[int, int]]:
    (path,) = prefix.objects
    return store.gateway.read(store.key(str(path.relative_to(prefix.root))))


class TestObjects(PullContract):
    """The contract that every transport keeps, on a store."""

    @pytest.fixture(autouse=True)
    def _store(self, store: Store) -> None:
        self.store = store

    @asynccontextmanager
    async def holding(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes]]:
        assert isinstance(held, BytesMemory)
        transport = ObjectTransport(*await anyio.to_thread.run_sync(uploaded, self.store, held))
        try:
            yield transport, b""
        finally:
            await transport.aclose()
            await transport.aclose()


class TestBytes:
    async def test_what_is_missing_and_nothing_else_in_few_requests(self, store: Store) -> None:
        layout = layout_of(*[STEP // 8 - 300] * 160, chunk_bytes=STEP)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        prefix, placement = uploaded(store, held)
        chunks = Chunks.of([0, 1, 2, 9, 17])
        spans = spans_of(layout, chunks)
        await ObjectTransport(prefix, placement).pull(b"", spans, target, Landings())
        wanted = sum(piece.length for span in spans for piece in layout.pieces(span))
        found = read(store, prefix)
        assert sum(end - start for start, end in found) == wanted
        assert len(found) <= 6, "what follows each other is one request, of at most a step"
        assert max(end - start for start, end in found) > STEP * 0.9
        for span in spans:
            assert target.content(span) == held.content(span)

    async def test_files_in_another_order_than_the_stream_are_read_in_theirs(self, store: Store) -> None:
        """Tensors of a checkpoint need not stand in the order of the module's: neighbours are still one request."""
        layout = layout_of(*[1000] * 50)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        prefix, placement = uploaded(store, held)
        backwards = layout_of(*[1000] * 50)
        await ObjectTransport(prefix, Placement(placement.storages[::-1])).pull(
            b"", [whole(backwards)], target, Landings()
        )
        assert target.storages == held.storages[::-1]
        assert read(store, prefix) == [(len(HEAD), len(HEAD) + 50_000)]

    @pytest.mark.parametrize(("stored", "carried"), [("bfloat16", "float32"), ("float32", "float16")])
    async def test_numbers_are_cast_on_the_way(self, stored: str, carried: str, store: Store, tmp_path: Path) -> None:
        """Of what is missing, from the store and then from the cache; nothing else is asked of the store."""
        cast = Conversion(stored, carried)
        count = 3 * STEP // 4 + 3
        values = torch.linspace(-70_000, 70_000, count).to(getattr(torch, stored))
        held = BytesMemory(layout_of(values.nbytes))
        held.storages[0][:] = values.view(torch.uint8).numpy().tobytes()
        expected = values.to(getattr(torch, carried)).view(torch.uint8).numpy().tobytes()
        prefix, placement = uploaded(store, held, replace(SETTINGS, cache=tmp_path))
        ((extent,),) = placement.storages
        there = Placement(((replace(extent, length=count * cast.carried_size, conversion=cast),),))
        missing = Span(STEP // 2, count * cast.carried_size - STEP // 2)
        for _ in range(2):
            target = BytesMemory(layout_of(len(expected)), fill=7)
            await ObjectTransport(prefix, there).pull(b"", [missing], target, Landings())
            assert target.storages[0][missing.offset : missing.end] == expected[missing.offset :]
            assert set(target.storages[0][: missing.offset]) == {7}
        found = read(store, prefix)
        assert sum(end - start for start, end in found) == missing.length // cast.carried_size * cast.stored_size
        assert max(end - start for start, end in found) <= STEP

    async def test_no_more_requests_at_a_time_than_allowed(self, store: Store) -> None:
        layout = layout_of(10 * STEP)
        target = BytesMemory(layout)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=3), replace(SETTINGS, reads=2))
        most = 0

        def landed(span: Span) -> None:
            nonlocal most
            most = max(most, store.gateway.open)

        await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, landed)
        assert 1 <= most <= 2
        assert target.storages[0].count(3) == layout.nbytes


class TestTrouble:
    async def _pull(self, store: Store, prepare: Callable[[], None], settings: ShelfSettings = SETTINGS) -> None:
        layout = layout_of(3 * MIB, 2 * MIB)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        prefix, placement = uploaded(store, held, settings)
        prepare()
        await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, Landings())
        assert target.storages == held.storages

    @pytest.mark.parametrize("fault", ["slow down", "too many", "failing", "broken", "reset", "silent"])
    async def test_what_passes_is_tried_again(self, fault: str, store: Store) -> None:
        left = [fault] * (1 if fault == "silent" else 3)
        misbehave = store.gateway.misbehave

        def prepare() -> None:
            store.gateway.misbehave = lambda method, key: left.pop() if left else ""  # type: ignore[return-value]

        await self._pull(store, prepare)
        store.gateway.misbehave = misbehave
        assert not left

    async def test_what_broke_off_goes_on_where_it_ended(self, store: Store) -> None:
        left = ["broken"]
        store.gateway.misbehave = lambda method, key: left.pop() if left and method == "GET" else ""  # type: ignore[return-value]
        await self._pull(store, lambda: None)
        given = [each.sent for each in store.gateway.seen if each.method == "GET"]
        assert sum(given) == 5 * MIB
        assert len(given) == 5 * MIB // STEP + 1

    async def test_a_store_that_stays_busy_is_a_refusal_in_time(self, store: Store) -> None:
        def prepare() -> None:
            store.gateway.misbehave = lambda method, key: "slow down"

        began = anyio.current_time()
        with pytest.raises(CheckpointError, match=rf"cannot read {store.url}.*503"):
            await self._pull(store, prepare, replace(SETTINGS, retry_seconds=0.5))
        assert anyio.current_time() - began < 10

    async def test_a_token_that_expires_in_mid_read_is_said_at_once(self, store: Store) -> None:
        answered = itertools.count()

        def prepare() -> None:
            store.gateway.misbehave = lambda method, key: "expired" if next(answered) >= 5 else ""

        with pytest.raises(CheckpointError, match=rf"the credentials for {store.url}.* have expired \(ExpiredToken\)"):
            await self._pull(store, prepare)
        assert sum(each.status == 400 for each in store.gateway.seen) <= SETTINGS.reads

    async def test_an_object_that_was_overwritten_is_never_mixed(self, store: Store) -> None:
        layout = layout_of(4 * STEP)
        held, target = BytesMemory(layout, fill=1), BytesMemory(layout)
        prefix, placement = uploaded(store, held, replace(SETTINGS, reads=1))
        (path,) = prefix.objects
        landings = Landings()

        def landed(span: Span) -> None:
            landings(span)
            store.put(str(path.relative_to(prefix.root)), HEAD + bytes([2]) * layout.nbytes)

        with pytest.raises(CheckpointError, match=f"{store.url}.*changed after its header was read") as caught:
            await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, landed)
        assert "\n" not in str(caught.value)
        assert target.storages[0].count(1) == STEP
        assert 2 not in target.storages[0]

    async def test_a_store_that_does_not_know_if_match(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bucket, "_options", lambda stored, start, length: {"range": (start, start + length)})
        layout = layout_of(MIB)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1))
        (path,) = prefix.objects
        store.put(str(path.relative_to(prefix.root)), HEAD + bytes([2]) * layout.nbytes)
        target = BytesMemory(layout)
        with pytest.raises(CheckpointError, match="changed after its header was read"):
            await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, Landings())
        assert target.storages[0].count(0) == MIB

    async def test_an_object_that_is_gone(self, store: Store) -> None:
        layout = layout_of(MIB)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1))
        gone = {path: replace(stored, key=stored.key + "x") for path, stored in prefix.objects.items()}
        with pytest.raises(CheckpointError, match=rf"{store.url}.*x is not there"):
            await ObjectTransport(replace(prefix, objects=gone), placement).pull(
                b"", [whole(layout)], BytesMemory(layout), Landings()
            )


class Held(BytesMemory):
    """Keeps every writer from the second on until it is let go."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, fill=0xAA)
        self.go, self.waiting, self.writes = threading.Event(), threading.Semaphore(0), itertools.count()

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        if next(self.writes):
            self.waiting.release()
            assert self.go.wait(10)
        with super().writing(span) as views:
            yield views


class TestEnds:
    async def test_cancelling_drops_the_requests_with_their_connections(self, store: Store) -> None:
        layout = layout_of(8 * STEP)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1))
        store.gateway.misbehave = lambda method, key: "silent"
        target, landed = BytesMemory(layout), Landings()
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ObjectTransport(prefix, placement).pull, b"", [whole(layout)], target, landed)
            asked = lambda: len(store.gateway.seen) >= SETTINGS.reads  # noqa: E731
            assert await anyio.to_thread.run_sync(store.gateway.wait_for, asked)
            tasks.cancel_scope.cancel()
        assert anyio.current_time() - began < 5
        assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: store.gateway.open == 0)
        assert (landed.spans, target.lent) == ([], 0)
        ended = len(store.gateway.seen)
        await anyio.wait_all_tasks_blocked()
        assert len(store.gateway.seen) == ended, "nothing goes on"

    async def test_a_cancelled_pull_never_writes_late(self, store: Store) -> None:
        layout = layout_of(8 * STEP)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1))
        target, landed = Held(layout), Landings()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ObjectTransport(prefix, placement).pull, b"", [whole(layout)], target, landed)
            await anyio.to_thread.run_sync(target.waiting.acquire)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                target.go.set()
        assert target.lent == 0
        written = bytes(target.storages[0])
        assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: store.gateway.open == 0)
        assert bytes(target.storages[0]) == written

    async def test_closing_ends_a_pull(self, store: Store) -> None:
        layout = layout_of(8 * STEP)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1))
        store.gateway.misbehave = lambda method, key: "silent"
        transport, failures = ObjectTransport(prefix, placement), list[TransportError]()

        async def pull() -> None:
            try:
                await transport.pull(b"", [whole(layout)], BytesMemory(layout), Landings())
            except TransportError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: bool(store.gateway.seen))
            await transport.aclose()
        assert [failure.reason for failure in failures] == ["closed"]


class TestCache:
    async def test_what_was_read_is_not_read_again(self, store: Store, tmp_path: Path) -> None:
        layout = layout_of(*[MIB - 100] * 20, chunk_bytes=MIB)
        held = BytesMemory(layout, seed=1)
        prefix, placement = uploaded(store, held, replace(SETTINGS, cache=tmp_path / "cache"))
        first = spans_of(layout, Chunks.of([2, 3, 11]))
        await ObjectTransport(prefix, placement).pull(b"", first, BytesMemory(layout), Landings())
        asked = sum(end - start for start, end in read(store, prefix))
        store.gateway.seen.clear()
        again = BytesMemory(layout)
        await ObjectTransport(prefix, placement).pull(b"", first, again, Landings())
        assert store.gateway.seen == []
        assert all(again.content(span) == held.content(span) for span in first)
        target, landed = BytesMemory(layout), Landings()
        await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, landed)
        assert target.storages == held.storages
        assert merged(landed.spans) == (whole(layout),)
        assert asked > 0

    @pytest.mark.parametrize("damage", ["cut", "failing"])
    async def test_a_cache_that_cannot_be_read_costs_itself(
        self, damage: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layout = layout_of(2 * STEP)
        held = BytesMemory(layout, seed=1)
        prefix, placement = uploaded(store, held, replace(SETTINGS, cache=tmp_path / "cache"))
        await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], BytesMemory(layout), Landings())

        def preadv(descriptor: int, views: object, offset: int) -> int:
            if damage == "failing":
                raise OSError(5, "Input/output error")
            return 0

        monkeypatch.setattr("coldstart.shelves.cache.os.preadv", preadv)
        target, landed = BytesMemory(layout), Landings()
        await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, landed)
        assert target.storages == held.storages
        assert sum(span.length for span in landed.spans) == layout.nbytes

    async def test_another_content_under_the_same_name_is_another_object(self, store: Store, tmp_path: Path) -> None:
        settings = replace(SETTINGS, cache=tmp_path / "cache")
        layout = layout_of(MIB)
        for fill in (1, 2):
            prefix, placement = uploaded(store, BytesMemory(layout, fill=fill), settings)
            target = BytesMemory(layout)
            await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, Landings())
            assert target.storages[0].count(fill) == MIB

    async def test_without_room_it_is_read_all_the_same(self, store: Store, tmp_path: Path) -> None:
        settings = replace(SETTINGS, cache=tmp_path / "cache", cache_bytes=1000)
        layout = layout_of(MIB)
        prefix, placement = uploaded(store, BytesMemory(layout, fill=1), settings)
        for _ in range(2):
            target = BytesMemory(layout)
            await ObjectTransport(prefix, placement).pull(b"", [whole(layout)], target, Landings())
            assert target.storages[0].count(1) == MIB
        assert sum(end - start for start, end in read(store, prefix)) == 2 * MIB
