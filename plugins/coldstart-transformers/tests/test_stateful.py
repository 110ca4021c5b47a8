"""bitsandbytes: scales and code books beside the weights travel, from storage byte for byte; or it is said why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from coldstart.errors import SkeletonError
from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt, elements, in_place
from coldstart.testing.checkpoints import read_checkpoint
from coldstart.testing.skeleton_contract import digests

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
EIGHT = {"load_in_8bit": True}
TOKENS = torch.arange(8)[None]
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Two small Llamas that bitsandbytes has quantised."""
    torch.manual_seed(0)
    place_of = {bits: tmp_path_factory.mktemp(bits) for bits in ("plain", "4", "8")}
    with quiet():
        LlamaForCausalLM(LlamaConfig(**SMALL)).to(torch.bfloat16).save_pretrained(place_of["plain"])
        for bits, settings in (("4", FOUR), ("8", EIGHT)):
            way = BitsAndBytesConfig(**settings)
            LlamaForCausalLM.from_pretrained(place_of["plain"], quantization_config=way).save_pretrained(place_of[bits])
    return lambda bits: place_of[bits]


@pytest.mark.parametrize("auto", ["", "AutoModel"], ids=["its class", "the model in it"])
@pytest.mark.parametrize("bits", ["4", "8"])
def test_it_starts_from_storage_byte_for_byte(bits: str, auto: str, quantised: Callable[[str], Path]) -> None:
    checkpoint = read_checkpoint(quantised(bits))
    skeleton = FACTORY.open(auto=auto)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    stored = load_file(checkpoint.path / "model.safetensors")
    for name, tensor in skeleton.carried(module).items():
        elements(tensor).copy_(elements(stored[names[name]]))
    assert skeleton.self_check(module) == []
    with quiet():
        ordinary = type(module).from_pretrained(checkpoint.path, local_files_only=True).eval()
    lent = in_place(ordinary, skeleton.carried(module), "cpu", skeleton.held(ordinary))
    assert lent.layout == arena.layout
    for name, tensor in skeleton.held(ordinary).items():
        assert torch.equal(elements(skeleton.carried(module)[name]), elements(tensor)), name
    before = digests(arena)
    layers = [layer for layer in module.modules() if hasattr(layer, "support_avx512bf16_for_cpu")]
    with torch.inference_mode(), quiet():
        assert torch.equal(module(TOKENS)[0], ordinary(TOKENS)[0])
        assert torch.equal(module(TOKENS)[0], ordinary(TOKENS)[0])
    assert digests(arena) == before
    assert skeleton.leaves_memory is any(layer.support_avx512bf16_for_cpu for layer in layers)


def rewritten(path: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((path / "config.json").read_text())
    return target


@pytest.mark.parametrize("bits", ["4", "8"])
def test_a_weight_without_its_scales_is_refused(bits: str, quantised: Callable[[str], Path], tmp_path: Path) -> None:
    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(Q) and name != f"{Q}.weight"]:
            del tensors[name]

    path = rewritten(quantised(bits), tmp_path, bare)
    with pytest.raises(SkeletonError, match=f"what its files say of them: ValueError: {Q}.weight is stored without"):
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")


HOSTILE = [b"{", b"[]", b'{"nested_offset": "x"}', b" " * 5000]


@pytest.mark.parametrize("text", HOSTILE, ids=["cut", "list", "word", "long"])
def test_hostile_words_are_refused(text: bytes, quantised: Callable[[str], Path], tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{Q}.weight.quant_state.bitsandbytes__nf4"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    path = rewritten(quantised("4"), tmp_path, spoil)
    with pytest.raises(SkeletonError, match=r"is quantised \(bitsandbytes\): its weights cannot be made") as caught:
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")
    assert "\n" not in str(caught.value)


def test_a_config_of_the_first_days(quantised: Callable[[str], Path], tmp_path: Path) -> None:
    path = rewritten(quantised("8"), tmp_path, lambda tensors: None)
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]["quant_method"]
    (path / "config.json").write_text(json.dumps(config))
    module = FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")
    assert type(module.get_submodule(Q)).__name__ == "Linear8bitLt"
