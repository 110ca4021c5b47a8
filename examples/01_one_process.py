"""Two replicas in one process: the first reads storage, the second the first one's memory.

    python examples/01_one_process.py CHECKPOINT
"""

from __future__ import annotations

import sys

import anyio

import coldstart


async def main(checkpoint: str) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", worker="first") as first:
        print(f"first:  {first.report.path}, {first.report.bytes_storage} bytes from storage")
        async with coldstart.join(checkpoint, skeleton="tensors", worker="second") as second:
            report = second.report
            print(f"second: {report.path} from {report.sources[0]} at {report.gbps:.2f} GB/s, {report.verified=}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
