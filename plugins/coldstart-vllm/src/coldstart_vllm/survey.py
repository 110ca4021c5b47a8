"""What of a module that vLLM has made stands against a cold start, before anything of it is changed.

Decides by looking at the module alone: attributes that vLLM's default loader asks for, and where the
parameters lie. What its tensors are (carried, computed, impossible) is decided by coldstart's builders.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

_LOADER_HOOKS = {
    "secondary_weights": "the model takes weights from a second checkpoint",
    "allow_patterns_overrides": "the model names the files that it is loaded from",
    "is_unused_checkpoint_weight": "the model leaves files of the checkpoint out",
}
"""What a model may tell vLLM's default loader, and why the checkpoint's fingerprint then says too little."""

_OFFLOADED = "_vllm_is_uva_offloaded"


def problems(module: nn.Module) -> tuple[str, ...]:
    """In words; empty if none."""
    return tuple(_problems(module))


def _problems(module: nn.Module) -> Iterator[str]:
    for name, reason in _LOADER_HOOKS.items():
        if getattr(module, name, None):
            yield reason
    parameters = dict(module.named_parameters())
    if not parameters:
        yield "the module has no parameters"
        return
    if late := [name for name, parameter in parameters.items() if parameter.is_meta]:
        yield f"{late[0]} gets its memory while it is loaded"
    if offloaded := [name for name, parameter in parameters.items() if hasattr(parameter, _OFFLOADED)]:
        yield f"{offloaded[0]} is offloaded"
    devices = sorted({str(parameter.device) for parameter in parameters.values()})
    if len(devices) > 1:
        yield f"parameters lie on {' and '.join(devices)}"


def device_of(module: nn.Module) -> torch.device:
    """Where the parameters lie; of a module without problems."""
    return next(module.parameters()).device
