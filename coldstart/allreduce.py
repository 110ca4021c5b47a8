"""The host's own process group as a consensus: an all-reduce of torch.distributed over Gloo.

    ours = torch.distributed.new_group(backend="gloo")
    async with coldstart.join(..., group="torchrun", consensus=AllReduce(ours)): ...

Decides how one question becomes one collective. A rank that dies inside it leaves the others with different
answers now and then (15 of 150 tries): what counts is the group's record, which ``voting.py`` checks it
against. It never uses a group of NCCL, which waits for a dead rank for ever.
"""

from __future__ import annotations

import zlib

import anyio
import torch
import torch.distributed as dist

from coldstart.errors import ConfigError

_FIRST, _LAST = 0.001, 0.02
"""Seconds between two looks at a collective under way, at first and after a while."""


class AllReduce:
    """Asks all ranks of a Gloo process group: yes only if every rank says yes to the same question.

    Args:
        group: of torch.distributed; None for the default one.

    Raises:
        ConfigError: the group's backend is not Gloo.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        backend = dist.get_backend(group)
        if backend != "gloo":
            raise ConfigError(
                f"a process group over {backend} cannot be asked", advice="make one: new_group(backend='gloo')"
            )
        self._group = group

    async def all_agree(self, question: str, yes: bool, seconds: float) -> bool:
        """See :class:`coldstart.ports.Consensus`; raises RuntimeError when a rank is gone, TimeoutError after time."""
        mark = zlib.crc32(question.encode())
        # The least of a number and the least of its opposite are opposites only if all ranks have the same one.
        votes = torch.tensor([int(yes), mark, -mark], dtype=torch.int64)
        work = dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=self._group, async_op=True)
        assert work is not None
        pause = _FIRST
        with anyio.fail_after(seconds):
            while not work.is_completed():
                await anyio.sleep(pause)
                pause = min(2 * pause, _LAST)
        work.wait()
        least, same, opposite = votes.tolist()
        return bool(least) and same == -opposite
