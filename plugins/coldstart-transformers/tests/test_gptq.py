"""GPTQ, AWQ and AutoRound with their own packages on a CPU: make test-gptq, in an environment of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt
from coldstart.testing.checkpoints import read_checkpoint
from coldstart.testing.skeleton_contract import digests, join

GROUP = 32
PACKED = 8
"""Weights of 4 bits in an int32."""

GPTQ = {"bits": 4, "group_size": GROUP, "sym": False, "checkpoint_format": "gptq"}
WAYS = {
    "gptq": {**GPTQ, "desc_act": False},
    "gptq in another order": {**GPTQ, "desc_act": True},
    "awq": {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "auto-round": {"bits": 4, "group_size": GROUP, "sym": True, "packing_format": "auto_round:auto_gptq"},
}
PACKAGES = {"gptq": ("gptqmodel", "optimum"), "awq": ("gptqmodel",), "auto-round": ("auto_round",)}

pytestmark = [
    pytest.mark.timeout(1800),  # the first one compiles
    pytest.mark.filterwarnings("default"),  # theirs
]


def packed(rows: int, columns: int, made: torch.Generator) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, (rows, columns), generator=made).to(torch.int32)


def stored(way: str, path: Path) -> Path:
    """A Llama in the layout of that way, its weights any bits."""
    method = way.partition(" ")[0]
    torch.manual_seed(0)
    small = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    with quiet():
        LlamaForCausalLM(LlamaConfig(**small, intermediate_size=64)).to(torch.bfloat16).save_pretrained(path)
    tensors, made = load_file(path / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        outer, inner = tensors.pop(name).shape
        bare, groups = name.removesuffix("weight"), inner // GROUP
        shape = (inner, outer // PACKED) if method == "awq" else (inner // PACKED, outer)
        tensors[f"{bare}qweight"] = packed(*shape, made)
        tensors[f"{bare}qzeros"] = packed(groups, outer // PACKED, made)
        tensors[f"{bare}scales"] = (torch.rand(groups, outer, generator=made) / 100).half()
        if method == "gptq":
            order = torch.randperm(inner, generator=made) if WAYS[way]["desc_act"] else torch.arange(inner)
            tensors[f"{bare}g_idx"] = (order // GROUP).to(torch.int32)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **WAYS[way]}
    (path / "config.json").write_text(json.dumps(config))
    return path


def needs_packages(way: str) -> None:
    if missing := [package for package in PACKAGES[way.partition(" ")[0]] if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed; make test-gptq")


@pytest.mark.parametrize("way", WAYS)
def test_it_computes_as_if_it_were_loaded_ordinarily(way: str, tmp_path: Path) -> None:
    needs_packages(way)
    method = way.partition(" ")[0]
    checkpoint = read_checkpoint(stored(way, tmp_path))
    started = []
    for _ in range(2):
        skeleton = FACTORY.open()
        module = skeleton.build(checkpoint, Rank(), "cpu")
        arena = adopt(module, skeleton.carried(module), "cpu")
        skeleton.finalise(module)
        started.append((skeleton, module, arena))
    (first, lender, source), (second, joiner, target) = started
    assert first.identity == second.identity != f"transformers/{method}", "it must say which kernels these are"
    assert first.stored_names(lender, checkpoint) is None
    first.load(lender, checkpoint)
    for index in range(source.layout.chunks):
        span = source.layout.chunk(index)
        with source.reading(span) as views, target.writing(span) as targets:
            join(targets)[:] = b"".join(views)
    assert first.self_check(lender) == second.self_check(joiner) == []
    with quiet():
        ordinary = LlamaForCausalLM.from_pretrained(tmp_path, local_files_only=True).eval()
    tokens, before = torch.arange(8)[None], digests(source)
    with torch.inference_mode():
        wanted = ordinary(tokens).logits
        assert torch.equal(lender(tokens).logits, wanted)
        assert torch.equal(joiner(tokens).logits, wanted)
    assert first.leaves_memory
    assert digests(source) == before, "a forward wrote to what is lent"


WORKER = """
import hashlib, json, sys
import anyio.to_thread, msgspec, torch
import coldstart

def answer(module):
    with torch.inference_mode():
        return hashlib.sha256(module(torch.arange(8)[None]).logits.float().numpy().tobytes()).hexdigest()

async def main(checkpoint, name):
    async with coldstart.join(checkpoint, worker=name) as replica:
        told = {"answers": [answer(replica.module) for _ in range(2)], **msgspec.to_builtins(replica.report)}
        print(f"\\n{json.dumps(told)}", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def worker(checkpoint: Path, name: str) -> Iterator[dict[str, Any]]:
    """A process that starts cold, answers and lends until the end of the block; what it says of that."""
    command = [sys.executable, "-c", WORKER, str(checkpoint), name]
    environment = {**os.environ, "COLDSTART_DIRECTORY": str(checkpoint.parent / "v"), "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield next(json.loads(line) for line in process.stdout if line.startswith("{"))  # after their banners
        finally:
            process.stdin.close()
            process.stdout.read()
            process.wait(60)


@pytest.mark.parametrize("way", WAYS)
def test_the_next_process_gets_them_from_the_one_that_has_them(way: str, tmp_path: Path) -> None:
    needs_packages(way)
    checkpoint = stored(way, tmp_path / "m")
    with worker(checkpoint, "first") as first, worker(checkpoint, "second") as second:
        assert (first["path"], first["verified"]) == ("storage", True)
        assert (second["path"], second["verified"], second["detours"]) == ("peer", True, []), second
        assert (second["bytes_peer"], second["bytes_storage"]) == (second["bytes_total"], 0)
        assert first["root"] == second["root"]
        with quiet(), torch.inference_mode():
            ordinary = LlamaForCausalLM.from_pretrained(checkpoint, local_files_only=True).eval()
            logits = ordinary(torch.arange(8)[None]).logits.float()
        assert set(first["answers"] + second["answers"]) == {hashlib.sha256(logits.numpy().tobytes()).hexdigest()}
