"""Quantised checkpoints: which of them become plain tensors that can travel, and how their modules are made.

Follows the loader: transformers' own quantizer swaps the modules before the weights arrive and says
whether they will be dequantised, which can depend on the machine. Weights that are tensors made of
tensors are made by ``deserialising.py``, those with state beside them by ``stateful.py``. What else there
is, and why it is refused, is in ``refusals.py``. Values are read by ``from_pretrained`` or byte for byte like
those of any other model (``skeleton.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint
from coldstart_transformers.deserialising import deserialise
from coldstart_transformers.refusals import why_not
from coldstart_transformers.reworking import kernels_of, on_memory
from coldstart_transformers.stateful import make_weights, repacks, state_of

# Typed here, because transformers leaves it untyped: config, arguments' config, devices, weights only, user agent.
_Opened = tuple[HfQuantizer, PreTrainedConfig, object]
_quantizer_of: Callable[[PreTrainedConfig, None, None, bool, dict[str, str]], _Opened] = auto.get_hf_quantizer

PLAIN = frozenset({"bitnet", "fp8", "gemma", "mxfp8"})
"""Methods whose modules hold nothing but plain tensors, as stored."""

WRAPPED = frozenset({"torchao"})
"""Methods whose weights are tensors made of plain tensors, described in the files' metadata (``deserialising.py``)."""

STATEFUL = frozenset({"bitsandbytes"})
"""Methods whose weights have tensors beside them that no module registers (``stateful.py``)."""

REWORKED = frozenset({"auto-round", "awq", "gptq"})
"""Methods whose package may rework the loaded weights for this machine: what is stored is not what is carried."""

DEQUANTISED = PLAIN | {"compressed-tensors", "metal", "mxfp4"}
"""Methods that may become an ordinary model in a wider dtype."""


class Quantisation:
    """How one checkpoint is quantised, and what this machine makes of it.

    Args:
        path: the checkpoint, for messages.
        config: with the quantizer's config as an object afterwards, as the loader leaves it.

    Attributes:
        parts: once modules are replaced, carried name to stored name for what weights are made of.
        repacks: once modules are replaced, whether the first forward here gives weights other memory.

    Raises:
        SkeletonError: the method is unknown, cannot be carried, or lacks a package or a device here.
    """

    def __init__(self, path: Path, config: PreTrainedConfig) -> None:
        self._path = path
        self.method = _method(config)
        if self.method not in DEQUANTISED | WRAPPED | STATEFUL | REWORKED:
            raise self._refusal(why_not(self.method))
        self.parts: Mapping[str, str] = {}
        self.repacks = False
        self._kernels = ""
        self._quantizer = self._open(config)
        self._check_plain()

    @property
    def identity(self) -> str:
        """What the bytes in memory depend on besides the checkpoint: machines may differ in it."""
        made = "dequantised" if self._dequantises else self._kernels
        return "-".join(filter(None, (self.method, made)))

    @property
    def stateful(self) -> bool:
        """Whether weights have tensors beside them that no module registers."""
        return self.method in STATEFUL

    @property
    def as_stored(self) -> bool:
        """Whether what is carried are the stored tensors."""
        return not (self._dequantises or self.reworks)

    @property
    def plain(self) -> bool:
        """Whether that is all in plain tensors, which none of its operations touches."""
        return self.as_stored and self.method in PLAIN

    @property
    def where(self) -> dict[str, str] | None:
        """The devices to name to the ordinary loader; None for its own choice."""
        return {"": "cpu"} if self.method == "metal" else None  # it would choose a device that is not there

    @property
    def reworks(self) -> bool:
        """Whether only the ordinary loader knows what becomes of the stored bytes."""
        return self.method in REWORKED

    @property
    def _dequantises(self) -> bool:
        return bool(getattr(self._quantizer.quantization_config, "dequantize", False))

    def dtype(self, dtype: torch.dtype | None) -> torch.dtype | None:
        """The dtype that the quantizer takes for what is not quantised."""
        return self._quantizer.update_dtype(cast(torch.dtype, dtype))

    def replace_modules(self, model: PreTrainedModel, dtype: torch.dtype | None, checkpoint: Checkpoint) -> None:
        """Put the quantizer's modules, or its tensors, in place of the model's, before there are weights."""
        if self.reworks and torch.get_default_device().type != "cpu":
            raise self._refusal("its package reworks the weights for each device, which was tried on CPUs only")
        if self.method in WRAPPED | STATEFUL:
            make = deserialise if self.method in WRAPPED else make_weights
            try:
                self._preprocess(model, dtype, [str(file) for file in checkpoint.files])
                self.parts = make(model, self._quantizer, checkpoint)
            except (ValueError, LookupError, AttributeError, TypeError, AssertionError) as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise self._refusal(f"its weights cannot be made from what its files say of them: {reason}") from error
        else:
            self._preprocess(model, dtype, None)
            self._check_plain()
        self._kernels = kernels_of(model) if self.reworks else ""
        self.repacks = self.reworks or (repacks(model) and torch.get_default_device().type == "cpu")
        vars(model)["hf_quantizer"] = self._quantizer  # where the loader leaves it

    def finish(self, model: PreTrainedModel) -> None:
        """What the loader does last; it may look at tensors, never at their values."""
        with on_memory(model) if self.reworks else nullcontext():
            self._quantizer.postprocess_model(model)

    def held(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        """Weights that no submodule of ``module`` registers, by the names they are carried under."""
        return state_of(module) if self.stateful else {}

    def _preprocess(self, model: PreTrainedModel, dtype: torch.dtype | None, files: list[str] | None) -> None:
        self._quantizer.preprocess_model(
            model=model,
            dtype=cast(torch.dtype, dtype),
            device_map=self._devices,
            checkpoint_files=files,
            use_kernels=False,
        )

    def _open(self, config: PreTrainedConfig) -> HfQuantizer:
        try:
            quantizer, _, self._devices = _quantizer_of(config, None, None, True, {})
        except (ImportError, ValueError, RuntimeError) as error:
            raise self._refusal(str(error).strip().partition("\n")[0]) from error
        return quantizer

    def _check_plain(self) -> None:
        if self.method not in PLAIN | WRAPPED | STATEFUL | REWORKED and not self._dequantises:
            raise self._refusal(
                "transformers computes with such weights through hooks and kernels of other packages",
                'put "dequantize": true into the quantization_config of config.json',
            )

    def _refusal(self, reason: str, advice: str = "") -> SkeletonError:
        return SkeletonError(
            f"{self._path} is quantised ({self.method}): {reason}",
            advice=advice or "use the tensors skeleton to move its tensors as they are stored",
        )


def is_quantised(config: PreTrainedConfig) -> bool:
    """Whether the loader would hand this config to a quantizer."""
    return _stated(config) is not None


def _stated(config: PreTrainedConfig) -> Any:
    """The config's own word, or that of its text part, as the loader looks for it."""
    own = getattr(config, "quantization_config", None)
    return own if own is not None else getattr(config.get_text_config(decoder=True), "quantization_config", None)


def _method(config: PreTrainedConfig) -> str:
    stated = _stated(config)
    said = stated if isinstance(stated, dict) else vars(stated)
    method = said.get("quant_method", "")
    if not method and (said.get("load_in_8bit") or said.get("load_in_4bit")):  # as its first configs said it
        method = "bitsandbytes"
    return str(getattr(method, "value", method) or "no method stated")
