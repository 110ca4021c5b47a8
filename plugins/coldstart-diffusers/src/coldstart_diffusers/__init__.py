"""coldstart skeletons for the models and pipelines of diffusers: the entry point ``diffusers``.

Decides only whether diffusers is here and which options there are; diffusers itself is imported
when a skeleton builds. How that goes is in ``skeleton.py``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from coldstart.errors import ConfigError
from coldstart.ports import API, Availability
from coldstart_diffusers.hosting import Components, parsed

if TYPE_CHECKING:
    from coldstart_diffusers.skeleton import DiffusersSkeleton

__all__ = ["FACTORY", "Components", "Factory"]

OLDEST = (0, 40)
BEFORE = (1, 0)
"""Versions whose loader this plugin follows."""


class Factory:
    """Opens :class:`coldstart_diffusers.skeleton.DiffusersSkeleton`."""

    api = API

    def probe(self) -> Availability:
        try:
            found = version("diffusers")
        except PackageNotFoundError:
            return Availability(False, "diffusers is not installed")
        major, minor, *_ = found.split(".")
        if not OLDEST <= (int(major), int(minor)) < BEFORE:
            return Availability(False, f"diffusers {found} is here, 0.{OLDEST[1]} or a later 0.x is needed")
        return Availability(True, f"diffusers {found}")

    def open(self, *, dtype: str = "", components: Components | str = "", **options: str) -> DiffusersSkeleton:
        """A skeleton builder.

        Args:
            dtype: dtype of the weights, as ``from_pretrained`` takes it; empty for the one they are stored in.
            components: which rank hosts which component of a pipeline (:data:`Components`), also as text:
                ``text_encoder=0,transformer=1,vae=0``; by default every rank hosts all.

        Raises:
            ConfigError: an unknown option or dtype, or components that are not understood.
        """
        if options:
            raise ConfigError(f"the diffusers skeleton has no option {min(options)!r}", advice="it knows components=")
        from coldstart_transformers.importing import hushed

        with hushed():
            from coldstart_diffusers.skeleton import DiffusersSkeleton

        return DiffusersSkeleton(dtype=dtype, components=parsed(components))


FACTORY = Factory()
