"""``python -m benchmarks.gpu``: what was asked for, and where the rows go."""

from __future__ import annotations

import argparse
import sys

from benchmarks.gpu.run import Plan, Run
from benchmarks.gpu.workingtree import register


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its table; every row as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="coldstart between GPUs of one host")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, without the 64 GB model")
    parser.add_argument("--cpu", action="store_true", help="toy sizes in CPU memory: whether this script works")
    parser.add_argument("--only", default="", help="words; a case runs if its name has one of them (llama,nccl,digest)")
    parser.add_argument("--json", default="", help="file for the result, kept up to date")
    parser.add_argument("--logs", default="", help="directory that keeps what the processes print")
    parser.add_argument("--seconds", type=float, default=470.0, help="what the run may take")
    parser.add_argument("--devices", default="", help="of source and joiner, such as cuda:0,cuda:1")
    asked = parser.parse_args(arguments)
    register()
    devices = ("cpu", "cpu") if asked.cpu else _devices(asked.devices)
    plan = Plan(
        devices=devices,
        size="toy" if asked.cpu else "quick" if asked.quick else "full",
        rounds=2 if asked.cpu else 3 if asked.quick else 5,
        only=tuple(word.strip() for word in asked.only.split(",") if word.strip()),
        seconds=asked.seconds,
        json=asked.json,
        logs=asked.logs,
    )
    result = Run(plan, lambda text: print(text, flush=True)).run()
    print(f"\n{len(result.rows)} rows in {result.seconds:.0f} s, {result.date}", flush=True)


def _devices(named: str) -> tuple[str, str]:
    """The devices named, or the first two GPUs, or the first one twice."""
    if named:
        source, _, joiner = named.partition(",")
        return source, joiner or source
    import torch

    count = torch.cuda.device_count()
    if not count:
        sys.exit("torch sees no CUDA device here; --cpu runs the script at toy sizes")
    return "cuda:0", f"cuda:{min(count - 1, 1)}"


if __name__ == "__main__":
    main()
