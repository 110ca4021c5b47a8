"""Nothing that comes from a peer, a store or a checkpoint is ever run, and no path from a peer is ever opened."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.errors import ColdstartError
from coldstart.identity import Truth, decode_truth
from coldstart.layout import Layout, Tensor
from coldstart.messages import Done, Hello, Offer, Refusal, encode
from coldstart.ports import Advert
from coldstart.testing.bus_contract import advert
from coldstart.testing.harness import LAYOUT, LINEAGE, SHARD, fleet
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime
from coldstart.transports.wire import Ticket, decode_ticket

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for part in ("coldstart", "plugins", "examples") for path in (ROOT / part).rglob("*.py") if path.is_file()
)

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "ctypes.util"}
"""What runs code that it reads, or may."""
CALLS = {"eval", "exec", "compile", "torch.load", "numpy.load", "np.load", "torch.jit.load", "os.system", "os.popen"}


def forbidden(tree: ast.AST) -> Iterator[str]:
    """What in a file could run what it reads: by line and name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno}: import {each.name}" for each in names if each.name in MODULES)
            case ast.ImportFrom(module=str(module)) if module in MODULES:
                yield f"{node.lineno}: from {module}"
            case ast.Call(func=func, keywords=keywords):
                name = ast.unparse(func)
                words = {each.arg: ast.unparse(each.value) for each in keywords}
                harmless = name == "torch.load" and words.get("weights_only") == "True"
                if (name in CALLS and not harmless) or words.get("shell") == "True":
                    yield f"{node.lineno}: {name}(...)"
                if words.get("trust_remote_code") == "True" or words.get("allow_pickle") == "True":
                    yield f"{node.lineno}: {name} with {words}"
                if name.endswith("import_module") and node.args and isinstance(node.args[0], ast.Constant):
                    yield from (f"{node.lineno}: {each}" for each in MODULES & {str(node.args[0].value)})


def test_no_module_runs_what_it_reads() -> None:
    assert len(SOURCES) > 200
    found = {str(path.relative_to(ROOT)): list(forbidden(ast.parse(path.read_text()))) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_search_finds_what_it_is_for() -> None:
    text = """
import pickle
from marshal import loads
importlib.import_module("dill")
eval("1")
torch.load(path)
torch.load(path, weights_only=True)
numpy.load(path, allow_pickle=True)
subprocess.run(line, shell=True)
AutoModel.from_pretrained(path, trust_remote_code=True)
"""
    assert len(list(forbidden(ast.parse(text)))) == 9


# ------------------------------------------------------------------------------------------- paths

_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in ("open", "os.listdir", "os.scandir", "import", "subprocess.Popen", "os.exec"):
        _opened.append(f"{event} {arguments[0]!r}")


sys.addaudithook(_hook)  # for the rest of the process: there is no way to take one off


@contextmanager
def watched() -> Iterator[list[str]]:
    """All that the interpreter opens, lists, imports or starts meanwhile."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def test_the_watch_sees_what_is_opened(tmp_path: Path) -> None:
    (tmp_path / "canary").touch()
    with watched() as opened, (tmp_path / "canary").open():
        pass
    assert any("canary" in each for each in opened)


async def test_no_path_from_a_peer_is_opened(tmp_path: Path) -> None:
    """Every text that a peer may choose is the path of a file that exists; nobody looks at it."""
    canary = tmp_path / "canary"
    canary.write_bytes(b"x" * 100)
    texts = (str(canary), f"file://{canary}", f"../../../../{canary}", "canary")
    with watched() as opened:
        for text in texts:
            with suppress(ColdstartError, ValueError):
                decode_ticket(msgspec.msgpack.encode({"host": text, "port": 1, "secret": bytes(16), "transfer": text}))
            tensor = Tensor(text, "uint8", (1,), (1,), 0, 0)
            truth = Truth(SHARD.key, Layout((tensor,), (1,), 4096), text, bytes(16))
            with suppress(ColdstartError):
                decode_truth(truth.encode(), shard=SHARD.key)
            async with fleet() as workers:
                a = workers.start("a")
                await a.lends()
                raw = MemoryBus(workers.store)
                await _write(raw, a.inbox, text)
                assert (await workers.start("b").ready()).path == "peer"
                await a.drain()
    assert [each for each in opened if "canary" in each] == []


async def _write(raw: MemoryBus, inbox: str, text: str) -> None:
    """All that a stranger at the store can say in free text."""
    shard, about = SHARD.key, {"transfer": "t", "answer": 1}
    messages = (
        Hello(transfer="t", joiner="j", number=1, layout="", transports=(), trace=text, favours={text: ("tcp",)}),
        Offer(number=1, transport="tcp", ticket=text.encode(), generation=1, **about),
        Refusal(reason=text, **about),
        Done(transfer="t", outcome=text),
    )
    for number, message in enumerate(messages):
        await raw.send(shard, inbox, encode(message), f"n{number}")
    imp: Advert = advert("imp", layout=LINEAGE, transports=(text,), host=text, device=text, rack=text)
    await raw.advertise(shard, imp, 60)
    await raw.record(shard, [text.encode()])
    await raw.publish_truth(shard, "b" * 32, "root", text.encode())


def test_a_ticket_holds_an_address_and_nothing_else() -> None:
    assert set(Ticket.__struct_fields__) == {"host", "port", "secret", "transfer"}
    assert LAYOUT.chunks > 0
