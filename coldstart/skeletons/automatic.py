"""Which builder ``auto`` means for a checkpoint: that of the library that has written its configuration.

Decides by the configuration's keys and the builders that are installed, and says where its choice may not be what was
meant. It must not open a builder; ``assembly.py`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

BARE = "tensors"
"""The builder that needs no library: the checkpoint's tensors by name, and no class around them."""
_WRITERS = {"architectures": "transformers", "_class_name": "diffusers"}
"""What a library writes into its configuration, and the builder for it."""
_UNNAMED = "model_type"
"""What transformers writes into configurations that do not say which class it is, too."""


class Chosen(NamedTuple):
    """A builder's name; ``notice`` is a line that says why tensors are bare where a module may have been expected."""

    name: str
    notice: str = ""


def chosen(configuration: Mapping[str, object] | None, installed: Collection[str]) -> Chosen:
    """The builder for a checkpoint with this configuration, of those that are installed."""
    written = configuration or {}
    for key, name in _WRITERS.items():
        if key in written:
            if name in installed:
                return Chosen(name)
            why = f"the checkpoint's configuration is of {name}, whose builder is not installed here"
            return _bare(why, f"pip install coldstart-{name}")
    if _UNNAMED in written:
        why = f"config.json has {_UNNAMED!r} and names no class under 'architectures'"
        return _bare(why, "give a builder that knows the class")
    return Chosen(BARE)


def _bare(why: str, advice: str) -> Chosen:
    return Chosen(BARE, f"bare tensors, since {why}: {advice}, or ask for skeleton {BARE!r}")
