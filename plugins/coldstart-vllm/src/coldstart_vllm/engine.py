"""vLLM's own objects: what they say about an engine's weights, and how a model of theirs is made anew.

The only module besides ``loader.py`` that knows vLLM. Names and places of vLLM's settings are its own
business and change between versions, so what this version does not have counts as not used; the parts
that cannot be missing are named in ``loader.py``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import vllm
from vllm.distributed import parallel_state
from vllm.platforms import current_platform

from coldstart_vllm.facts import INDEX, Axis, Facts, other_files

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig, VllmConfig

_PATHS = ("_name_or_path", "name_or_path", "transformers_version")
"""What a model's configuration says of where it was read and by which library, which changes no weight."""


def facts_of(vllm_config: VllmConfig, model_config: ModelConfig, model: nn.Module) -> Facts:
    """Everything about this engine process that its weights depend on."""
    kind = type(model)
    return Facts(
        version=vllm.__version__,
        model=f"{kind.__module__}.{kind.__qualname__}",
        config=_configuration(model_config),
        dtype=str(model_config.dtype).removeprefix("torch."),
        quantization=str(model_config.quantization or ""),
        cache_dtype=str(vllm_config.cache_config.cache_dtype),
        platform=str(current_platform.device_type),
        convert=str(getattr(model_config, "convert_type", "none")),
        draft=getattr(model_config, "runner_type", "") == "draft",
        more=repr(getattr(vllm_config, "additional_config", "")),
        tensor=_axis("get_tp_group"),
        pipeline=_axis("get_pp_group"),
        expert=_axis("get_ep_group") if vllm_config.parallel_config.enable_expert_parallel else Axis(),
        data=_axis("get_dp_group"),
        context=_axis("get_pcp_group"),
        sleeps=bool(getattr(model_config, "enable_sleep_mode", False)),
        balances=bool(getattr(vllm_config.parallel_config, "enable_eplb", False)),
        offloads=_offloads(vllm_config),
        encoder_only=bool(getattr(getattr(model_config, "multimodal_config", None), "mm_encoder_only", False)),
        streams=bool(getattr(model_config, "model_weights", "")),
    )


def _configuration(model_config: ModelConfig) -> str:
    return json.dumps(_without_paths(model_config.hf_config.to_dict()), sort_keys=True, default=repr)


def _without_paths(value: object) -> object:
    """``value`` without what says where it was read, at any depth: parts of a model have configurations too."""
    if isinstance(value, dict):
        return {str(key): _without_paths(item) for key, item in value.items() if key not in _PATHS}
    return [_without_paths(item) for item in value] if isinstance(value, list | tuple) else value


def _axis(group: str) -> Axis:
    """This process's place in one of vLLM's groups; the first of one where vLLM has made no such group."""
    find = getattr(parallel_state, group, None)
    try:
        found = find() if find is not None else None
    except AssertionError:
        found = None
    return Axis() if found is None else Axis(found.rank_in_group, found.world_size)


def _offloads(vllm_config: VllmConfig) -> bool:
    offload = getattr(vllm_config, "offload_config", None)
    gigabytes = getattr(getattr(offload, "uva", None), "cpu_offload_gb", 0)
    layers = getattr(getattr(offload, "prefetch", None), "offload_group_size", 0)
    return bool(gigabytes or layers or getattr(vllm_config.cache_config, "cpu_offload_gb", 0))


def directory_of(model_config: ModelConfig, download_dir: str | None) -> Path | None:
    """Where the checkpoint lies on this machine, downloaded before or mounted; None if it does not."""
    named = Path(model_config.model)
    if named.is_dir():
        return named
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = snapshot_download(
            model_config.model, revision=model_config.revision, cache_dir=download_dir, local_files_only=True
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return Path(found)


def unlike(directory: Path) -> str:
    """Why vLLM would read other files there than coldstart; empty if it would not. Raises OSError, ValueError."""
    indexed = None
    if (directory / INDEX).is_file():
        weight_map: dict[str, str] = json.loads((directory / INDEX).read_bytes())["weight_map"]
        indexed = set(weight_map.values())
    return other_files([entry.name for entry in directory.iterdir()], indexed)


class Bookkeeping:
    """What vLLM writes down while it makes a model, so that it can make the same model once more.

    Layers register by name, and a name that is registered already is an error.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._where = vars(vllm_config.compilation_config)
        self._before = {name: copy.copy(held) for name, held in self._containers()}

    def restore(self) -> None:
        """Forget what was written down since."""
        for name, held in self._containers():
            before = self._before.get(name)
            if isinstance(held, dict) and isinstance(before, dict):
                for key in held.keys() - before.keys():
                    del held[key]
            elif isinstance(held, list) and isinstance(before, list):
                held[:] = before
            elif isinstance(held, set) and isinstance(before, set):
                held.intersection_update(before)

    def _containers(self) -> Iterator[tuple[str, object]]:
        for name, held in self._where.items():
            if isinstance(held, dict | list | set):
                yield name, held
