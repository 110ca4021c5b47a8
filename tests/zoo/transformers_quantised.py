"""Quantised checkpoints: carried as they are stored, dequantised on loading, or refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.zoo.family import Family
from tests.zoo.hugging import BF16, TEXT, Config, family, tokens

KIND = "quantised"
LLAMA: Config = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
OSS: Config = {**LLAMA, "hidden_size": 64, "intermediate_size": 32, "head_dim": 16, "num_local_experts": 4}
OSS = {**OSS, "num_experts_per_tok": 2, "initial_context_length": 64}
WIDE: Config = {**LLAMA, "hidden_size": 64, "intermediate_size": 64}
"""One block of bitsandbytes in each row."""

BLOCK = 16

Stored = dict[str, torch.Tensor]
Rewrite = Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]]


def rewritten(method: str, rewrite: Rewrite, settings: Config) -> Callable[[Path], None]:
    """Puts what ``rewrite`` makes of each matrix of the layers into the checkpoint, and the method into its config."""

    def after(directory: Path) -> None:
        file, config = directory / "model.safetensors", directory / "config.json"
        stored: Stored = {}
        for name, tensor in load_file(file).items():
            matrix = ".layers." in name and tensor.ndim > 1 and name.endswith(("_proj.weight", "_proj"))
            stored.update(rewrite(name, tensor) if matrix else {name: tensor})
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, file, metadata={"format": "pt"})
        quantised = {"quantization_config": {"quant_method": method, **settings}}
        config.write_text(json.dumps({**json.loads(config.read_text()), **quantised}))

    return after


def fp8(name: str, weight: torch.Tensor) -> Stored:
    """Blocks of 16 by 16 in float8, each with the inverse of its scale."""
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.float().view(rows, BLOCK, columns, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / 448.0
    small = (blocks / scale[:, None, :, None]).view(weight.shape).to(torch.float8_e4m3fn)
    return {name: small, f"{name}_scale_inv": scale}


def ternary(name: str, weight: torch.Tensor) -> Stored:
    """Four weights of -1, 0 or 1 in a byte, with one scale."""
    scale = weight.float().abs().mean()
    three = (weight.float() / scale).round().clamp(-1, 1).to(torch.int64) + 1
    quarters = three.view(4, weight.shape[0] // 4, weight.shape[1])
    packed = sum(quarters[index] << 2 * index for index in range(4))
    return {name: torch.as_tensor(packed).to(torch.uint8), f"{name}_scale": (1 / scale).view(1).to(weight.dtype)}


def int8(name: str, weight: torch.Tensor) -> Stored:
    """One scale for each row."""
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127.0
    return {name: (weight.float() / scale).round().to(torch.int8), f"{name}_scale": scale.to(weight.dtype)}


def gemma(name: str, weight: torch.Tensor) -> Stored:
    """One scale for each row, and one each for what comes in and goes out."""
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127.0
    around = {f"{name[: -len('weight')]}{side}_activation_scale": torch.tensor(0.01) for side in ("input", "output")}
    return {name: (weight.float() / scale).round().to(torch.int8), f"{name}_scale": scale, **around}


def mxfp4(name: str, weight: torch.Tensor) -> Stored:
    """Blocks of 32 numbers of 4 bits with a common exponent: any bytes are some numbers."""
    if not name.endswith(("gate_up_proj", "down_proj")):
        return {name: weight}
    experts, inner, outer = weight.shape
    made = torch.Generator().manual_seed(outer)
    blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), generator=made, dtype=torch.uint8)
    scales = torch.randint(118, 124, (experts, outer, inner // 32), generator=made, dtype=torch.uint8)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def unchanged(name: str, weight: torch.Tensor) -> Stored:
    return {name: weight}


def refused(method: str, settings: Config, words: str) -> Family:
    """A Llama whose checkpoint says that it is quantised like that; ``words`` say why that is refused."""
    return family(
        KIND,
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA,
        tokens,
        note=method,
        loads=False,
        refused=f"is quantised ({method}): {words}",
        after=rewritten(method, unchanged, settings),
    )


def llama(
    note: str, method: str, rewrite: Rewrite, settings: Config, *, quick: bool = False, needs: str = ""
) -> Family:
    """A quantised Llama; one that needs a package which is not here must be refused in those words."""
    missing = f"is required for {method} quantization" if needs and find_spec(needs) is None else ""
    return family(
        KIND,
        "LlamaForCausalLM",
        "LlamaConfig",
        LLAMA,
        tokens,
        note=note,
        dtype=BF16,
        quick=quick,
        loads=not missing,
        refused=missing,
        after=rewritten(method, rewrite, settings),
    )


def torchao(note: str, config: str, settings: Config, *, quick: bool = False) -> Family:
    """A Llama that torchao quantises as one of its configs says; refused where torchao is not installed."""

    def way() -> object:
        made = getattr(import_module("torchao.quantization"), config)(**settings)
        return import_module("transformers").TorchAoConfig(made)

    missing = "No module named 'torchao'" if find_spec("torchao") is None else ""
    stated: Config = {"quant_type": {"default": {"_type": config}}}
    return quantising(note, way, rewritten("torchao", unchanged, stated), missing, quick=quick)


def bitsandbytes(note: str, settings: Config, *, quick: bool = False) -> Family:
    """A Llama that bitsandbytes quantises; refused where bitsandbytes is not installed."""

    def way() -> object:
        return import_module("transformers").BitsAndBytesConfig(**settings)

    missing = "quantization requires bitsandbytes" if find_spec("bitsandbytes") is None else ""
    without = rewritten("bitsandbytes", unchanged, settings)
    return quantising(f"bitsandbytes {note}", way, without, missing, values=WIDE, quick=quick)


def quantising(
    note: str,
    way: Callable[[], object],
    without: Callable[[Path], None],
    missing: str,
    *,
    values: Config = LLAMA,
    quick: bool,
) -> Family:
    """A Llama that transformers quantises by a config, and saves. Where ``missing`` says how it must be refused for
    lack of a package, only its config says so, by ``without``."""

    def after(directory: Path) -> None:
        if missing:
            without(directory)
            return
        with import_module("coldstart_transformers.quiet").quiet():
            model = import_module("transformers").LlamaForCausalLM.from_pretrained(directory, quantization_config=way())
            (directory / "model.safetensors").unlink()  # the model's memory may be the file's
            model.save_pretrained(directory)

    return family(
        KIND,
        "LlamaForCausalLM",
        "LlamaConfig",
        values,
        tokens,
        note=note,
        dtype=BF16,
        quick=quick,
        loads=not missing,
        refused=missing,
        after=after,
    )


HEAD: Config = {"modules_to_not_convert": ["lm_head"]}
BLOCKS: Config = {**HEAD, "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
EXPERTS: Config = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
}
UNPACKED: Config = {**HEAD, "linear_class": "autobitlinear", "quantization_mode": "offline"}
CHANNELS: Config = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT8: Config = {
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {"all": {"targets": ["Linear"], "weights": CHANNELS}},
    "dequantize": True,
}

FAMILIES = [
    llama("fp8 in blocks, dequantised", "fp8", fp8, BLOCKS, quick=True),
    llama("bitnet", "bitnet", ternary, HEAD, quick=True),
    llama("bitnet, unpacked on loading", "bitnet", ternary, UNPACKED),
    llama("int8, dequantised", "compressed-tensors", int8, INT8, needs="compressed_tensors"),
    family(
        KIND,
        "GptOssForCausalLM",
        "GptOssConfig",
        OSS,
        tokens,
        note="mxfp4, dequantised",
        dtype=BF16,
        after=rewritten("mxfp4", mxfp4, EXPERTS),
    ),
    llama("gemma int8", "gemma", gemma, {**HEAD, "num_bits": 8}, quick=True),
    bitsandbytes("4 bits, nf4", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    bitsandbytes(
        "4 bits, scales quantised too",
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        quick=True,
    ),
    bitsandbytes("4 bits, fp4", {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    bitsandbytes("8 bits", {"load_in_8bit": True}, quick=True),
    refused("hqq", {"quant_config": {}, "skip_modules": []}, "transformers 5 cannot read such weights back"),
    refused("eetq", {}, "transformers loads such weights only where there is a GPU"),
    torchao("torchao int8", "Int8WeightOnlyConfig", {}, quick=True),
    torchao("torchao int8, activations too", "Int8DynamicActivationInt8WeightConfig", {}),
    torchao("torchao int4", "IntxWeightOnlyConfig", {"weight_dtype": vars(torch)["int4"]}),
    torchao("torchao float8", "Float8WeightOnlyConfig", {}),
    refused("a-method-of-tomorrow", {}, "coldstart does not know what transformers makes of such weights"),
]
