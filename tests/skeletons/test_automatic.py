"""Which builder ``auto`` means, and that it says so where bare tensors may not be what was meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.skeletons import assembly
from coldstart.skeletons.automatic import BARE, chosen

EVERYTHING = ("diffusers", "tensors", "transformers")

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "transformers"),
        ({"_class_name": "UNet2DModel"}, "diffusers"),
        ({"n_layer": 12}, BARE),
        ({}, BARE),
        (None, BARE),
    ],
)
def test_it_is_the_builder_of_whoever_wrote_the_configuration(
    configuration: dict[str, object] | None, name: str
) -> None:
    assert chosen(configuration, EVERYTHING) == (name, "")


@pytest.mark.parametrize(
    ("configuration", "missing"),
    [({"architectures": ["A"], "model_type": "a"}, "transformers"), ({"_class_name": "A"}, "diffusers")],
)
def test_a_builder_that_is_not_installed_is_named_with_what_to_install(
    configuration: dict[str, object], missing: str
) -> None:
    name, notice = chosen(configuration, ("tensors",))
    assert name == BARE
    assert f"is of {missing}, whose builder is not installed" in notice
    assert f"pip install coldstart-{missing}" in notice


def test_a_configuration_without_a_class_is_no_module_and_says_so() -> None:
    name, notice = chosen({"model_type": "bert"}, EVERYTHING)
    assert name == BARE
    assert "names no class under 'architectures'" in notice


@pytest.mark.parametrize(("skeleton", "told"), [("auto", True), ("tensors", False)])
def test_what_was_asked_for_by_name_needs_no_notice(
    tmp_path: Path, write_checkpoint: Write, skeleton: str, told: bool
) -> None:
    path = write_checkpoint(tmp_path / "m")
    (path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    order = assembly.Order(path, skeleton)
    assert bool(assembly.build(order).notice) is told
    assert bool(assembly.inspect(order).notice) is told
