"""Model families, small: a skeleton filled with an ordinary model's bytes computes the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt, elements, in_place
from coldstart.testing.checkpoints import Placement, place, read_checkpoint
from coldstart.testing.skeleton_contract import fill

TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2}
HRM = {**TEXT, "intermediate_size": 48}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BLOCKS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**BLOCKS, "image_size": 16}
CLIP_TEXT = {**TEXT, "intermediate_size": 48, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}

TOKENS = torch.tensor([[1, 5, 9, 33, 2]])


def tokens(model: PreTrainedModel) -> torch.Tensor:
    return first(model(input_ids=TOKENS))


def both_sides(model: PreTrainedModel) -> torch.Tensor:
    return first(model(input_ids=TOKENS, decoder_input_ids=TOKENS))


def picture(model: PreTrainedModel) -> torch.Tensor:
    return first(model(pixel_values=torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)))


def picture_and_text(model: PreTrainedModel) -> torch.Tensor:
    pixels = torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    return model(input_ids=TOKENS, pixel_values=pixels).logits_per_image


def sound(model: PreTrainedModel) -> torch.Tensor:
    return first(model(input_features=torch.linspace(-1, 1, 8 * 40).view(1, 8, 40), decoder_input_ids=TOKENS))


def first(output: object) -> torch.Tensor:
    value = output[0]  # type: ignore[index]
    assert isinstance(value, torch.Tensor)
    return value


Run = Callable[[PreTrainedModel], torch.Tensor]

FAMILIES: dict[str, tuple[str, str, dict[str, object], Run]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, tokens),
    "hrm text, of which one parameter is frozen": ("HrmTextForCausalLM", "HrmTextConfig", HRM, tokens),
    "gte-split-qkv": ("GteModel", "GteConfig", {**TEXT, "intermediate_size": 48}, tokens),
    "llama3-rope": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **LLAMA,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        tokens,
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 8, "tie_word_embeddings": True}, tokens),
    "gpt2-tied": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, tokens),
    "bert": ("BertModel", "BertConfig", {**TEXT, "intermediate_size": 48}, tokens),
    "bert-masked": ("BertForMaskedLM", "BertConfig", {**TEXT, "intermediate_size": 48}, tokens),
    "t5-tied": ("T5ForConditionalGeneration", "T5Config", T5, both_sides),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, "head_dim": 8}, tokens),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**LLAMA, "head_dim": 8}, tokens),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}, tokens),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 8,
        },
        tokens,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        sound,
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": CLIP_TEXT, "vision_config": {**VISION, "patch_size": 8}, "projection_dim": 16},
        picture_and_text,
    ),
    "vit": ("ViTModel", "ViTConfig", {**VISION, "patch_size": 8}, picture),
    "resnet": (
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        picture,
    ),
    "qwen2-vl": (
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {
            "text_config": {
                **LLAMA,
                "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
            },
            "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4},
            "image_token_id": 60,
            "video_token_id": 61,
            "vision_start_token_id": 62,
            "vision_end_token_id": 63,
        },
        tokens,
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel, Run]]:
    """Save a small random model once, and load it the ordinary way."""
    known: dict[str, tuple[Path, PreTrainedModel, Run]] = {}

    def of(family: str) -> tuple[Path, PreTrainedModel, Run]:
        if family not in known:
            model_class, config_class, arguments, run = FAMILIES[family]
            torch.manual_seed(1)
            path = tmp_path_factory.mktemp(family)
            config = getattr(transformers, config_class)(**arguments)
            with quiet():
                getattr(transformers, model_class)(config).save_pretrained(path)
                ordinary = getattr(transformers, model_class).from_pretrained(path, local_files_only=True)
            known[family] = (path, ordinary, run)
        return known[family]

    return of


@pytest.mark.parametrize("family", FAMILIES)
def test_same_bytes_same_bits(family: str, saved: Callable[[str], tuple[Path, PreTrainedModel, Run]]) -> None:
    path, ordinary, run = saved(family)
    checkpoint = read_checkpoint(path)
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    assert type(module) is type(ordinary)
    assert all(parameter.is_meta for parameter in module.parameters())
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    values = {
        **dict(ordinary.named_parameters(remove_duplicate=False)),
        **dict(ordinary.named_buffers(remove_duplicate=False)),
    }
    assert {name: value.requires_grad for name, value in ordinary.named_parameters()} == {
        name: value.requires_grad for name, value in module.named_parameters()
    }
    for name, tensor in skeleton.carried(module).items():
        elements(tensor).copy_(elements(values[name]))
    assert skeleton.self_check(module) == []
    assert set(ordinary.state_dict()) == set(module.state_dict())
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, values[name]), f"{name} was computed differently"
    with torch.inference_mode():
        assert torch.equal(run(module), run(ordinary))


@pytest.mark.parametrize("family", FAMILIES)
def test_storage_gives_the_same_bytes(family: str, saved: Callable[[str], tuple[Path, PreTrainedModel, Run]]) -> None:
    path, ordinary, run = saved(family)
    checkpoint = read_checkpoint(path)
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    placement = place(arena.layout, names, checkpoint)
    assert isinstance(placement, Placement)
    assert (skeleton.lacking(module, checkpoint), skeleton.unused(module, checkpoint)) == ([], [])
    fill(arena, placement)
    values = {
        **dict(ordinary.named_parameters(remove_duplicate=False)),
        **dict(ordinary.named_buffers(remove_duplicate=False)),
    }
    for name, tensor in skeleton.carried(module).items():
        assert torch.equal(elements(tensor), elements(values[name])), name
    with torch.inference_mode():
        assert torch.equal(run(module), run(ordinary))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_ordinary_model_is_lent_from_where_it_lies(
    family: str, saved: Callable[[str], tuple[Path, PreTrainedModel, Run]]
) -> None:
    path, ordinary, run = saved(family)
    run(ordinary)  # which may leave tensors in it that no joiner has
    skeleton = FACTORY.open()
    wanted = skeleton.carried(skeleton.build(read_checkpoint(path), Rank(), "cpu"))
    memory = in_place(ordinary, wanted, "cpu")
    assert {placed.name for _, placed in memory.held()} == wanted.keys()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "t5-tied", "gemma3", "mixtral", "mamba2"])
def test_requested_dtypes(
    family: str, dtype: str, saved: Callable[[str], tuple[Path, PreTrainedModel, Run]]
) -> None:
    path, ordinary, _ = saved(family)
    checkpoint = read_checkpoint(path)
    with quiet():
        wanted = type(ordinary).from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    skeleton = FACTORY.open(dtype=dtype)
    for loaded in (True, False):  # by transformers, and chunk by chunk
        module = skeleton.build(checkpoint, Rank(), "cpu")
        arena = adopt(module, skeleton.carried(module), "cpu")
        skeleton.finalise(module)
        placement = place(arena.layout, skeleton.stored_names(module, checkpoint) or {}, checkpoint)
        assert isinstance(placement, Placement), placement
        if loaded:
            skeleton.load(module, checkpoint)
        else:
            fill(arena, placement)
        assert skeleton.self_check(module) == []
        found = module.state_dict()
        assert found.keys() == wanted.state_dict().keys()
        for name, tensor in wanted.state_dict().items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(elements(found[name]), elements(tensor)), name


@pytest.mark.parametrize("asked", ["float32", "float16"])
def test_bfloat16_that_is_asked_for_in_another_dtype(tmp_path: Path, asked: str) -> None:
    torch.manual_seed(0)
    with quiet():
        LlamaForCausalLM(LlamaConfig(**LLAMA)).to(torch.bfloat16).save_pretrained(tmp_path)
        wanted = LlamaForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, asked), local_files_only=True)
    checkpoint = read_checkpoint(tmp_path)
    skeleton = FACTORY.open(dtype=asked)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    placement = place(arena.layout, skeleton.stored_names(module, checkpoint) or {}, checkpoint)
    assert isinstance(placement, Placement), placement
    fill(arena, placement)
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(elements(module.state_dict()[name]), elements(tensor)), name
