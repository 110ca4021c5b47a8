"""Quantised checkpoints: what this machine makes of them is in the identity, and what cannot travel is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quantised import Quantisation
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TorchAoConfig,
)

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint, Rank
from coldstart.skeletons.adoption import adopt, elements
from coldstart.skeletons.wrappers import digest_of, tensors_of
from coldstart.testing.checkpoints import Placement, place, read_checkpoint
from coldstart.testing.skeleton_contract import fill

SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
BLOCKS = {"weight_block_size": [16, 16], "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}


EXPERTS = {"num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def mixture() -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, num_experts_per_tok=2))


def deepseek() -> PreTrainedModel:
    """Its router is kept in float32, and stored in bfloat16."""
    heads = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16}
    routed = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **SMALL, **heads, **routed, num_key_value_heads=2, moe_intermediate_size=32, first_k_dense_replace=0
        )
    )


def stored_in_fp8(path: Path, make: Callable[[], PreTrainedModel] = llama) -> Path:
    torch.manual_seed(0)
    with quiet():
        make().to(torch.bfloat16).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("_proj.weight", "_mqa.weight"))]:
        tensors[f"{name}_scale_inv"] = torch.rand([size // 16 for size in tensors[name].shape]) + 0.5
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return says(path, {"quant_method": "fp8", **BLOCKS})


def says(path: Path, quantisation: object) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}))
    return path


@pytest.mark.parametrize("accelerator", [False, True], ids=["no accelerator", "an accelerator"])
def test_fp8_is_kept_where_there_is_an_accelerator(
    accelerator: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the loader keeps float8 depends on the machine, so that two kinds of workers are two shards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(accelerator))
    checkpoint = read_checkpoint(stored_in_fp8(tmp_path))
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    weight = module.get_parameter("model.layers.0.self_attn.q_proj.weight")
    assert weight.dtype == (torch.float8_e4m3fn if accelerator else torch.bfloat16)
    assert skeleton.identity == ("transformers/fp8" if accelerator else "transformers/fp8-dequantised")
    assert (skeleton.stored_names(module, checkpoint) is None) is not accelerator
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    with quiet():
        ordinary = LlamaForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert type(module.model.layers[0].self_attn.q_proj) is type(ordinary.model.layers[0].self_attn.q_proj)
    assert module.config.to_dict() == ordinary.config.to_dict()
    wanted = dict(ordinary.named_parameters(remove_duplicate=False))
    assert skeleton.carried(module).keys() == wanted.keys()
    for name, tensor in skeleton.carried(module).items():
        assert (tensor.dtype, tensor.requires_grad) == (wanted[name].dtype, wanted[name].requires_grad), name
        assert torch.equal(elements(tensor), elements(wanted[name])), name


@pytest.mark.parametrize("make", [mixture, deepseek])
def test_experts_in_fp8_and_their_scales_are_read_from_their_own_tensors(
    make: Callable[[], PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    checkpoint = read_checkpoint(stored_in_fp8(tmp_path, make))
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    placement = place(arena.layout, skeleton.stored_names(module, checkpoint) or {}, checkpoint)
    assert isinstance(placement, Placement), placement
    fill(arena, placement)
    with quiet():
        wanted = type(module).from_pretrained(tmp_path, local_files_only=True).state_dict()
    assert wanted["model.layers.0.mlp.experts.gate_up_proj"].dtype == torch.float8_e4m3fn
    for name, tensor in skeleton.carried(module).items():
        assert torch.equal(elements(tensor), elements(wanted[name])), name


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("hqq", "transformers 5 cannot read such weights back"),
        ("quanto", "transformers neither saves nor reads back"),
        ("eetq", "transformers loads such weights only where there is a GPU"),
        ("unheard-of", "coldstart does not know what transformers makes of such weights"),
        ("", "coldstart does not know what transformers makes of such weights"),
    ],
)
def test_what_does_not_start_is_refused_by_its_method(method: str, reason: str, tmp_path: Path) -> None:
    path = says(stored_in_fp8(tmp_path), {"quant_method": method} if method else {"bits": 4})
    message = rf"is quantised \({method or 'no method stated'}\): {reason}"
    with pytest.raises(SkeletonError, match=message) as caught:
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("method", "package"), [("gptq", "optimum"), ("awq", "gptqmodel"), ("auto-round", "auto")])
def test_a_package_that_is_not_here_is_named(method: str, package: str, tmp_path: Path) -> None:
    if find_spec("gptqmodel") or find_spec("auto_round"):
        pytest.skip("the packages are here")
    path = says(stored_in_fp8(tmp_path), {"quant_method": method, "bits": 4, "group_size": 32})
    with pytest.raises(SkeletonError, match=rf"is quantised \({method}\): Loading an? .* requires {package}"):
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")


def test_what_is_reworked_for_a_device_starts_on_a_cpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(**SMALL, quantization_config={"quant_method": "awq", "bits": 4})
    monkeypatch.setattr(Quantisation, "_open", lambda *asked: None)
    quantisation = Quantisation(tmp_path, config)
    with torch.device("meta"), pytest.raises(SkeletonError, match="which was tried on CPUs only"):
        quantisation.replace_modules(LlamaForCausalLM(LlamaConfig(**SMALL)), None, Checkpoint(tmp_path, "", (), {}))


def test_metal_is_dequantised_where_there_is_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet():
        LlamaForCausalLM(LlamaConfig(**{**SMALL, "hidden_size": 64, "intermediate_size": 64})).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        rows = len(tensors[name])
        tensors[name] = torch.randint(0, 2**31, (rows, 8)).to(torch.uint32)
        bare = name.removesuffix("weight")
        tensors[f"{bare}scales"], tensors[f"{bare}qbiases"] = torch.rand(rows, 1) / 16, torch.rand(rows, 1) - 0.5
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    said = {"quant_method": "metal", "bits": 4, "group_size": 64, "modules_to_not_convert": ["lm_head"]}
    checkpoint = read_checkpoint(says(tmp_path, said))
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    assert skeleton.identity == "transformers/metal-dequantised"
    assert skeleton.stored_names(module, checkpoint) is None
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    with quiet():
        ordinary = LlamaForCausalLM.from_pretrained(tmp_path, local_files_only=True, device_map="cpu").eval()
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(module(tokens).logits, ordinary(tokens).logits)


def test_a_method_that_the_quantizer_itself_refuses(tmp_path: Path) -> None:
    path = says(stored_in_fp8(tmp_path), {"quant_method": "fp8", **BLOCKS, "weight_block_size": [16, -1]})
    with pytest.raises(SkeletonError, match=r"is quantised \(fp8\): weight_block_size must be"):
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")


@pytest.fixture
def in_int8(tmp_path: Path) -> Path:
    """A Llama that torchao has quantised, its norms and embeddings in bfloat16."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    torch.manual_seed(0)
    with quiet():
        LlamaForCausalLM(LlamaConfig(**SMALL)).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
        way = TorchAoConfig(quantization.Int8WeightOnlyConfig())
        model = LlamaForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=way)
        model.save_pretrained(tmp_path / "int8")
    return tmp_path / "int8"


@pytest.mark.parametrize("dtype", ["", "float32"], ids=["as stored", "the rest converted"])
def test_torchao_is_carried_in_parts(dtype: str, in_int8: Path) -> None:
    checkpoint = read_checkpoint(in_int8)
    skeleton = FACTORY.open(dtype=dtype)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert (names is None) is bool(dtype)
    assert names is None or set(names.values()) == set(checkpoint.tensors)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    with quiet():
        ordinary = LlamaForCausalLM.from_pretrained(in_int8, local_files_only=True, dtype=dtype or "auto").eval()
    wanted = tensors_of(ordinary)
    assert digest_of(module) == digest_of(ordinary)
    assert "model.layers.0.self_attn.q_proj.weight@qdata" in skeleton.carried(module)
    for name, tensor in skeleton.carried(module).items():
        assert torch.equal(elements(tensor), elements(wanted[name])), name
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(module(tokens).logits, ordinary(tokens).logits)


def test_torchao_without_its_metadata_is_refused(in_int8: Path) -> None:
    file = in_int8 / "model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt"})
    with pytest.raises(SkeletonError, match=r"is quantised \(torchao\): its weights cannot be made from what"):
        FACTORY.open().build(read_checkpoint(in_int8), Rank(), "cpu")
