"""What the tests share: where they can run, and this package as if pip had installed it."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from coldstart_transfer_engine import library

pytest.register_assert_rewrite(
    "coldstart.testing.connecting_contract",
    "coldstart.testing.keyed_contract",
    "coldstart.testing.late_writes",
    "coldstart.testing.transport_contract",
)

HERE = Path(__file__).parent.parent
WITHOUT_LIBRARY = {"test_lanes.py", "test_places.py", "test_reads.py", "test_surroundings.py"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _where_it_can_run(request: pytest.FixtureRequest) -> None:
    obstacle = "" if request.path.name in WITHOUT_LIBRARY else library.obstacle()
    if obstacle:
        pytest.skip(obstacle)


@pytest.fixture
def installed(tmp_path: Path) -> Mapping[str, str]:
    """An environment for processes in which this package is installed: its code and its metadata are on their path.

    Nobody else's processes get it, since coldstart uses what is installed.
    """
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "site" / f"coldstart_transfer_engine-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    path = os.pathsep.join([str(metadata.parent), str(HERE / "src"), *filter(None, sys.path)])
    own = {"COLDSTART_DIRECTORY": str(tmp_path / "store"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**os.environ, "PYTHONPATH": path, **own}
