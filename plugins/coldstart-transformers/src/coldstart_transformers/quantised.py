"""Quantised checkpoints: which of them become plain tensors that can travel, and how their modules are made.

Follows the loader: transformers' own quantizer swaps the modules before the weights arrive and says
whether they will be dequantised, which can depend on the machine. Weights that are tensors made of
tensors are made by ``deserialising.py``; what is kept in Python objects, or only on some accelerator, is
refused. Values are read by ``from_pretrained`` or byte for byte like those of any other model (``skeleton.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer

from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint
from coldstart_transformers.deserialising import deserialise

# Typed here, because transformers leaves it untyped: config, arguments' config, devices, weights only, user agent.
_Opened = tuple[HfQuantizer, PreTrainedConfig, object]
_quantizer_of: Callable[[PreTrainedConfig, None, None, bool, dict[str, str]], _Opened] = auto.get_hf_quantizer

PLAIN = frozenset({"bitnet", "fp8", "mxfp8"})
"""Methods whose modules hold nothing but plain tensors, as stored."""

WRAPPED = frozenset({"torchao"})
"""Methods whose weights are tensors made of plain tensors, described in the files' metadata (``deserialising.py``)."""

DEQUANTISED = PLAIN | {"compressed-tensors", "mxfp4"}
"""Methods that may become an ordinary model in a wider dtype."""


class Quantisation:
    """How one checkpoint is quantised, and what this machine makes of it.

    Args:
        path: the checkpoint, for messages.
        config: with the quantizer's config as an object afterwards, as the loader leaves it.

    Attributes:
        parts: once modules are replaced, carried name to stored name for what weights are made of.

    Raises:
        SkeletonError: the method is unknown, cannot be carried, or lacks a package or a device here.
    """

    def __init__(self, path: Path, config: PreTrainedConfig) -> None:
        self._path = path
        self.method = _method(config)
        if self.method not in DEQUANTISED | WRAPPED:
            raise self._refusal("what transformers makes of such weights is not only plain tensors")
        self.parts: Mapping[str, str] = {}
        self._quantizer = self._open(config)
        self._check_plain()

    @property
    def identity(self) -> str:
        """What the bytes in memory depend on besides the checkpoint: machines may differ in it."""
        return f"{self.method}-dequantised" if self._dequantises else self.method

    @property
    def _dequantises(self) -> bool:
        return bool(getattr(self._quantizer.quantization_config, "dequantize", False))

    def dtype(self, dtype: torch.dtype | None) -> torch.dtype | None:
        """The dtype that the quantizer takes for what is not quantised."""
        return self._quantizer.update_dtype(cast(torch.dtype, dtype))

    def replace_modules(self, model: PreTrainedModel, dtype: torch.dtype | None, checkpoint: Checkpoint) -> None:
        """Put the quantizer's modules, or its tensors, in place of the model's, before there are weights."""
        if self.method in WRAPPED:
            try:
                self._preprocess(model, dtype, [str(file) for file in checkpoint.files])
                self.parts = deserialise(model, self._quantizer, checkpoint)
            except (ValueError, LookupError, AttributeError, TypeError, AssertionError) as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise self._refusal(f"its weights cannot be made from what its files say of them: {reason}") from error
        else:
            self._preprocess(model, dtype, None)
            self._check_plain()
        vars(model)["hf_quantizer"] = self._quantizer  # where the loader leaves it

    def finish(self, model: PreTrainedModel) -> None:
        """What the loader does last; it may look at tensors, never at their values."""
        self._quantizer.postprocess_model(model)

    def _preprocess(self, model: PreTrainedModel, dtype: torch.dtype | None, files: list[str] | None) -> None:
        self._quantizer.preprocess_model(
            model=model, dtype=cast(torch.dtype, dtype), device_map=None, checkpoint_files=files, use_kernels=False
        )

    def _open(self, config: PreTrainedConfig) -> HfQuantizer:
        try:
            quantizer, _, _ = _quantizer_of(config, None, None, True, {})
        except (ImportError, ValueError, RuntimeError) as error:
            raise self._refusal(str(error).strip().partition("\n")[0]) from error
        return quantizer

    def _check_plain(self) -> None:
        if self.method not in PLAIN | WRAPPED and not self._dequantises:
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
    method = stated.get("quant_method", "") if isinstance(stated, dict) else getattr(stated, "quant_method", "")
    return str(getattr(method, "value", method) or "no method stated")
