"""Which rank hosts which component of a pipeline.

Decides what a map of ranks means, and refuses one that leaves a component out by accident. Knows
neither torch nor diffusers. A rank here is the stage of the pipeline, ``Rank.pp``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from coldstart.errors import ConfigError
from coldstart.ports import Rank

Stages = int | Sequence[int] | None
"""The stage that hosts a component, several that host a copy each, or None: it is left out everywhere."""

Components = Mapping[str, Stages] | Callable[[Rank], Collection[str]] | None
"""Stages by component (one that is not named is on every rank), or the names that a rank hosts; None: all on each."""


def hosted(components: Components, rank: Rank, names: Collection[str]) -> frozenset[str]:
    """The components among ``names`` that ``rank`` hosts.

    Raises:
        ConfigError: a component that the pipeline does not have, a stage that there is not, or nothing for ``rank``.
    """
    if components is None:
        return frozenset(names)
    asked = frozenset(components(rank)) if callable(components) else frozenset(components)
    if unknown := asked - set(names):
        raise ConfigError(
            f"the pipeline has no component with weights called {_listed(unknown)}", advice=f"it has {_listed(names)}"
        )
    if callable(components):
        chosen = asked
    else:
        for name, stages in components.items():
            if beyond := [stage for stage in _all(stages) if not 0 <= stage < rank.pp_size]:
                raise ConfigError(
                    f"{name} is for rank {beyond[0]} of {rank.pp_size}", advice="say rank=Rank(pp=..., pp_size=...)"
                )
        chosen = frozenset(name for name in names if name not in components or rank.pp in _all(components[name]))
    if not chosen:
        raise ConfigError(f"rank {rank.pp} hosts no component of the pipeline", advice=f"it has {_listed(names)}")
    return chosen


def parsed(components: Components | str) -> Components:
    """``components``, also where they are written as text: ``text_encoder=0,transformer=1,vae=0+1``.

    Raises:
        ConfigError: they are neither a map of names to ranks nor a function.
    """
    if not isinstance(components, str):
        return _checked(components)
    if not components:
        return None
    found: dict[str, Stages] = {}
    for each in components.split(","):
        name, _, stages = (part.strip() for part in each.partition("="))
        if name in found:
            raise ConfigError(f"components names {name} twice", advice=f"several ranks are written {name}=0+1")
        try:
            found[name] = tuple(int(stage) for stage in stages.split("+")) if stages != "none" else None
        except ValueError as error:
            raise ConfigError(f"{each!r} is not NAME=RANK", advice="write components=text_encoder=0,vae=1") from error
    return found


def _checked(components: Components) -> Components:
    if components is None or callable(components):
        return components
    if not isinstance(components, Mapping):
        raise ConfigError(f"components is {components!r:.80}", advice="give a map of names to ranks, or a function")
    for name, stages in components.items():
        several = isinstance(stages, Collection) and all(isinstance(stage, int) for stage in stages)
        if not isinstance(name, str) or not (stages is None or isinstance(stages, int) or several):
            raise ConfigError(f"components has {name!r:.80}: {stages!r:.80}", advice="give names and ranks")
    return components


def written(components: Components) -> str:
    """The same text for the same map in every process; of a function, its name."""
    if components is None:
        return ""
    if callable(components):
        named = components if hasattr(components, "__qualname__") else type(components)
        return f"{named.__module__}.{named.__qualname__}"
    return ",".join(
        f"{name}={'+'.join(map(str, _all(stages))) or 'none'}" for name, stages in sorted(components.items())
    )


def _all(stages: Stages) -> tuple[int, ...]:
    if stages is None:
        return ()
    return (stages,) if isinstance(stages, int) else tuple(sorted(stages))


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
