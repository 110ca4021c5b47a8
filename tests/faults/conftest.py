"""Real faults: what the cases share, and the table of what was measured."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from rig.case import Case, rewrite, table
from rig.fleet import Fleet, fleet
from rig.nursery import Nursery
from safetensors.torch import save_file

MIB = 1024 * 1024
_PROPERTY = "fault"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-table",
        metavar="FILE",
        default="",
        help="Write the measured table of faults into FILE, between its marks; '-' prints it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Table(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    case = getattr(item, "funcargs", {}).get("case")
    if report.when == "call" and isinstance(case, Case):
        known = msgspec.structs.replace(case, number=item.session.items.index(item), passed=report.passed)
        report.user_properties.append((_PROPERTY, msgspec.to_builtins(known)))  # crosses processes
    return report


class _Table:
    """Collects the cases, in whatever process they ran."""

    def __init__(self, config: pytest.Config) -> None:
        self._target = config.getoption("--faults-table", default="")
        self._cases: list[Case] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._cases += [msgspec.convert(value, Case) for name, value in report.user_properties if name == _PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        cases = sorted(self._cases, key=lambda case: case.number)
        if self._target == "-":
            terminalreporter.write_line(table(cases))
        elif self._target:
            rewrite(Path(self._target), cases)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A case has its own deadlines; this one is for a machine so busy that a start takes a minute."""
    for item in items:
        if item.get_closest_marker("fault") is not None:
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with tempfile.TemporaryDirectory(prefix="rig") as place:
        nursery = Nursery(Path(place))
        yield nursery
        nursery.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory on a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 24 MiB in two files; never to be changed."""
    return write_shards(tmp_path_factory.mktemp("weights") / "model")


def write_shards(directory: Path, mib: int = 24) -> Path:
    """A checkpoint in two files of equal size, with an index."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(7)
    weight_map: dict[str, str] = {}
    for number in (1, 2):
        name = f"model-{number:05}-of-00002.safetensors"
        tensors = {
            f"layer.{number}.weight": torch.randn(mib * MIB // 2 // 1024, 256, generator=generator),
            f"layer.{number}.bias": torch.randn(7, generator=generator),
        }
        save_file(tensors, directory / name)
        weight_map.update(dict.fromkeys(tensors, name))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case as its mark tells it."""
    mark = request.node.get_closest_marker("fault")
    assert mark is not None, "say which fault it is: @pytest.mark.fault(fault, where, outcome, seconds)"
    group = (request.module.__doc__ or "").partition("\n")[0].rstrip(".")
    variant = request.node.callspec.id if hasattr(request.node, "callspec") else ""
    return Case(*mark.args, group=group, variant=variant)


@pytest.fixture
def kind() -> str:
    """Which store; parametrize it to have both."""
    return "valkey"


@pytest.fixture
async def workers(nursery: Nursery, place: Path, weights: Path, kind: str) -> AsyncIterator[Fleet]:
    async with fleet(nursery, place, weights, kind) as made:
        yield made
