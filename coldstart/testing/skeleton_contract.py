"""The suite that every skeleton builder must pass; a plugin's test file is one subclass.

    class TestMine(SkeletonContract):
        def open_skeleton(self):
            return FACTORY.open()

        def checkpoint(self, directory):
            my_model().save_pretrained(directory)
            return read_checkpoint(directory)

It decides what "the module with every tensor in place" means: the same layout in every process,
values that arrive whatever way they come, and a self-check that speaks up before they can have
arrived. Whether the module then computes the right thing is for the plugin's own tests, which
compare it with an ordinarily loaded one. It must not know any implementation. Needs pytest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.errors import ColdstartError
from coldstart.identity import Rank
from coldstart.layout import Layout, Span
from coldstart.ports import Checkpoint, Skeleton
from coldstart.skeletons.adoption import adopt
from coldstart.skeletons.assembly import Module
from coldstart.transports.casting import cast
from coldstart.transports.storage import Placement, place


class SkeletonContract:
    """Override :meth:`open_skeleton` and :meth:`checkpoint`."""

    device = "cpu"

    def open_skeleton(self) -> Skeleton[Module]:
        """A new builder; each one stands for another process."""
        raise NotImplementedError

    def checkpoint(self, directory: Path) -> Checkpoint:
        """A small checkpoint, written into the empty ``directory`` and read back."""
        raise NotImplementedError

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Checkpoint:
        return self.checkpoint(tmp_path)

    def start(self, stored: Checkpoint) -> tuple[Skeleton[Module], Module, Arena]:
        """What the runner does before the first byte."""
        skeleton = self.open_skeleton()
        module = skeleton.build(stored, Rank(), self.device)
        arena = adopt(module, skeleton.carried(module), self.device)
        skeleton.finalise(module)
        return skeleton, module, arena

    def test_has_a_name_and_an_identity(self) -> None:
        one, two = self.open_skeleton(), self.open_skeleton()
        assert isinstance(one, Skeleton)
        assert one.name
        assert one.identity
        assert one.identity == two.identity

    def test_every_process_gets_the_same_layout(self, stored: Checkpoint) -> None:
        layouts = [self.start(stored)[2].layout for _ in range(2)]
        assert layouts[0] == layouts[1]
        assert layouts[0].payload > 0

    def test_everything_is_in_a_class(self, stored: Checkpoint) -> None:
        skeleton, module, _ = self.start(stored)
        found = skeleton.classify(module)
        assert not found.refusals
        assert {each.name for each in found.of("carried")} == set(skeleton.carried(module))
        names = [each.name for each in found.tensors]
        assert len(set(names)) == len(names)

    def test_names_stay_when_the_memory_changes(self, stored: Checkpoint) -> None:
        skeleton = self.open_skeleton()
        module = skeleton.build(stored, Rank(), self.device)
        names = list(skeleton.carried(module))
        adopt(module, skeleton.carried(module), self.device)
        skeleton.finalise(module)
        assert list(skeleton.carried(module)) == names

    def test_self_check_is_content_with_loaded_weights(self, stored: Checkpoint) -> None:
        skeleton, module, _ = self.start(stored)
        skeleton.load(module, stored)
        assert list(skeleton.self_check(module)) == []

    def test_self_check_misses_the_arena(self, stored: Checkpoint) -> None:
        skeleton = self.open_skeleton()
        module = skeleton.build(stored, Rank(), self.device)
        assert list(skeleton.self_check(module)) != [], "tensors without their memory passed for a ready module"

    def test_bytes_of_a_peer_are_as_good_as_loading(self, stored: Checkpoint) -> None:
        skeleton, module, source = self.start(stored)
        skeleton.load(module, stored)
        other_skeleton, other, target = self.start(stored)
        assert digests(source) != digests(target)
        for index in range(source.layout.chunks):
            span = source.layout.chunk(index)
            with source.reading(span) as views, target.writing(span) as targets:
                join(targets)[:] = b"".join(views)
        assert digests(source) == digests(target)
        assert list(other_skeleton.self_check(other)) == []

    def test_loading_does_not_move_the_memory(self, stored: Checkpoint) -> None:
        skeleton, module, arena = self.start(stored)
        poisoned = digests(arena)
        skeleton.load(module, stored)
        assert digests(arena) != poisoned, "nothing was loaded into the arena"
        again, other, second = self.start(stored)
        again.load(other, stored)
        assert digests(second) == digests(arena), "two loads of one checkpoint differ"

    def test_stored_bytes_are_loaded_bytes_where_names_map(self, stored: Checkpoint) -> None:
        skeleton, module, arena = self.start(stored)
        names = skeleton.stored_names(module, stored)
        if names is None:
            return
        placement = place(arena.layout, names, stored)
        assert isinstance(placement, Placement), placement
        fill(arena, placement)
        other_skeleton, other, loaded = self.start(stored)
        other_skeleton.load(other, stored)
        assert digests(arena) == digests(loaded)
        assert list(skeleton.self_check(module)) == []

    def test_what_it_refuses_it_refuses_in_one_line(self) -> None:
        refusal = ""
        try:
            self.open_skeleton().build(None, Rank(), self.device)
        except ColdstartError as error:
            refusal = str(error)
        assert "\n" not in refusal


def digests(arena: Arena) -> list[bytes]:
    """The digest of every chunk."""
    layout: Layout = arena.layout
    return [ChunkDigester().digest(arena, layout.chunk(index)) for index in range(layout.chunks)]


def fill(arena: Arena, placement: Placement) -> None:
    """What the storage transport does, without its concurrency."""
    for start, extents in zip(arena.layout.starts, placement.storages, strict=True):
        for each in extents:
            with each.file.open("rb") as file, arena.writing(Span(start + each.within, each.length)) as views:
                file.seek(each.offset)
                if each.conversion is not None:
                    cast(memoryview(bytearray(file.read(each.stored))), each.conversion, 0, views)
                    continue
                for view in views:
                    view[:] = file.read(view.nbytes)


def join(views: object) -> memoryview:
    """The only view of an arena's writable span."""
    assert isinstance(views, list | tuple)
    (view,) = views
    assert isinstance(view, memoryview)
    return view
