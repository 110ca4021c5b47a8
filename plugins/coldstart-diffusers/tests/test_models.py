"""Single models: dtypes, older names, ties, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from coldstart_diffusers import FACTORY
from coldstart_diffusers.quiet import quiet
from diffusers import AutoencoderKL, ModelMixin, Transformer2DModel, WanTransformer3DModel
from diffusers.utils import logging as chatter
from safetensors.torch import load_file, save_file
from torch import nn

import coldstart
from coldstart.errors import ConfigError, SkeletonError
from coldstart.ports import Rank, Skeleton
from coldstart.skeletons.adoption import adopt
from coldstart.testing.checkpoints import Placement, place, read_checkpoint
from coldstart.testing.skeleton_contract import fill

FILE = "diffusion_pytorch_model.safetensors"


def vae(path: Path) -> Path:
    torch.manual_seed(0)
    with quiet():
        AutoencoderKL(block_out_channels=(8,), norm_num_groups=4).save_pretrained(path)
    return path


def wan(path: Path) -> Path:
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )
    with quiet():
        model.save_pretrained(path)
    return path


def started(path: Path, dtype: str = "") -> tuple[nn.Module, bool]:
    """The model in ``path`` with its weights, and whether it could be read chunk by chunk."""
    checkpoint, skeleton = read_checkpoint(path), FACTORY.open(dtype=dtype)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    assert all(parameter.is_meta for parameter in module.parameters())
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    return module, names is not None and isinstance(place(arena.layout, names, checkpoint), Placement)


def read(path: Path, dtype: str) -> nn.Module:
    """The same, with weights from storage as it is read chunk by chunk."""
    checkpoint, skeleton = read_checkpoint(path), FACTORY.open(dtype=dtype)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    placement = place(arena.layout, skeleton.stored_names(module, checkpoint) or {}, checkpoint)
    assert isinstance(placement, Placement), placement
    fill(arena, placement)
    return module


def convert(path: Path, dtype: torch.dtype) -> None:
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path / FILE).items()}, path / FILE)


def assert_equal(module: nn.Module, ordinary: nn.Module) -> None:
    expected = {**dict(ordinary.named_parameters()), **dict(ordinary.named_buffers())}
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
        assert found[name].requires_grad == tensor.requires_grad, name


@pytest.mark.parametrize("asked", ["", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_dtypes_are_those_of_from_pretrained(tmp_path: Path, stored: str, asked: str) -> None:
    convert(wan(tmp_path), getattr(torch, stored))
    with quiet():
        ordinary = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=getattr(torch, asked or stored))
    module, in_chunks = started(tmp_path, asked)
    assert_equal(module, ordinary)
    assert in_chunks
    assert_equal(read(tmp_path, asked), ordinary)
    assert torch.get_default_dtype() == torch.float32


def test_models_built_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    checkpoint, asked = read_checkpoint(wan(tmp_path)), ["bfloat16", "float16"] * 4

    def built(dtype: str) -> set[torch.dtype]:
        module = FACTORY.open(dtype=dtype).build(checkpoint, Rank(), "cpu")
        return {parameter.dtype for parameter in module.parameters()}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(built, asked))
    assert found == [{torch.float32, getattr(torch, dtype)} for dtype in asked]
    assert torch.get_default_dtype() == torch.float32


def test_the_dtype_of_most_bytes_is_the_stored_one(tmp_path: Path) -> None:
    tensors = load_file(wan(tmp_path) / FILE)
    first = sorted(tensors)[0]
    mixed = {name: tensor if name == first else tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(mixed, tmp_path / FILE)
    with quiet():
        assert_equal(started(tmp_path)[0], WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16))


def test_what_nothing_is_computed_in_needs_a_dtype(tmp_path: Path) -> None:
    convert(vae(tmp_path), torch.float8_e4m3fn)
    with pytest.raises(SkeletonError, match=r"is stored in float8_e4m3fn, which nothing is computed in; ask for a"):
        started(tmp_path)
    with quiet():
        ordinary = AutoencoderKL.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    module, in_chunks = started(tmp_path, "bfloat16")
    assert_equal(module, ordinary)
    assert not in_chunks


def test_names_of_older_attention_blocks(tmp_path: Path) -> None:
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(vae(tmp_path) / FILE)
    with quiet():
        ordinary = AutoencoderKL.from_pretrained(tmp_path)
    for new, former in old.items():
        tensors = {name.replace(f"attentions.0.{new}.", f"attentions.0.{former}."): t for name, t in tensors.items()}
    assert any(".query." in name for name in tensors)
    save_file(tensors, tmp_path / FILE)
    module, one_to_one = started(tmp_path)
    assert one_to_one
    assert_equal(module, ordinary)


def test_classes_that_go_by_a_newer_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = {"num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 4, "sample_size": 8, "patch_size": 2}
    with quiet():
        model = Transformer2DModel(**values, num_embeds_ada_norm=8, norm_type="ada_norm_zero")
        model.save_pretrained(tmp_path)
        ordinary = Transformer2DModel.from_pretrained(tmp_path)
    module, _ = started(tmp_path)
    assert type(module) is type(ordinary)
    assert_equal(module, ordinary)


def test_configs_are_those_of_from_pretrained(tmp_path: Path) -> None:
    with quiet():
        ordinary = AutoencoderKL.from_pretrained(str(vae(tmp_path)))
    module, _ = started(tmp_path)
    assert isinstance(module, AutoencoderKL)
    assert dict(module.config) == dict(ordinary.config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "Mine"}, r"names the class 'Mine', which is no model of diffusers"),
        ({"_class_name": ["code", "Mine"]}, r"names the class \['code', 'Mine'\], which is no model of diffusers"),
        ({"_class_name": "StableDiffusionPipeline"}, r"which is no model of diffusers"),
        ({"_class_name": "logging"}, r"which is no model of diffusers"),
        ({"_class_name": None, "auto_map": {"AutoModel": "code.Mine"}}, r"code inside a checkpoint is never run"),
        ({"quantization_config": {"quant_method": "torchao"}}, r"is quantised \(torchao\), and such weights are"),
        ({"block_out_channels": "many"}, r"diffusers cannot make its module of \S+: \w+"),
    ],
)
def test_refusals_are_one_clear_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    config = json.loads((vae(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SkeletonError, match=message) as caught:
        started(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    tensors = load_file(vae(tmp_path) / FILE)
    del tensors["decoder.conv_in.weight"]
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(SkeletonError, match=r"the checkpoint has no decoder\.conv_in\.weight"):
        started(tmp_path)


def test_a_config_is_needed(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / FILE)
    for checkpoint in (read_checkpoint(tmp_path), None):
        with pytest.raises(SkeletonError, match=r"needs a checkpoint directory with a config\.json or a model_index"):
            FACTORY.open().build(checkpoint, Rank(), "cpu")


def test_options() -> None:
    assert FACTORY.probe().usable
    assert isinstance(FACTORY.open(), Skeleton)
    with pytest.raises(ConfigError, match="has no option 'variant'"):
        FACTORY.open(variant="fp16")
    with pytest.raises(ConfigError, match="'int4' is not a floating-point dtype"):
        FACTORY.open(dtype="int4")


def test_loading_is_quiet_and_settings_are_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (chatter.get_verbosity(), chatter.is_progress_bar_enabled())
    vae(tmp_path)
    capfd.readouterr()
    started(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert (chatter.get_verbosity(), chatter.is_progress_bar_enabled()) == before


async def test_it_is_found_without_being_named(tmp_path: Path, settings: coldstart.Settings) -> None:
    async with coldstart.join(vae(tmp_path), worker="a", settings=settings) as replica:
        assert isinstance(replica.module, ModelMixin)
        assert replica.report.path == "storage"


def test_asking_what_is_here_imports_neither_diffusers_nor_torch() -> None:
    look = "import sys, coldstart_diffusers as plugin; plugin.FACTORY.probe(); "
    check = "assert not {'diffusers', 'transformers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", look + check], check=True)
