"""The limits of this run: the same bytes as one flat buffer, by the plainest means there are.

Decides what the others are held against: a copy over an imported CUDA IPC handle, an NCCL broadcast,
a one-sided read of Mooncake's TransferEngine, and a TCP socket between two pinned host buffers. Each ends
with a comparison of both buffers, for a success code proves nothing.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final, cast

import torch

from benchmarks.gpu.side import Task, Unable, needs_cuda, needs_room

FLAT: Final = 8_000_000_000
HOST: Final = "127.0.0.1"
SOCKET_FLAT: Final = 2_000_000_000


def copy(task: Task) -> None:
    """``Tensor.copy_`` from memory of the source's process, mapped into the joiner's."""
    needs_cuda(task)
    reduce_tensor: Callable[[torch.Tensor], object] = import_module("torch.multiprocessing.reductions").reduce_tensor
    buffer = _flat(task)
    if task.lends:
        task.peer.say(pickle.dumps(reduce_tensor(buffer)))
        task.rates("copy", FLAT, lambda: None)
        _compare(task, buffer)
        return
    rebuild, arguments = cast("tuple[Callable[..., torch.Tensor], tuple[object, ...]]", pickle.loads(task.peer.hear()))
    theirs = rebuild(*arguments)

    def move() -> None:
        buffer.copy_(theirs)

    task.rates("device-to-device copy, CUDA IPC, flat", FLAT, move)
    _compare(task, buffer)


def nccl(task: Task) -> None:
    """torch.distributed's broadcast of one buffer."""
    needs_cuda(task, two=True)
    from benchmarks.gpu.loops import joined

    buffer = _flat(task)
    with joined(task) as broadcast:
        task.rates("NCCL broadcast, flat", FLAT, lambda: broadcast(buffer))
    _compare(task, buffer)


def transfer_engine(task: Task) -> None:
    """One ``transfer_sync_read`` of one registered buffer."""
    needs_cuda(task, two=True)
    os.environ["MC_INTRANODE_NVLINK"] = "true"
    try:
        from mooncake.engine import TransferEngine  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise Unable(f"mooncake's TransferEngine is not here: {error}") from error
    buffer = _flat(task)
    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") or engine.register_memory(buffer.data_ptr(), FLAT):
        raise Unable("TransferEngine does not start, or refuses the buffer")
    if task.lends:
        task.peer.say(f"{HOST}:{engine.get_rpc_port()} {buffer.data_ptr()}".encode())
        task.rates("read", FLAT, lambda: None)
        _compare(task, buffer)
        return
    place, address = task.peer.hear().decode().split()

    def move() -> None:
        if engine.transfer_sync_read(place, buffer.data_ptr(), int(address), FLAT):
            raise RuntimeError("TransferEngine's read failed")

    task.rates("TransferEngine read, flat", FLAT, move)
    _compare(task, buffer)


def plain_socket(task: Task) -> None:
    """One blocking connection over loopback, host memory to host memory: the limit of tcp."""
    count = task.scaled(SOCKET_FLAT, 32_000_000)
    view = memoryview(bytearray(count))
    if not task.lends:
        port = int(task.peer.hear())
        with socket.create_connection((HOST, port)) as sock:
            task.rates("plain TCP socket, host memory, one connection", count, lambda: _receive(sock, view))
        return
    with socket.create_server((HOST, 0)) as listener:
        task.peer.say(str(listener.getsockname()[1]).encode())
        sock, _ = listener.accept()
    with sock:
        task.rates("sending", count, lambda: sock.sendall(view))


def _receive(sock: socket.socket, view: memoryview) -> None:
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]


def _flat(task: Task) -> torch.Tensor:
    needs_room(task, FLAT)
    buffer = torch.empty(FLAT, dtype=torch.uint8, device=task.device)
    if task.lends:
        buffer.random_()
    else:
        buffer.fill_(0xA5)
    task.settle()
    return buffer


def _compare(task: Task, buffer: torch.Tensor) -> None:
    """Both sums equal, or the case fails. Both sides leave together: a mapping must not outlive its owner."""
    total = str(int(buffer.view(torch.int64).sum())).encode()
    task.peer.say(total)
    if task.peer.hear() != total:
        raise RuntimeError("the buffers differ: the transfer reported success and was none")
    with suppress(EOFError, OSError):
        task.peer.meet()
