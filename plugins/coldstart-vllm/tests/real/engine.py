"""One vLLM engine in a process: starts as it is told, answers, and serves until its input ends.

    python engine.py MODEL LOAD_FORMAT DTYPE EXTRA_CONFIG

Prints one JSON line with its answers when it serves, and another one for each line of input: ``answer``,
``reload`` (weights in place, from storage), or ``load PATH`` (the same from another checkpoint).
``ENGINE_PATCHES`` in the environment names what is changed in vLLM before it starts; see :data:`PATCHES`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from torch import nn
from vllm import LLM, SamplingParams

PROMPTS = ([1, 5, 9, 200, 17], list(range(3, 40)))


def answers(llm: LLM) -> dict[str, object]:
    """Greedy tokens of each prompt, and the log-probabilities of the best four at each step."""
    asked = SamplingParams(temperature=0, max_tokens=12, logprobs=4, detokenize=False, ignore_eos=True)
    given = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], asked, use_tqdm=False)
    outputs = [request.outputs[0] for request in given]
    return {
        "tokens": [list(output.token_ids) for output in outputs],
        "logprobs": [
            [sorted((token, found.logprob) for token, found in step.items()) for step in output.logprobs]
            for output in outputs
        ],
    }


def plain_matmul() -> None:
    """Leave weights where they lie, as vLLM does on a GPU, instead of packing them for the CPU."""
    import vllm._custom_ops as ops
    from vllm.model_executor.layers import utils

    ops._supports_onednn, utils.check_cpu_sgl_kernel = False, lambda *_: False


def _llama(after: Callable[[nn.Module, object], object]) -> None:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    load = LlamaForCausalLM.load_weights
    LlamaForCausalLM.load_weights = lambda self, weights: after(self, load(self, weights))


def silent() -> None:
    """A model whose ``load_weights`` does not say what it has loaded."""
    _llama(lambda model, names: None)


def finishing() -> None:
    """A model whose ``load_weights`` does more than copy."""

    def after(model: nn.Module, names: object) -> object:
        model.model.layers[0].self_attn.finished = 1.5
        return names

    _llama(after)


PATCHES = {patch.__name__: patch for patch in (plain_matmul, silent, finishing)}


def main(model: str, load_format: str, dtype: str, extra: str) -> None:
    for patch in filter(None, os.environ.get("ENGINE_PATCHES", "").split(",")):
        PATCHES[patch]()
    began = time.monotonic()
    llm = LLM(
        model,
        load_format=load_format,
        dtype=dtype,
        model_loader_extra_config=json.loads(extra),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=128,
        max_num_seqs=2,
        gpu_memory_utilization=0.2,
        seed=0,
    )
    seconds = time.monotonic() - began
    print(json.dumps({"seconds": seconds, **answers(llm)}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["reload"]:
                llm.collective_rpc("reload_weights")
            case ["load", path]:
                llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
            case _:
                pass
        print(json.dumps(answers(llm)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
