"""Whole pipelines: what one gets, its components on ranks, and what of a ``model_index.json`` is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldstart_diffusers import FACTORY, Components
from coldstart_diffusers.pipeline import HostedPipeline
from coldstart_diffusers.quiet import quiet
from coldstart_transformers.skeleton import TransformersSkeleton
from diffusers import DDIMScheduler, StableDiffusionPipeline
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTextModel

import coldstart
from coldstart.errors import ConfigError, SkeletonError
from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt
from coldstart.skeletons.stored import named
from coldstart.testing.checkpoints import read_checkpoint

Picture = Callable[[StableDiffusionPipeline], torch.Tensor]
SPLIT: Components = {"text_encoder": 0, "unet": 1, "vae": 0}


def built(path: Path, components: Components = None, rank: Rank | None = None) -> HostedPipeline:
    """The pipeline in ``path`` with its stored weights."""
    checkpoint, skeleton = read_checkpoint(path), FACTORY.open(components=components)
    module = skeleton.build(checkpoint, rank or Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    assert isinstance(module, HostedPipeline)
    return module


def test_it_is_the_real_pipeline(saved: Path, picture: Picture) -> None:
    with quiet():
        ordinary = StableDiffusionPipeline.from_pretrained(saved)
    module = built(saved)
    assert type(module.pipeline) is StableDiffusionPipeline
    assert dict(module.pipeline.config) == dict(ordinary.config)
    assert module.pipeline.unet is module.get_submodule("unet")
    assert type(module.pipeline.scheduler) is DDIMScheduler
    assert dict(module.pipeline.scheduler.config) == dict(ordinary.scheduler.config)
    assert module.pipeline.safety_checker is None
    assert not any(each.training for each in module.modules())
    assert torch.equal(picture(module.pipeline), picture(ordinary))
    assert torch.equal(
        module("cat", num_inference_steps=1, output_type="latent", generator=torch.manual_seed(1))[0],
        ordinary("cat", num_inference_steps=1, output_type="latent", generator=torch.manual_seed(1))[0],
    )


async def test_each_rank_starts_with_its_own_components(
    saved: Path, settings: coldstart.Settings, picture: Picture
) -> None:
    """Two ranks from storage, then the same two from them; together they have every component once."""
    whole: dict[str, nn.Module] = {}

    def join(index: int, worker: str):  # type: ignore[no-untyped-def]
        rank = Rank(pp=index, pp_size=2)
        skeleton = FACTORY.open(components=SPLIT)
        return coldstart.join(saved, skeleton=skeleton, rank=rank, worker=f"{worker}{index}", settings=settings)

    async with join(0, "first") as text, join(1, "first") as unet:
        assert text.report.path == unet.report.path == "storage"
        async with join(0, "second") as other_text, join(1, "second") as other_unet:
            for replica, source, names in (
                (other_text, "first0", {"text_encoder", "vae"}),
                (other_unet, "first1", {"unet"}),
            ):
                assert (replica.report.path, replica.report.sources) == ("peer", (source,))
                assert {name for name, _ in replica.module.named_children()} == names
                elsewhere = {"text_encoder", "vae", "unet"} - names
                assert all(getattr(replica.module.pipeline, name) is None for name in elsewhere)
                assert replica.module.pipeline.tokenizer is not None
                whole.update(replica.module.named_children())
            with quiet():
                together = StableDiffusionPipeline.from_pretrained(saved, **whole)
                ordinary = StableDiffusionPipeline.from_pretrained(saved)
            assert torch.equal(picture(together), picture(ordinary))


async def test_a_pipeline_that_is_loaded_already_is_lent(
    saved: Path, settings: coldstart.Settings, picture: Picture
) -> None:
    with quiet():
        ordinary = StableDiffusionPipeline.from_pretrained(saved)
    async with (
        coldstart.lend(HostedPipeline(ordinary), saved, worker="loaded", settings=settings),
        coldstart.join(saved, worker="joined", settings=settings) as replica,
    ):
        assert (replica.report.path, replica.report.sources) == ("peer", ("loaded",))
        assert isinstance(replica.module, HostedPipeline)
        assert torch.equal(picture(replica.module.pipeline), picture(ordinary))


async def test_the_report_says_which_tensor_is_not_as_stored(
    saved: Path, tmp_path: Path, settings: coldstart.Settings
) -> None:
    saved = shutil.copytree(saved, tmp_path / "pipeline")
    path = saved / "text_encoder" / "model.safetensors"
    save_file({name: tensor.double() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    async with coldstart.join(saved, dtype="bfloat16", worker="a", settings=settings) as replica:
        assert replica.report.path == "storage"
        reason = replica.built.storage.reason
        assert reason == "text_encoder.embeddings.token_embedding.weight: bfloat16 here, float64 in the checkpoint"


async def test_components_are_cast_as_they_are_read(saved: Path, settings: coldstart.Settings) -> None:
    with quiet():
        ordinary = StableDiffusionPipeline.from_pretrained(saved, dtype=torch.bfloat16)
    async with coldstart.join(saved, dtype="bfloat16", worker="a", settings=settings) as replica:
        assert (replica.report.path, replica.built.storage.reason) == ("storage", "")
        for name, component in replica.module.named_children():
            values = getattr(ordinary, name).state_dict()
            for key, tensor in component.state_dict().items():
                assert tensor.dtype == values[key].dtype, key
                assert torch.equal(tensor, values[key]), key


@pytest.mark.parametrize("dtype", ["", "float16"])
def test_a_rank_reads_its_own_components_only(saved: Path, dtype: str) -> None:
    checkpoint, skeleton = read_checkpoint(saved), FACTORY.open(components=SPLIT, dtype=dtype)
    module = skeleton.build(checkpoint, Rank(pp=1, pp_size=2), "cpu")
    names = skeleton.stored_names(module, checkpoint)
    assert names
    assert names.keys() == skeleton.carried(module).keys()
    assert all(name.startswith("unet.") and (name,) == named(stored) for name, stored in names.items())


def test_ranks_must_fit_the_pipeline(saved: Path) -> None:
    for components, rank in (({"transformer": 0}, Rank()), ({"unet": 1}, Rank())):
        with pytest.raises(ConfigError):
            FACTORY.open(components=components).build(read_checkpoint(saved), rank, "cpu")


def test_a_component_for_nobody_is_none(saved: Path) -> None:
    module = built(saved, {"vae": None})
    assert module.pipeline.vae is None
    assert {name for name, _ in module.named_children()} == {"text_encoder", "unet"}


def test_encoders_that_a_pipeline_takes_in_part(tmp_path: Path) -> None:
    """Stored as the class that contains the one that the pipeline names."""
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    vision = {**text, "image_size": 16, "patch_size": 8}
    torch.manual_seed(4)
    with quiet():
        CLIPModel(CLIPConfig(text_config={**text, "vocab_size": 64}, vision_config=vision)).save_pretrained(tmp_path)
        ordinary = CLIPTextModel.from_pretrained(tmp_path)
    checkpoint, skeleton = read_checkpoint(tmp_path), TransformersSkeleton(model=CLIPTextModel)
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    skeleton.load(module, checkpoint)
    assert type(module) is CLIPTextModel
    assert module.config.to_dict() == ordinary.config.to_dict()
    tokens = torch.tensor([[1, 5, 9, 2]])
    with torch.inference_mode():
        assert torch.equal(module(input_ids=tokens)[0], ordinary(input_ids=tokens)[0])


def test_a_feature_extractor_by_its_older_name(copied: Path) -> None:
    with quiet():
        CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16).save_pretrained(copied / "feature_extractor")
    edit(copied, feature_extractor=["transformers", "CLIPFeatureExtractor"])
    assert built(copied).pipeline.feature_extractor.size["shortest_edge"] == 16


# ------------------------------------------------------------------------------------- refusals


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """The pipeline's directory, to be changed."""
    shutil.copytree(saved, tmp_path / "pipeline")
    return tmp_path / "pipeline"


def edit(path: Path, **changes: object) -> None:
    index = json.loads((path / "model_index.json").read_text())
    (path / "model_index.json").write_text(json.dumps({**index, **changes}))


def refusal(path: Path) -> str:
    """The one line with which ``path`` is refused."""
    with pytest.raises(coldstart.ColdstartError) as caught:
        FACTORY.open().build(read_checkpoint(path), Rank(), "cpu")
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": ["pipeline", "Mine"]}, "names the pipeline ['pipeline', 'Mine'], which diffusers"),
        ({"_class_name": "MinePipeline"}, "names the pipeline 'MinePipeline', which diffusers"),
        ({"_class_name": "AutoencoderKL"}, "names the pipeline 'AutoencoderKL', which diffusers"),
        ({"_class_name": "__class__"}, "names the pipeline '__class__', which diffusers"),
        ({"_class_name": None}, "names the pipeline None, which diffusers"),
        ({"_class_name": "KandinskyCombinedPipeline"}, "made of several pipelines that are fetched"),
        ({"unet": ["mine", "Unet"]}, "'Unet' of 'mine' as unet, which is neither diffusers' nor transformers' own"),
        ({"unet": ["os", "system"]}, "which is neither diffusers' nor transformers' own"),
        ({"unet": ["../mine", "Unet"]}, "which is neither diffusers' nor transformers' own"),
        ({"unet": ["diffusers", "a.b"]}, "which is neither diffusers' nor transformers' own"),
        ({"unet": ["pipeline_utils", "DiffusionPipeline"]}, "has a DiffusionPipeline as unet, which is not known here"),
        ({"unet": ["diffusers", "UNet9DModel"]}, "'UNet9DModel' of 'diffusers' as unet, which diffusers"),
        ({"unet": ["diffusers", "logging"]}, "'logging' of 'diffusers' as unet, which diffusers"),
        ({"unet": ["diffusers", "__class__"]}, "has a __class__ as unet, which is not known here"),
        ({"unet": ["diffusers", "AutoModel"]}, "has a AutoModel as unet, which is not known here"),
        ({"unet": ["diffusers", "ModelMixin"]}, "/unet: AttributeError: "),
        ({"unet": ["diffusers"]}, "has ['diffusers'] as unet, which is no [library, class]; fetch"),
        ({"unet": ["diffusers", None]}, "has ['diffusers', None] as unet, which is no [library, class]; fetch"),
        ({"scheduler": "DDIMScheduler"}, "has 'DDIMScheduler' as scheduler, which is no [library, class]; fetch"),
        ({"text_encoder": ["transformers", "PreTrainedModel"]}, "/text_encoder: StopIteration"),
        ({"scheduler": ["diffusers", "OnnxRuntimeModel"]}, "has a OnnxRuntimeModel as scheduler, which is not known"),
        ({"scheduler": ["diffusers", "UNet2DModel"]}, "scheduler has no weights for the UNet2DModel"),
        ({"unet": ["diffusers", "DDIMScheduler"]}, "StableDiffusionPipeline cannot be made of"),
        ({"image_encoder": ["transformers", "CLIPVisionModelWithProjection"]}, "but no directory image_encoder"),
        ({"..": ["diffusers", "UNet2DModel"]}, "which is not the plain name of a directory"),
    ],
)
def test_a_hostile_index_is_refused(copied: Path, changes: dict[str, object], message: str) -> None:
    edit(copied, **changes)
    assert message in refusal(copied)


@pytest.mark.parametrize(
    ("name", "library"), [("unet", "diffusers"), ("scheduler", "diffusers"), ("tokenizer", "transformers")]
)
def test_code_beside_a_component_is_refused(copied: Path, name: str, library: str) -> None:
    (copied / name / f"{library}.py").write_text("raise SystemExit('never run')")
    assert "and code for it beside its files" in refusal(copied)


def test_code_of_an_encoder_is_refused(copied: Path) -> None:
    config = json.loads((copied / "text_encoder" / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "code.Model", "AutoConfig": "code.Config"}
    (copied / "text_encoder" / "config.json").write_text(json.dumps(config))
    (copied / "text_encoder" / "code.py").write_text("raise SystemExit('never run')")
    edit(copied, text_encoder=["transformers", "AutoModel"])
    assert "has a AutoModel as text_encoder, which is not known here" in refusal(copied)
    edit(copied, text_encoder=["transformers", "CLIPTextModel"])
    assert type(built(copied).get_submodule("text_encoder")) is CLIPTextModel


@pytest.mark.parametrize("name", ["unet", "text_encoder"])
def test_quantised_components_are_refused(copied: Path, name: str) -> None:
    config = json.loads((copied / name / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (copied / name / "config.json").write_text(json.dumps(config))
    assert f"{copied / name} is quantised (bitsandbytes)" in refusal(copied)


@pytest.mark.parametrize("given", [None, 7, [7]])
def test_a_function_of_the_rank_that_breaks_is_named(saved: Path, given: list[str]) -> None:
    skeleton = FACTORY.open(components=lambda rank: given)
    with pytest.raises(SkeletonError, match=r"diffusers cannot make its module of \S+: TypeError: "):
        skeleton.build(read_checkpoint(saved), Rank(), "cpu")


@pytest.mark.parametrize("name", ["unet", "text_encoder"])
def test_a_component_without_its_config_is_named(copied: Path, name: str) -> None:
    (copied / name / "config.json").unlink()
    assert f"and {copied / name} has none; use the tensors skeleton" in refusal(copied)


def test_a_lost_component_is_refused(copied: Path) -> None:
    shutil.rmtree(copied / "scheduler")
    assert "but no directory scheduler; the download is incomplete" in refusal(copied)
    for file in (copied / "unet").glob("*.safetensors"):
        file.unlink()
    edit(copied, scheduler=[None, None])
    assert "unet has no weights for the UNet2DConditionModel; the download is incomplete" in refusal(copied)


def test_weights_that_do_not_fit_are_refused(copied: Path, saved: Path) -> None:
    config = json.loads((copied / "unet" / "config.json").read_text())
    (copied / "unet" / "config.json").write_text(json.dumps({**config, "cross_attention_dim": 32}))
    checkpoint, skeleton = read_checkpoint(copied), FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    assert skeleton.stored_names(module, checkpoint) is None
    with pytest.raises(SkeletonError, match=r"is float32 \[\d+, 32\] in the module but \S+ is float32 \[\d+, 16\]"):
        skeleton.load(module, checkpoint)
