"""Every family of the zoo, by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.zoo.family import Family


def families() -> dict[str, Family]:
    """Those that the ``transformers_*``, ``diffusers_*`` and ``torch_*`` modules here declare, in their order."""
    known: dict[str, Family] = {}
    for path in sorted(Path(__file__).parent.glob("*_*.py")):
        if path.name.startswith(("transformers_", "diffusers_", "torch_")):
            declared: list[Family] = import_module(f"tests.zoo.{path.stem}").FAMILIES
            for family in declared:
                if family.name in known:
                    raise ValueError(f"two families are called {family.name!r}")
                known[family.name] = family
    return known
