"""Enter at once and be observable while the weights arrive, as a server with health checks must.

    python examples/03_health_checks.py CHECKPOINT
"""

from __future__ import annotations

import sys

import anyio

import coldstart


async def watch(replica: coldstart.Replica) -> None:
    """What /readyz would answer."""
    async for step in replica.progress():
        done = step.bytes_verified / step.bytes_total
        print(f"{'200' if step.phase == 'SERVE' else '503'} {step.phase.value} {done:.0%} {step.source}")


async def main(checkpoint: str) -> None:
    async with (
        coldstart.join(checkpoint, skeleton="tensors", wait=False) as replica,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watch, replica)
        report = await replica.ready()
        print(f"ready: {report.path} in {report.seconds:.2f} s; {', '.join(report.phases)}")
        await replica.drain()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
