"""The loop that public systems use: broadcast a model tensor by tensor.

Decides how the two usual forms of it are timed: with a synchronisation after each tensor, and with
one at the end. The tensors are separate allocations, as a loaded module has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.gpu import models
from benchmarks.gpu.side import Task, needs_cuda, needs_room

Broadcast = Callable[[torch.Tensor], None]


@contextmanager
def joined(task: Task) -> Iterator[Broadcast]:
    """A process group of the two sides; gives a broadcast from the source, which is only queued."""
    meeting = f"file://{task.directory}/{task.order.case.replace(' ', '-')}.group"
    device = torch.device(task.device)
    dist.init_process_group("nccl", init_method=meeting, rank=task.rank, world_size=2, device_id=device)

    def broadcast(tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src=0)

    yield broadcast
    task.peer.meet()  # nothing is taken down: the processes end, and destroying can wait for ever


def per_tensor(task: Task) -> None:
    """Both forms of the loop over one model."""
    needs_cuda(task, two=True)
    layout = task.layout
    needs_room(task, layout.nbytes)
    shapes = models.shapes(task.order.model, task.order.size)
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device=task.device) for _, shape in shapes]
    with joined(task) as broadcast:

        def each() -> None:
            for tensor in tensors:
                broadcast(tensor)
                torch.cuda.synchronize()

        def together() -> None:
            for tensor in tensors:
                broadcast(tensor)

        task.rates("NCCL broadcast per tensor, synchronise after each", layout.payload, each)
        task.rates("NCCL broadcast per tensor, one synchronise", layout.payload, together)
