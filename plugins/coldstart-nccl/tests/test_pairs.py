"""The pairs over NCCL, on the host's memory and with a library that is as unhelpful as NCCL.

It has something in progress after every call and refuses the next one until that is over, it never
says that the other side is gone, and its ``finalize`` waits for the other side. What it cannot show is
what a real stream would: that is in ``gpu``.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from coldstart_nccl import GLOO, cuda, hush, nccl
from coldstart_nccl.communicator import RECEIVER, SENDER, Block, Message
from coldstart_nccl.nccl import NcclBackend, NcclPair
from coldstart_nccl.schedule import Places, cut
from coldstart_nccl.transport import CollectiveTransport

from coldstart.errors import TransportError
from coldstart.ports import Transport, TransportSettings
from coldstart.testing.connecting_contract import ConnectingContract
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import payload, whole

SUCCESS, IN_PROGRESS, INTERNAL = 0, 7, 3
BUSY_POLLS = 2


class World:
    """What the two sides of one pair share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sides: dict[int, Side] = {}


class Side:
    """``nccl.core.Communicator`` as ``library.Pair`` describes it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._world = World()
        self._size = 0
        self._polls = 0
        self.buffers: deque[torch.Tensor] = deque()
        self.calls: list[str] = []
        self.state = SUCCESS
        self.aborted = self.finalised = False
        library.sides.append(self)

    def initialize(self, nranks: int, rank: int, unique_id: bytes, config: object) -> None:
        self._called("initialize")
        with self._library.lock:
            self._world = self._library.worlds.setdefault(bytes(unique_id), World())
        self._size = nranks
        self._world.sides[rank] = self

    def get_async_error(self) -> int:
        assert not self.aborted, "asked of a pair that is gone"
        if self.state != SUCCESS:
            return self.state
        self._polls = max(self._polls - 1, 0)
        return IN_PROGRESS if self._polls or self._pending() else SUCCESS

    def send(self, sendbuf: torch.Tensor, peer: int, *, stream: int) -> None:
        self._post("send", sendbuf, peer)

    def recv(self, recvbuf: torch.Tensor, peer: int, *, stream: int) -> None:
        self._post("recv", recvbuf, peer)

    def finalize(self) -> None:
        self._called("finalize")
        self.finalised = True

    def destroy(self) -> None:
        self._called("destroy")

    def abort(self) -> None:
        with self._world.lock:
            self.calls.append("abort")
            self.aborted = True
            self.buffers.clear()

    def _post(self, name: str, buffer: torch.Tensor, peer: int) -> None:
        self._called(name)
        with self._world.lock:
            self.buffers.append(buffer)
            other = self._world.sides[peer]
            while self.buffers and other.buffers and not self.aborted and not other.aborted:
                mine, theirs = self.buffers[0], other.buffers[0]
                assert len(mine) == len(theirs), "the sides disagree about a message"
                (theirs.copy_(mine) if name == "send" else mine.copy_(theirs))
                self.buffers.popleft(), other.buffers.popleft()  # only now is it over for those who poll

    def _called(self, name: str) -> None:
        if self._polls or self._pending() or self.state != SUCCESS or self.aborted:
            raise RuntimeError(f"ncclInvalidArgument: {name} while another call is in progress")
        self.calls.append(name)
        self._polls = BUSY_POLLS

    def _pending(self) -> bool:
        alone = self._size > len(self._world.sides)
        unequal = self.finalised and not all(side.finalised for side in list(self._world.sides.values()))
        return alone or unequal or bool(self.buffers)


class Library:
    """``nccl.core`` as ``library.Library`` describes it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.worlds: dict[bytes, World] = {}
        self.sides: list[Side] = []
        self.configs: list[int | None] = []
        self.UniqueId = self
        self.streams = 0
        """Streams that have been made and not closed."""

    def from_bytes(self, b: bytes) -> bytes:
        return b

    def Communicator(self) -> Side:
        return Side(self)

    def NCCLConfig(self, *, blocking: bool, max_ctas: int | None) -> object:
        assert not blocking
        self.configs.append(max_ctas)
        return None

    def get_unique_id(self) -> bytes:
        return secrets.token_bytes(128)

    def get_error_string(self, nccl_result: int) -> str:
        return f"error {nccl_result}"


class HeldStream:
    handle = 1

    def __init__(self, library: Library) -> None:
        self._library = library
        library.streams += 1

    def close(self) -> None:
        self._library.streams -= 1


class Stream:
    cuda_stream = 1

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    def record(self, stream: Stream) -> None:
        pass


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The fake in place of nccl4py, and of what torch does on a device."""
    made = Library()

    def described(block: Block) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer((ctypes.c_ubyte * block.length).from_address(block.address), dtype=np.uint8)

    monkeypatch.setattr(nccl, "load", lambda: made)
    monkeypatch.setattr(cuda, "_Described", described)
    monkeypatch.setattr(cuda.library, "new_stream", lambda index, urgent=False: HeldStream(made))
    monkeypatch.setattr(cuda, "_external", lambda handle, device: Stream())
    for module in (cuda, nccl):
        monkeypatch.setattr(module, "new_event", Event)
    monkeypatch.setattr(nccl, "idle", lambda stream: True)
    monkeypatch.setattr(nccl, "passed", lambda event: True)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream())
    yield made
    hush._spoilt.clear()


class OnTheHost(NcclBackend):
    """NCCL's pairs over the fake, for the host's memory."""

    kind = "cpu"  # type: ignore[misc, assignment]

    def message_bytes(self, scattered: bool) -> int:
        return 4 * 1024 * 1024


@pytest.mark.usefixtures("library")
class TestTheContract(ConnectingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        return CollectiveTransport(OnTheHost(), GLOO.open(settings).traits, settings)


LAYOUT = layout_of(100_003, 1, 255, 4096, *(1 + index % 16 for index in range(300)))


def pairs(library: Library, largest: int, ctas: int = 0) -> tuple[NcclPair, NcclPair]:
    device, invitation = torch.device("cpu"), NcclBackend().invitation()
    sender = NcclPair(library, SENDER, invitation, device, largest, ctas)
    assert not sender.ready(), "ready without the other side"
    return sender, NcclPair(library, RECEIVER, invitation, device, largest, ctas)


def until_ready(*both: NcclPair) -> None:
    """Neither can be, before the other one has come as far."""
    for _ in range(100):
        waiting = [pair for pair in both if not pair.ready()]
        if not waiting:
            return
    raise AssertionError("never ready")


def messages(memory: BytesMemory, size: int) -> list[Message]:
    return [Places.of(memory).message(span) for span in cut([whole(memory.layout)], size)]


@pytest.mark.parametrize("size", [777, 4096, 1 << 20])
def test_buckets_hold_what_lies_in_many_pieces(library: Library, size: int) -> None:
    held, target = BytesMemory(LAYOUT, seed=1), BytesMemory(LAYOUT, fill=0xAA)
    sender, receiver = pairs(library, size)
    for count, (out, home) in enumerate(zip(messages(held, size), messages(target, size), strict=True), 1):
        until_ready(sender, receiver)
        sender.send(out)
        assert not sender.ready(), "ready with a message on its way"
        receiver.receive(home)
        until_ready(sender, receiver)
        assert (sender.done(), receiver.done()) == (count, count)
    assert payload(target, LAYOUT) == payload(held, LAYOUT)


def test_both_sides_close_a_pair_that_went_well(library: Library) -> None:
    both = pairs(library, 10)
    until_ready(*both)
    threads = [threading.Thread(target=pair.close) for pair in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    ends = ["finalize", "destroy"]
    assert [side.calls for side in library.sides] == [["initialize", word, *ends] for word in ("send", "recv")]
    assert library.streams == 0


def test_a_pair_whose_peer_has_died_is_closed_all_the_same(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_CLOSE_SECONDS", 0.1)
    sender, receiver = pairs(library, 10)
    until_ready(sender, receiver)
    sender.close()
    assert library.sides[0].calls == ["initialize", "send", "finalize", "abort"]
    assert library.streams == 2, "the other side's"


def test_after_an_error_there_is_only_abort(library: Library) -> None:
    sender, receiver = pairs(library, 10)
    until_ready(sender, receiver)
    library.sides[0].state = INTERNAL
    with pytest.raises(TransportError, match="error 3") as caught:
        sender.ready()
    assert caught.value.reason == "closed"
    sender.abort()
    assert library.sides[0].calls == ["initialize", "send", "abort"]
    assert not hush.spoilt("cpu")


def test_a_context_that_is_broken_is_not_used_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stream: Stream) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    sender, _ = pairs(library, 10)
    monkeypatch.setattr(nccl, "idle", broken)
    sender.abort()
    assert hush.spoilt("cpu")


def test_the_cap_on_thread_blocks_is_passed_on(library: Library) -> None:
    pairs(library, 10)
    pairs(library, 10, ctas=2)
    assert library.configs == [None, None, 2, 2]


def test_warming_up_leaves_nothing(library: Library) -> None:
    NcclBackend().warm("cpu")
    assert [side.calls for side in library.sides] == [["initialize", "abort"]]
