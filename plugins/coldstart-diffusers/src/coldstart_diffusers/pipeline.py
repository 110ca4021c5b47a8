"""A pipeline as one module: the real ``DiffusionPipeline``, and the models it is made of.

Decides how the models that a rank hosts are put together with everything that has no weights:
schedulers are made anew from their config, tokenizers and processors from their files, and what
is hosted elsewhere is None. How the models themselves are built is in ``model.py`` and, for those
of transformers, in ``coldstart_transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import nn

from coldstart.errors import SkeletonError, in_a_line
from coldstart_diffusers.manifest import Manifest
from coldstart_diffusers.quiet import quiet


class HostedPipeline(nn.Module):
    """The models of a pipeline under their names, and the pipeline itself as ``pipeline``.

    Calling it calls the pipeline. Moving the pipeline (``to``, offloading) takes its weights out of the
    memory that is lent; do it only after ``replica.drain()``. A pipeline that was loaded in another way is
    lent with ``coldstart.lend(HostedPipeline(pipeline), path)``.
    """

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        components: Mapping[str, object] = pipeline.components
        for name, component in components.items():
            if isinstance(component, nn.Module):
                self.add_module(name, component)

    def forward(self, *args: object, **kwargs: object) -> object:
        """What the pipeline answers."""
        return cast("Callable[..., object]", self.pipeline)(*args, **kwargs)


def assemble(path: Path, manifest: Manifest, models: Mapping[str, nn.Module]) -> HostedPipeline:
    """The pipeline in ``path`` around ``models``; components with weights that are not among them are None.

    Raises:
        SkeletonError: the pipeline's class cannot be made without one of them, or its files cannot be read.
    """
    if taken := sorted(name for name in models if name == "pipeline" or hasattr(nn.Module, name)):
        raise SkeletonError(f"{path} calls a component {taken[0]}, which is the name of something else")
    try:
        with quiet():
            others = {
                name: found.from_pretrained(path / name, local_files_only=True)  # type: ignore[attr-defined]
                for name, found in manifest.others.items()
            }
            missing = dict.fromkeys((manifest.models.keys() - models.keys()) | manifest.absent)
            pipeline = manifest.pipeline.from_pretrained(
                path, local_files_only=True, **others, **models, **missing
            )
    except Exception as error:  # whatever a library makes of other people's files
        left_out = ", ".join(sorted(manifest.models.keys() - models.keys()))
        without = f" without {left_out}" if left_out else ""
        raise SkeletonError(
            f"a {manifest.pipeline.__name__} cannot be made of {path}{without}: {in_a_line(error)}",
            advice="host what it lacks on this rank, too" if left_out else "fetch or export the pipeline again",
        ) from error
    return HostedPipeline(pipeline)
