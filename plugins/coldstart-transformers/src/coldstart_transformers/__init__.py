"""coldstart skeletons for the model classes of transformers: the entry point ``transformers``.

Decides only whether transformers is here and which options there are; transformers itself is
imported when a skeleton builds. How that goes is in ``skeleton.py``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from coldstart.errors import ConfigError
from coldstart.ports import API, Availability
from coldstart_transformers.importing import hushed

if TYPE_CHECKING:
    from coldstart_transformers.skeleton import TransformersSkeleton

__all__ = ["FACTORY", "Factory"]

OLDEST = 5
NEWEST = 5
"""Major versions whose loader this plugin follows."""


class Factory:
    """Opens :class:`coldstart_transformers.skeleton.TransformersSkeleton`."""

    api = API

    def probe(self) -> Availability:
        try:
            found = version("transformers")
        except PackageNotFoundError:
            return Availability(False, "transformers is not installed")
        if not OLDEST <= int(found.partition(".")[0]) <= NEWEST:
            return Availability(False, f"transformers {found} is here, {OLDEST}.x is needed")
        return Availability(True, f"transformers {found}")

    def open(self, *, dtype: str = "", auto: str = "", **options: str) -> TransformersSkeleton:
        """A skeleton builder.

        Args:
            dtype: dtype of the weights, as ``from_pretrained`` takes it; empty for the checkpoint's own.
            auto: ``AutoModel``, ``AutoModelForCausalLM``, ...; by default the class that the
                checkpoint's ``config.json`` names under ``architectures``.

        Raises:
            ConfigError: an unknown option or dtype.
        """
        if options:
            raise ConfigError(f"the transformers skeleton has no option {min(options)!r}", advice="it knows auto=")
        with hushed():
            from coldstart_transformers.skeleton import TransformersSkeleton

        return TransformersSkeleton(dtype=dtype, auto=auto)


FACTORY = Factory()
