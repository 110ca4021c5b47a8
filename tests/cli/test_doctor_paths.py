"""What the doctor makes of machines that are not here: GPUs, their wires, adapters, transports, remembered rates."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path as File
from types import SimpleNamespace

import msgspec
import pytest

from coldstart.cli.checks import paths, wires
from coldstart.cli.checks.check import Check
from coldstart.cli.checks.paths import View, Way
from coldstart.cli.checks.wires import Interface, Nvml, Port, Wire
from coldstart.config import Settings
from coldstart.errors import PluginUnavailable, UnknownPlugin
from coldstart.links.rates import Path, Rate
from coldstart.ports import Link, Traits, TransportSettings
from coldstart.skeletons import machine_facts
from coldstart.skeletons.machine_facts import Gpu, TorchFacts

NOW = 1_700_000_000.0
HOST = "10.0.0.7"


def traits(link: Link, *kinds: str) -> Traits:
    return Traits(one_sided=True, needs_peer=True, abortable=True, device_kinds=kinds, link=link)


TCP = (Way("tcp", "cpu", traits("tcp", "cpu", "cuda")), Way("tcp", "cuda", traits("tcp", "cpu", "cuda")))
NCCL = (Way("nccl", "cpu", traits("nvlink", "cuda")), Way("nccl", "cuda", traits("nvlink", "cuda")))
CARD = Interface("eth0", True, 200.0)
ADAPTER = Port("mlx5_0:1", True, 400.0)
BARE = View(TorchFacts("2.11.0+cpu", "", (), "no CUDA"), Nvml(), (), (), TCP[:1], {}, HOST, NOW)


def gpus(*peers: tuple[int, ...]) -> TorchFacts:
    found = tuple(Gpu("H200", 150 << 30, f"{index:04d}", others) for index, others in enumerate(peers))
    return TorchFacts("2.11.0", "13.0", found, "", "2.28.9")


PAIR = View(
    torch=gpus((1,), (0,)),
    nvml=Nvml("580.1", {(0, 1): Wire(18, "one PCIe root")}),
    ports=(ADAPTER,),
    interfaces=(CARD,),
    ways=(*TCP, *NCCL),
    rates={},
    host=HOST,
    now=NOW,
)


def found(view: View) -> Mapping[str, Check]:
    checks = paths.checks(view)
    named = {check.name: check for check in checks}
    assert len(named) == len(checks)
    assert all(check.advice for check in checks if check.status != "ok")
    return named


def change(view: View, **fields: object) -> View:
    return msgspec.structs.replace(view, **fields)


def test_a_machine_without_gpus_has_tcp_and_says_what_it_could_give() -> None:
    checks = found(change(BARE, interfaces=(CARD, Interface("veth1", True, 0.0), Interface("eth1", False, 100.0))))
    assert set(checks) == {"rdma", "network cards", "path tcp"}
    assert checks["network cards"].finding == "eth0 25 GB/s"
    assert "come over tcp" in checks["rdma"].finding
    assert checks["path tcp"].finding == "cpu memory over tcp; not measured"
    assert "coldstart doctor --links PEER" in checks["path tcp"].advice


def test_two_gpus_on_nvlink_are_as_good_as_can_be() -> None:
    checks = found(PAIR)
    assert checks["gpus"].finding == "2 with driver 580.1, CUDA 13.0, NCCL 2.28.9"
    assert (checks["gpu links"].status, checks["gpu links"].finding) == (
        "ok",
        "cuda:0 and cuda:1: peer access, 18 NVLinks",
    )
    assert checks["rdma"].finding == "mlx5_0:1 up 50 GB/s"
    assert checks["path nccl"].finding == "cuda memory over nvlink; not measured"
    assert "not more: cuda memory goes through host memory" in checks["path tcp"].finding


def test_gpus_without_peer_access_are_a_warning_that_says_why() -> None:
    wire = {(0, 1): Wire(0, "different CPUs")}
    check = found(change(PAIR, torch=gpus((), ()), nvml=Nvml("580.1", wire)))["gpu links"]
    assert (check.status, check.finding) == ("warn", "cuda:0 and cuda:1: no peer access (different CPUs)")
    assert "NVLink" in check.advice


def test_pairs_that_are_alike_are_one_line_and_one_way_is_no_access() -> None:
    everybody = gpus(*(tuple(other for other in range(8) if other != index) for index in range(8)))
    check = found(change(PAIR, torch=everybody, nvml=Nvml(trouble="pip install nvidia-ml-py")))["gpu links"]
    assert (check.status, check.finding, check.advice) == ("ok", "all pairs: peer access", "pip install nvidia-ml-py")
    assert found(change(PAIR, torch=gpus((1,), ()), nvml=Nvml()))["gpu links"].status == "warn"


def test_what_a_gpu_is_missing_is_named_with_what_to_do() -> None:
    wrong = "transfer-engine (mooncake-transfer-engine-non-cuda 0.3.13) cannot reach cuda:0 memory"
    ways = (
        *TCP,
        Way("nccl", "cuda", None, "not installed", "pip install it"),
        Way("transfer-engine", "cpu", traits("tcp", "cpu")),
        Way("transfer-engine", "cuda", None, wrong, "install mooncake-transfer-engine-cuda13"),
    )
    checks = found(change(PAIR, ways=ways))
    assert checks["path nccl"] == Check("path nccl", "warn", "cuda: not installed", "pip install it")
    assert checks["path transfer-engine"].status == "ok", "it moves host memory"
    assert f"not more: cuda: {wrong}" in checks["path transfer-engine"].finding
    assert checks["path transfer-engine"].advice == "install mooncake-transfer-engine-cuda13"


def test_ports_that_are_down_and_loopback_are_told() -> None:
    checks = found(change(PAIR, ports=(msgspec.structs.replace(ADAPTER, up=False),), host="127.0.0.1"))
    assert (checks["rdma"].status, checks["rdma"].finding) == ("warn", "mlx5_0:1 DOWN 50 GB/s")
    assert "only loopback" in checks["network cards"].finding
    assert "COLDSTART_HOST" in checks["network cards"].advice


def test_remembered_rates_are_told_with_their_age_and_old_ones_are_not() -> None:
    here = platform.node()
    rates = {
        Path(here, "cuda:0", "10.0.0.8", "cuda:1", "nccl", "nccl"): Rate(2.36e11, "probe", NOW - 7200),
        Path(here, "cuda:0", "10.0.0.9", "cuda:1", "nccl", "nccl"): Rate(1e12, "probe", NOW - 8 * 86400),
        Path("elsewhere", "cuda:0", "10.0.0.9", "cuda:1", "nccl", "nccl"): Rate(1e12, "probe", NOW),
        Path(here, "cpu", "10.0.0.8", "cpu", "tcp", ""): Rate(1e9, "transfer", NOW + 60),
    }
    checks = found(change(PAIR, rates=rates))
    assert "; 236 GB/s from 10.0.0.8 cuda:1 to cuda:0 (probe, 2 h ago)" in checks["path nccl"].finding
    assert checks["path nccl"].advice == ""
    assert "not measured" in checks["path tcp"].finding


async def test_what_is_gathered_here_names_what_gpus_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transport is opened for every kind of memory, and closed again, whatever it does."""
    opened: list[str] = []
    closed: list[str] = []

    class Factory:
        def open(self, settings: TransportSettings) -> Factory:
            if settings.device != "cpu":
                raise PluginUnavailable("cannot reach it", advice="another wheel")
            opened.append(settings.device)
            return self

        traits = traits("tcp", "cpu")

        async def aclose(self) -> None:
            closed.append("cpu")

    def transport(name: str) -> Factory:
        if name == "broken":
            raise RuntimeError("boom")
        if name != "engine":
            raise UnknownPlugin(f"no transport is called {name!r}", advice="installed are: engine")
        return Factory()

    monkeypatch.setattr(paths.registry, "transport", transport)
    monkeypatch.setattr(machine_facts, "torch_facts", lambda: gpus(()))
    said: list[str] = []
    view = await paths.gather(Settings(cache="none"), HOST, ("engine", "broken"), said.append)
    assert [(way.transport, way.kind, way.obstacle) for way in view.ways] == [
        ("engine", "cpu", ""),
        ("engine", "cuda", "cannot reach it"),
        ("broken", "cpu", "RuntimeError: boom"),
        ("broken", "cuda", "RuntimeError: boom"),
        ("nccl", "cuda", "not installed"),
        ("transfer-engine", "cuda", "not installed"),
    ]
    assert "pip install" in view.ways[-1].advice
    assert (opened, closed, said) == (["cpu"], ["cpu"], [])
    assert found(view)["path broken"].status == "warn"


# -------------------------------------------------------------------------------------- the facts


def test_sys_is_read_as_far_as_it_goes(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "INFINIBAND", tmp_path / "infiniband")
    monkeypatch.setattr(wires, "INTERFACES", tmp_path / "net")
    assert (list(wires.rdma_ports()), list(wires.interfaces())) == ([], [])
    for name, content in {
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "infiniband/mlx5_1/ports/1/state": "1: DOWN",
        "net/eth0/operstate": "up",
        "net/eth0/speed": "100000",
        "net/eth1/operstate": "up",
        "net/eth1/speed": "-1",
        "net/lo/operstate": "unknown",
        "net/odd/speed": "fast",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert list(wires.rdma_ports()) == [Port("mlx5_0:1", True, 400.0), Port("mlx5_1:1", False, 0.0)]
    assert list(wires.interfaces()) == [
        Interface("eth0", True, 100.0),
        Interface("eth1", True, 0.0),
        Interface("odd", False, 0.0),
    ]


class Library(SimpleNamespace):
    """NVML with two GPUs, of which the second has two NVLinks fewer."""

    def nvmlInit(self) -> None:
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if not uuid.startswith("GPU-"):
            raise RuntimeError("Not Found")
        return uuid

    def nvmlDeviceGetTopologyCommonAncestor(self, one: object, other: object) -> int:
        return 40

    def nvmlDeviceGetNvLinkState(self, device: object, link: int) -> int:
        if link >= (18 if device == "GPU-a" else 16):
            raise RuntimeError("Invalid Argument")
        return 1


def test_nvml_tells_of_wires(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    told = wires.nvml(["a", "GPU-b"])
    assert told == Nvml("580.1", {(0, 1): Wire(16, "different PCIe roots of one CPU")})
    assert not library.open


def test_without_nvml_or_with_a_broken_one_the_driver_is_still_told(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release\nGCC version: gcc 12\n")
    monkeypatch.setattr(wires, "DRIVER", driver)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told = wires.nvml(["a"])
    assert (told.driver, told.wires) == ("580.159.04", {})
    assert "pip install nvidia-ml-py" in told.trouble

    def refuse() -> None:
        raise RuntimeError("Driver Not Loaded")

    broken = Library()
    broken.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    told = wires.nvml(["a"])
    assert (told.driver, told.trouble) == ("580.159.04", "NVML does not start: Driver Not Loaded")
    monkeypatch.setattr(wires, "DRIVER", tmp_path / "none")
    assert wires.nvml(["a"]).driver == ""
