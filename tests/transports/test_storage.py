"""storage: the right bytes of the right files, in whole or in part, and every way a file can fail."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec
import pytest

from coldstart.errors import CheckpointError, TransportError
from coldstart.layout import Layout, Span, Tensor
from coldstart.ports import Checkpoint, Memory, StoredTensor, Transport
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import MIB, Landings, PullContract, grant, resources, whole
from coldstart.transports import storage
from coldstart.transports.storage import Placement, StorageTransport, Unplaced, check_unmodified, place


def stored(memory: BytesMemory, directory: Path, files: int = 1) -> tuple[Checkpoint, Placement]:
    """Write a memory's storages back to back into ``files`` files, after some other bytes, in turn."""
    layout = memory.layout
    paths = [directory / f"part-{index}.safetensors" for index in range(files)]
    contents = [bytearray(b"header!") for _ in paths]
    tensors: dict[str, StoredTensor] = {}
    for index, data in enumerate(memory.storages):
        content = contents[index * files // len(memory.storages)]
        path = paths[index * files // len(memory.storages)]
        tensors[f"t{index}"] = StoredTensor(f"t{index}", "uint8", (len(data),), path, len(content), len(data))
        content.extend(data)
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    checkpoint = Checkpoint(path=directory, fingerprint="", files=tuple(paths), tensors=tensors)
    placement = place(layout, {name: name for name in tensors}, checkpoint)
    assert isinstance(placement, Placement)
    return checkpoint, placement


class TestStorage(PullContract):
    """The contract that every transport keeps, on files."""

    files = 1

    @asynccontextmanager
    async def holding(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes]]:
        assert isinstance(held, BytesMemory)
        with TemporaryDirectory() as directory:
            transport: Transport = StorageTransport(*stored(held, Path(directory), self.files))
            try:
                yield transport, b""
            finally:
                await transport.aclose()
                await transport.aclose()


class TestStorageInSeveralFiles(TestStorage):
    files = 3


class TestReading:
    async def test_a_span_of_padding_lands_without_reading(self, tmp_path: Path) -> None:
        layout = layout_of(1, 1)
        landed = Landings()
        target = BytesMemory(layout, fill=0xAA)
        transport = StorageTransport(*stored(BytesMemory(layout, seed=1), tmp_path))
        await transport.pull(b"", [Span(5, 100), Span(300, 0)], target, landed)
        assert landed.spans == [Span(5, 100)]
        assert target.storages == [bytearray(b"\xaa")] * 2

    async def test_small_neighbours_share_a_read(self, tmp_path: Path) -> None:
        layout = layout_of(*[10] * 400)
        landed = Landings()
        transport = StorageTransport(*stored(BytesMemory(layout, seed=1), tmp_path))
        await transport.pull(b"", [whole(layout)], BytesMemory(layout), landed)
        assert len(landed.spans) == 1

    async def test_it_lends_nothing(self, tmp_path: Path) -> None:
        memory = BytesMemory(layout_of(10), seed=1)
        transport = StorageTransport(*stored(memory, tmp_path))
        with pytest.raises(TransportError) as caught:
            await transport.offer(grant("t"), memory)
        assert caught.value.reason == "unsupported"
        await transport.revoke("t")
        assert not transport.traits.needs_peer


class Slow(BytesMemory):
    """Holds every reader back at its second read until it is let go."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, fill=0xAA)
        self.go = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.reads = 0

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        with self._lock:
            self.reads += 1
            held = self.reads > 1
        if held:
            self.waiting.release()
            assert self.go.wait(10)
        with super().writing(span) as views:
            yield views


class TestEnds:
    @pytest.fixture(autouse=True)
    def _small_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "READ_BYTES", 64 * 1024)

    async def test_cancelling_waits_for_the_reads_under_way_and_starts_no_other(self, tmp_path: Path) -> None:
        layout = layout_of(20 * 64 * 1024)
        held, target, landed = BytesMemory(layout, fill=1), Slow(layout), Landings()
        before = resources()
        transport = StorageTransport(*stored(held, tmp_path))
        async with anyio.create_task_group() as group:
            group.start_soon(transport.pull, b"", [whole(layout)], target, landed)
            await anyio.to_thread.run_sync(target.waiting.acquire)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                target.go.set()
        assert target.lent == 0
        assert target.reads <= 1 + 4
        assert target.storages[0].count(1) == len(landed.spans) * 64 * 1024
        assert resources() <= before

    async def test_closing_ends_a_pull(self, tmp_path: Path) -> None:
        layout = layout_of(20 * 64 * 1024)
        target = Slow(layout)
        transport = StorageTransport(*stored(BytesMemory(layout, fill=1), tmp_path))
        failures: list[TransportError] = []

        async def pull() -> None:
            try:
                await transport.pull(b"", [whole(layout)], target, Landings())
            except TransportError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            await anyio.to_thread.run_sync(target.waiting.acquire)
            await transport.aclose()
            target.go.set()
        assert [failure.reason for failure in failures] == ["closed"]

    async def test_the_loop_is_not_blocked(self, tmp_path: Path) -> None:
        layout = layout_of(40 * MIB)
        transport = StorageTransport(*stored(BytesMemory(layout, fill=1), tmp_path))
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                began = time.perf_counter()
                await anyio.sleep(0.001)
                longest = max(longest, time.perf_counter() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await transport.pull(b"", [whole(layout)], BytesMemory(layout), Landings())
            group.cancel_scope.cancel()
        assert 0 < longest < 0.5


class TestBrokenFiles:
    async def _fails(self, tmp_path: Path, damage: Callable[[Path], None], match: str) -> None:
        layout = layout_of(2000, 3000)
        checkpoint, placement = stored(BytesMemory(layout, seed=1), tmp_path)
        damage(checkpoint.files[0])
        before, target = resources(), BytesMemory(layout)
        with pytest.raises(CheckpointError, match=match) as caught:
            await StorageTransport(checkpoint, placement).pull(b"", [whole(layout)], target, Landings())
        assert str(checkpoint.files[0]) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert target.lent == 0
        assert resources() <= before

    async def test_missing(self, tmp_path: Path) -> None:
        await self._fails(tmp_path, Path.unlink, "No such file")

    async def test_shorter_than_promised(self, tmp_path: Path) -> None:
        await self._fails(tmp_path, lambda path: os.truncate(path, 4000), "ends at offset 4000")

    async def test_unreadable(self, tmp_path: Path) -> None:
        def damage(path: Path) -> None:
            path.unlink()
            path.mkdir()

        await self._fails(tmp_path, damage, "at offset 7: Is a directory")

    async def test_an_error_of_the_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(descriptor: int, buffers: object, offset: int) -> int:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "preadv", fail)
        await self._fails(tmp_path, lambda path: None, "at offset 7: Input/output error")

    async def test_changed_while_it_is_read(self, tmp_path: Path) -> None:
        layout = layout_of(2000)
        checkpoint, placement = stored(BytesMemory(layout, seed=1), tmp_path)

        def touch(span: Span) -> None:
            os.utime(checkpoint.files[0], ns=(1, 1))

        with pytest.raises(CheckpointError, match="changed while it was read"):
            await StorageTransport(checkpoint, placement).pull(b"", [whole(layout)], BytesMemory(layout), touch)

    @pytest.mark.parametrize("way", ["in place", "replaced"])
    async def test_changed_between_its_header_and_the_read(self, way: str, tmp_path: Path) -> None:
        """The fingerprint was made of the former content: what stands there now is another version."""
        layout = layout_of(2000)
        checkpoint, placement = stored(BytesMemory(layout, seed=1), tmp_path)
        (file,) = checkpoint.files
        checkpoint = msgspec.structs.replace(checkpoint, modified={file: file.stat().st_mtime_ns})
        await StorageTransport(checkpoint, placement).pull(b"", [whole(layout)], BytesMemory(layout), lambda span: None)
        check_unmodified(checkpoint)
        other = file if way == "in place" else tmp_path / "newer"
        other.write_bytes(bytes(file.stat().st_size))
        os.utime(other, ns=(1, 1))
        other.replace(file)
        with pytest.raises(CheckpointError, match="was written to after its header was read"):
            await StorageTransport(checkpoint, placement).pull(
                b"", [whole(layout)], BytesMemory(layout), lambda span: None
            )
        with pytest.raises(CheckpointError, match="was written to after its header was read"):
            check_unmodified(checkpoint)

    async def test_a_change_whose_time_was_set_back_is_seen(self, tmp_path: Path) -> None:
        layout = layout_of(2000)
        checkpoint, placement = stored(BytesMemory(layout, seed=1), tmp_path)
        file = checkpoint.files[0]
        before = file.stat()

        def write_and_hide(span: Span) -> None:
            with file.open("r+b") as opened:
                opened.write(b"H")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

        with pytest.raises(CheckpointError, match="changed while it was read"):
            await StorageTransport(checkpoint, placement).pull(
                b"", [whole(layout)], BytesMemory(layout), write_and_hide
            )

    async def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(self, tmp_path: Path) -> None:
        layout = layout_of(2000)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        checkpoint, placement = stored(held, tmp_path)

        def replace(span: Span) -> None:
            newer = tmp_path / "newer"
            newer.write_bytes(b"other")
            newer.replace(checkpoint.files[0])

        await StorageTransport(checkpoint, placement).pull(b"", [whole(layout)], target, replace)
        assert target.storages == held.storages


def tensor(name: str, storage: int = 0, **changes: object) -> Tensor:
    fields: dict[str, object] = {"dtype": "float32", "shape": (2, 3), "stride": (3, 1), "offset": 0}
    return Tensor(name=name, storage=storage, **(fields | changes))  # type: ignore[arg-type]


def checkpoint_of(**shapes: tuple[int, ...]) -> Checkpoint:
    path = Path("model.safetensors")
    return Checkpoint(
        path=path,
        fingerprint="",
        files=(path,),
        tensors={
            name: StoredTensor(name, "float32", shape, path, 100 + 24 * index, 4 * shape[0] * shape[1])
            for index, (name, shape) in enumerate(shapes.items())
        },
    )


def layout(*tensors: Tensor, storages: tuple[int, ...] = (24,)) -> Layout:
    return Layout(tensors=tensors, storages=storages, chunk_bytes=MIB)


class TestPlace:
    def test_one_to_one(self) -> None:
        found = place(
            layout(tensor("a", 0), tensor("b", 1), storages=(24, 24)),
            {"a": "x", "b": "y"},
            checkpoint_of(y=(2, 3), x=(2, 3), z=(2, 3)),
        )
        assert isinstance(found, Placement)
        assert [[each.offset for each in extents] for extents in found.storages] == [[124], [100]]

    def test_aliases_and_empty_tensors_need_no_mapping(self) -> None:
        tensors = (tensor("tied", 0), tensor("a", 0), tensor("nothing", -1, shape=(0,), stride=(1,)))
        found = place(layout(*tensors), {"a": "x"}, checkpoint_of(x=(2, 3)))
        assert isinstance(found, Placement)

    def test_aliases_mapped_to_one_stored_tensor(self) -> None:
        found = place(layout(tensor("a"), tensor("b")), {"a": "x", "b": "x"}, checkpoint_of(x=(2, 3)))
        assert isinstance(found, Placement)

    def test_strides_of_dimensions_of_one_do_not_matter(self) -> None:
        odd = tensor("a", shape=(6, 1), stride=(1, 77))
        assert isinstance(place(layout(odd), {"a": "x"}, checkpoint_of(x=(6, 1))), Placement)

    @pytest.mark.parametrize(
        ("carried", "names", "words"),
        [
            (layout(tensor("a", dtype="bfloat16")), {"a": "x"}, "a: bfloat16 here, float32 in the checkpoint"),
            (layout(tensor("a", shape=(3, 2), stride=(2, 1))), {"a": "x"}, r"a: shape \[3, 2\] here, \[2, 3\]"),
            (layout(tensor("a", stride=(1, 2))), {"a": "x"}, r"a: not contiguous \(stride \[1, 2\]\)"),
            (layout(tensor("a"), storages=(32,)), {"a": "x"}, "fills 24 bytes from 0 on of a storage of 32"),
            (layout(tensor("a", offset=8), storages=(32,)), {"a": "x"}, "from 8 on of a storage of 32"),
            (layout(tensor("a")), {"a": "z"}, "a: the checkpoint has no tensor z"),
            (layout(tensor("a")), {}, "a: not mapped"),
            (layout(storages=(24,)), {}, "a storage without tensors: not mapped"),
            (layout(tensor("a"), tensor("b")), {"a": "x", "b": "y"}, r"a: .* stored several times \(x, y\)"),
        ],
    )
    def test_refusals_say_why(self, carried: Layout, names: dict[str, str], words: str) -> None:
        found = place(carried, names, checkpoint_of(x=(2, 3), y=(2, 3)))
        assert isinstance(found, Unplaced)
        with pytest.raises(ValueError, match=words):
            raise ValueError(found.reason)
