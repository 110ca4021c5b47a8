"""Makes a working tree's transports and skeletons known where nothing of it is installed.

coldstart finds its plugins by entry points, which an installed distribution has and a working tree on
PYTHONPATH has not. This reads them from the ``pyproject.toml`` of the tree and of its plugins, and puts
a stand-in for the missing distributions on the path.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def register() -> None:
    """Add what is missing to this process's path, and to that of processes started from it."""
    added: list[str] = []
    lines: list[str] = []
    for source, groups in _projects():
        missing = {group: _missing(group, names) for group, names in groups.items()}
        if not any(missing.values()):
            continue
        added.append(str(source))
        for group, names in missing.items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())] if names else []
    if not lines:
        return
    place = Path(tempfile.gettempdir(), f"coldstart-working-tree-{os.getuid()}")
    stand_in = place / "coldstart_working_tree-0.dist-info"
    stand_in.mkdir(parents=True, exist_ok=True)
    (stand_in / "METADATA").write_text("Metadata-Version: 2.1\nName: coldstart-working-tree\nVersion: 0\n")
    (stand_in / "entry_points.txt").write_text("\n".join(lines) + "\n")
    paths = [*added, str(place)]
    sys.path.extend(path for path in paths if path not in sys.path)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([inherited] if inherited else []), *paths])


def _projects() -> Iterator[tuple[Path, Mapping[str, Mapping[str, str]]]]:
    """Where the sources of each project are, and its entry points for coldstart."""
    homes = [(ROOT, ROOT), *((home, home / "src") for home in sorted(ROOT.glob("plugins/*")))]
    for home, source in homes:
        try:
            project = tomllib.loads((home / "pyproject.toml").read_text())["project"]
        except (OSError, KeyError):
            continue
        groups: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
        yield source, {group: names for group, names in groups.items() if group.startswith("coldstart.")}


def _missing(group: str, names: Mapping[str, str]) -> Mapping[str, str]:
    known = {point.name for point in entry_points(group=group)}
    return {name: target for name, target in names.items() if name not in known}
