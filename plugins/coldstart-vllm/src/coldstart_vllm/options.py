"""What ``--model-loader-extra-config`` may say: the fields of coldstart's settings, and two more.

Decides names and values; an unknown key is an error, as in vLLM's own loaders. It must not know vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coldstart.config import Settings, load
from coldstart.errors import ConfigError


class Options(msgspec.Struct, frozen=True):
    """What the operator decides about one loader.

    Args:
        settings: coldstart's; from the extra config, else ``COLDSTART_...``, else defaults.
        revision: separates versions that the files alone do not tell apart.
        keep_raw: whether to keep lending weights that vLLM has replaced by others, at the price of their memory.
    """

    settings: Settings
    revision: str = ""
    keep_raw: bool = False


class _Own(msgspec.Struct, frozen=True):
    revision: str = ""
    keep_raw: bool = False


def parse(extra: object, environ: Mapping[str, str] | None = None) -> Options:
    """The options in ``extra``; the environment is this process's if ``environ`` is None.

    Raises:
        ValueError: not a mapping, an unknown key, or a value that is malformed or out of range.
    """
    if not isinstance(extra, Mapping):
        raise ValueError(f"model_loader_extra_config must be a dict, not {type(extra).__name__}")
    own = {key: value for key, value in extra.items() if key in _Own.__struct_fields__}
    rest = {key: value for key, value in extra.items() if key not in own}
    if unknown := sorted(str(key) for key in rest if key not in Settings.__struct_fields__):
        known = ", ".join((*_Own.__struct_fields__, *Settings.__struct_fields__))
        raise ValueError(f"unexpected keys for load format coldstart: {', '.join(unknown)} (known: {known})")
    try:
        kept = msgspec.convert(own, _Own)
        return Options(load(rest, environ), kept.revision, kept.keep_raw)
    except (ConfigError, msgspec.ValidationError) as error:
        raise ValueError(f"model_loader_extra_config: {error}") from error
