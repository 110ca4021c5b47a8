"""What the real tests hold: engine processes that are followed by their log, and checkpoints small enough for a CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ENGINE = Path(__file__).parent / "engine.py"
SECONDS = 240.0
"""An engine compiles a little when it first answers, and shares the machine."""

Answers = Mapping[str, object]

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, WORDS = 2, 256, 688, 4, 2, 512


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this directory needs vLLM."""
    absent = find_spec("vllm") is None
    for item in items:
        if item.path.parent == ENGINE.parent:
            item.add_marker(pytest.mark.vllm)
            if absent:
                item.add_marker(pytest.mark.skip(reason="vllm is not installed here; see make test-vllm"))


class Engine:
    """One engine process; ``line`` of its log is what coldstart says there."""

    def __init__(self, model: Path, load_format: str, extra: Mapping[str, object], dtype: str, log: Path, patches: str):
        place = log.parent
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "DEBUG",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "COLDSTART_DIRECTORY": str(place / "s"),
            "COLDSTART_CACHE": "none",
            "ENGINE_PATCHES": patches,
        }
        self._log = log
        self._output = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(ENGINE), str(model), load_format, dtype, json.dumps(extra)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            env=environment,
        )

    def answers(self, request: str = "") -> dict[str, object]:
        """What it answers to ``request``, or when it starts to serve."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if request:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, object] = json.loads(line)
                return found
        pytest.fail(f"the engine has ended:\n{self._log.read_text()[-4000:]}")

    def said(self, words: str) -> str:
        """The last line of coldstart's in the log with ``words``; empty if there is none."""
        lines = [line for line in self._log.read_text().splitlines() if "coldstart: " in line]
        return next((line.partition("coldstart: ")[2] for line in reversed(lines) if words in line), "")

    def wait_for(self, words: str) -> None:
        """Return when coldstart has said ``words``."""
        deadline = time.monotonic() + SECONDS
        while not self.said(words):
            assert self.process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < deadline, f"{words!r} is not in the log"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Let it end by itself; its exit code."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
        return self.process.wait(SECONDS)

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._output):
            if pipe is not None:
                pipe.close()


Start = Callable[..., Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(model, load_format="coldstart", extra={}, dtype="bfloat16", patches="")``."""
    started: list[Engine] = []

    def begin(
        model: Path,
        load_format: str = "coldstart",
        extra: Mapping[str, object] | None = None,
        dtype: str = "bfloat16",
        patches: str = "",
    ) -> Engine:
        log = tmp_path / f"engine-{len(started)}.log"
        started.append(Engine(model, load_format, extra or {}, dtype, log, patches))
        return started[-1]

    yield begin
    for engine in started:
        engine.close()


@pytest.fixture(scope="session")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, object]]:
    """``ordinary(model, dtype="bfloat16", patches="")``: what an engine answers with ``load_format=auto``."""
    known: dict[tuple[object, ...], dict[str, object]] = {}

    def ask(model: Path, dtype: str = "bfloat16", patches: str = "") -> dict[str, object]:
        key = (model, dtype, patches)
        if key not in known:
            engine = Engine(model, "auto", {}, dtype, tmp_path_factory.mktemp("ordinary") / "log", patches)
            try:
                known[key] = engine.answers()
            finally:
                engine.close()
        return known[key]

    return ask


# -------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers with random weights."""
    return write_llama(tmp_path_factory.mktemp("llama"), seed=0)


@pytest.fixture(scope="session")
def other_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with other weights."""
    return write_llama(tmp_path_factory.mktemp("other"), seed=7)


@pytest.fixture(scope="session")
def odd_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration says that the head is tied to the embeddings, the checkpoint has another head."""
    return write_llama(tmp_path_factory.mktemp("odd"), seed=3, tied=True)


def write_llama(path: Path, seed: int, *, tied: bool = False) -> Path:
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.05).to(torch.bfloat16)

    head = HIDDEN // HEADS
    tensors = {"model.embed_tokens.weight": weight(WORDS, HIDDEN), "lm_head.weight": weight(WORDS, HIDDEN)}
    tensors["model.norm.weight"] = 1 + weight(HIDDEN)
    for layer in range(LAYERS):
        tensors |= {
            f"model.layers.{layer}.{name}": tensor
            for name, tensor in (
                ("self_attn.q_proj.weight", weight(HIDDEN, HIDDEN)),
                ("self_attn.k_proj.weight", weight(KV_HEADS * head, HIDDEN)),
                ("self_attn.v_proj.weight", weight(KV_HEADS * head, HIDDEN)),
                ("self_attn.o_proj.weight", weight(HIDDEN, HIDDEN)),
                ("mlp.gate_proj.weight", weight(INNER, HIDDEN)),
                ("mlp.up_proj.weight", weight(INNER, HIDDEN)),
                ("mlp.down_proj.weight", weight(HIDDEN, INNER)),
                ("input_layernorm.weight", 1 + weight(HIDDEN)),
                ("post_attention_layernorm.weight", 1 + weight(HIDDEN)),
            )
        }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": WORDS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config))
    return path
