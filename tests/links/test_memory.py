"""What a worker knows of the links around it, and what it makes of it, in virtual time."""

from __future__ import annotations

from pathlib import Path as File

import anyio
import pytest

from coldstart.layout import Span
from coldstart.links import files
from coldstart.links.memory import MAX_FAVOURS, Links, recall
from coldstart.links.meter import PROBE_SECONDS, Meter
from coldstart.links.mounts import mount_of
from coldstart.links.rates import WEEK, Path, Rate
from coldstart.ports import Advert
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

NOW = 1_700_000_000.0
MIB = 1 << 20
ORDER = ("engine", "tcp")


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def advert(host: str = "10.0.0.7", device: str = "cpu") -> Advert:
    return Advert("a", "a.1", "1", 1, "aa", 2, 4, 4, ORDER, host, device)


def path(transport: str, host: str = "10.0.0.7", device: str = "cpu", here: str = "me", route: str = "") -> Path:
    return Path(here, device, host, "cpu", transport, route)


def links(directory: File | None = None, now: float = NOW, **rates: float) -> Links:
    known = {path(transport): Rate(rate, "probe", NOW) for transport, rate in rates.items()}
    return Links(directory, "cpu", known, here="me", clock=lambda: now)


async def pulled(meter: Meter, *steps: tuple[float, int]) -> Meter:
    """The meter after a pull of so many MiB, each after so many seconds."""
    count = meter.counting(lambda span: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meter.probed)
        for seconds, mib in steps:
            await anyio.sleep(seconds)
            count(Span(0, mib * MIB))
        meter.end()
    return meter


# ------------------------------------------------------------------------------------ preference


async def test_the_quicker_one_is_favoured_from_that_host_only() -> None:
    known = links(engine=1e9, tcp=2e9)
    assert known.favours(ORDER) == {"10.0.0.7": ("tcp", "engine")}
    assert known.favours(("tcp", "engine")) == {}
    assert {host: tuple(rates) for host, rates in known.hosts().items()} == {"10.0.0.7": ORDER}


async def test_nothing_is_favoured_for_what_is_old_from_the_future_or_anothers() -> None:
    for now in (NOW + WEEK, NOW - 3600):
        assert links(None, now, engine=1e9, tcp=2e9).favours(ORDER) == {}
    for other in (path("tcp", here="you"), path("tcp", device="cuda:0")):
        rates = {path("engine"): Rate(1e9, "probe", NOW), other: Rate(2e9, "probe", NOW)}
        assert Links(None, "cpu", rates, here="me", clock=lambda: NOW).favours(ORDER) == {}


async def test_the_best_route_of_a_transport_counts() -> None:
    rates = {
        path("engine", route="rdma"): Rate(3e9, "probe", NOW),
        path("engine", route="tcp"): Rate(1e9, "probe", NOW),
        path("tcp"): Rate(2e9, "probe", NOW),
    }
    assert Links(None, "cpu", rates, here="me", clock=lambda: NOW).favours(ORDER) == {}


async def test_a_large_fleet_is_told_in_few_words() -> None:
    hosts = [f"10.0.1.{number}" for number in range(2 * MAX_FAVOURS)]
    rates = {
        path(transport, host): Rate(rate, "probe", NOW - number)
        for number, host in enumerate(hosts)
        for transport, rate in (("engine", 1e9), ("tcp", 2e9))
    }
    favours = Links(None, "cpu", rates, here="me", clock=lambda: NOW).favours(ORDER)
    assert list(favours) == hosts[:MAX_FAVOURS], "those measured last"


# --------------------------------------------------------------------------------------- learning


async def test_the_first_pull_from_a_host_is_probed_and_the_best_is_kept(tmp_path: File) -> None:
    known = links(tmp_path)
    meter = await pulled(known.meter(advert(), "tcp"), (1.0, 1), *((PROBE_SECONDS / 10, 10),) * 10, (1.0, 10))
    passage = known.learn(advert(), "tcp", "", meter)
    assert passage.origin == "probe"
    assert passage.link == pytest.approx(100 * MIB / PROBE_SECONDS, rel=0.15)
    assert passage.moved.rate == pytest.approx(110 * MIB / (PROBE_SECONDS + 1.0))
    assert passage.share == pytest.approx(passage.moved.rate / passage.link)
    slow = known.learn(advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, 50)))
    assert (slow.link, slow.origin) == (passage.link, "probe")
    quick = known.learn(advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (0.1, 500)))
    assert (quick.link, quick.origin, quick.share) == (pytest.approx(5000 * MIB), "transfer", pytest.approx(1.0))


async def test_a_way_that_is_known_is_not_probed_again_for_a_week(tmp_path: File) -> None:
    def probes(known: Links, source: Advert, transport: str) -> bool:
        return known.meter(source, transport)._probing

    known = links(tmp_path, tcp=1e9)
    assert not probes(known, advert(), "tcp")
    assert probes(known, advert(), "engine")
    assert probes(known, advert("10.0.0.8"), "tcp")
    assert probes(known, advert(device="cuda:0"), "tcp")
    assert probes(links(tmp_path, NOW + WEEK, tcp=1e9), advert(), "tcp")
    assert not probes(links(None), advert(), "engine"), "nothing is remembered, so nothing is probed"


async def test_a_rate_that_is_too_old_gives_way_to_a_slower_one() -> None:
    known = links(None, NOW + WEEK, tcp=9e9)
    passage = known.learn(advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, 100)))
    assert (passage.link, passage.origin, passage.age) == (pytest.approx(100 * MIB), "transfer", 0.0)


async def test_the_age_of_what_was_known_is_told() -> None:
    passage = links(None, NOW + 3600, tcp=9e9).learn(
        advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, 100))
    )
    assert (passage.link, passage.origin, passage.age) == (9e9, "probe", 3600.0)


async def test_a_pull_of_a_few_bytes_teaches_nothing(tmp_path: File) -> None:
    known = links(tmp_path)
    passage = known.learn(advert(), "tcp", "", await pulled(known.meter(advert(), "tcp"), (0.1, 1), (0.1, 1)))
    assert (passage.link, passage.origin, passage.share) == (0.0, "none", 0.0)
    assert "10.0.0.7" not in known.hosts()


async def test_a_pull_that_broke_off_or_brought_wrong_bytes_teaches_nothing(tmp_path: File) -> None:
    known = links(tmp_path, engine=1e6)
    meter = await pulled(known.meter(advert(), "tcp"), (0.1, 1), (0.1, 100))
    passage = known.learn(advert(), "tcp", "", meter, sound=False)
    assert (passage.link, passage.origin, passage.moved.nbytes) == (0.0, "none", 100 * MIB)
    assert known.hosts()["10.0.0.7"].keys() == {"engine"}
    passage = known.learn(advert(), "engine", "", meter, sound=False)
    assert (passage.link, passage.origin) == (1e6, "probe")


async def test_names_without_end_are_not_remembered(tmp_path: File) -> None:
    known = links(tmp_path)
    passage = known.learn(advert("x" * 5000), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, 100)))
    assert passage.link == pytest.approx(100 * MIB)
    assert "x" * 5000 not in known.hosts()


# ------------------------------------------------------------------------------------------- disk


async def test_what_one_process_learns_the_next_one_knows(tmp_path: File) -> None:
    directory = tmp_path / "links"
    assert await recall(directory) == {}
    assert await recall(None) == {}
    known = Links(directory, "cpu", here="me", clock=lambda: NOW)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(known.run)
        known.learn(advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, 100)))
        with anyio.fail_after(10):
            while path("tcp") not in await recall(directory):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    rate = (await recall(directory))[path("tcp")]
    assert (rate.bytes_per_second, rate.origin, rate.at) == (pytest.approx(100 * MIB), "transfer", NOW)


async def test_a_disk_that_refuses_costs_a_line_and_nothing_else(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def refuse(directory: File, path: Path, rate: Rate) -> None:
        tried.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save", refuse)
    known = links(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(known.run)
        for mib in (100, 200):
            known.learn(advert(), "tcp", "", await pulled(Meter(), (0.1, 1), (1.0, mib)))
        with anyio.fail_after(10):
            while len(tried) < 2:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert known.hosts()["10.0.0.7"]["tcp"].bytes_per_second == pytest.approx(200 * MIB)


# --------------------------------------------------------------------------------------- storage


async def test_the_rate_of_storage_is_kept_for_its_mount_and_the_next_process(tmp_path: File) -> None:
    known = links(tmp_path)
    known.learn_storage("/models", await pulled(Meter(), (0.0, 8), (1.0, 100)))
    assert known.storage("/models") == pytest.approx(100 * MIB)
    assert known.storage("/other") == 0.0
    await known.flush()
    later = Links(tmp_path, "cpu", await recall(tmp_path), here="me", clock=lambda: NOW)
    assert later.storage("/models") == pytest.approx(100 * MIB)
    assert Links(tmp_path, "cuda:0", await recall(tmp_path), here="me", clock=lambda: NOW).storage("/models") == 0.0
    assert Links(tmp_path, "cpu", await recall(tmp_path), here="me", clock=lambda: NOW + WEEK).storage("/models") == 0.0


async def test_storage_is_believed_to_be_slow_at_once_and_quick_by_and_by() -> None:
    known = links()
    for mib, believed in ((100, 100), (40, 40), (200, 120), (200, 160)):
        known.learn_storage("/models", await pulled(Meter(), (0.0, 8), (1.0, mib)))
        assert known.storage("/models") == pytest.approx(believed * MIB)


async def test_a_rate_of_storage_is_no_rate_of_a_link() -> None:
    known = links(tcp=2e9)
    known.learn_storage("/models", await pulled(Meter(), (0.0, 8), (1.0, 100)))
    assert known.best_by_host() == {"10.0.0.7": 2e9}
    assert known.favours(("storage", *ORDER)) == {}


async def test_little_that_was_read_and_storage_without_a_name_say_nothing() -> None:
    known = links()
    known.learn_storage("/models", await pulled(Meter(), (0.0, 1), (1.0, 1)))
    known.learn_storage("", await pulled(Meter(), (0.0, 8), (1.0, 100)))
    known.learn_storage("/" + "m" * 300, await pulled(Meter(), (0.0, 8), (1.0, 100)))
    assert [known.storage(mount) for mount in ("/models", "", "/" + "m" * 300)] == [0.0, 0.0, 0.0]


async def test_what_we_received_at_is_told_of_sound_pulls_only() -> None:
    known = links()
    meter = await pulled(Meter(), (0.0, 8), (1.0, 100))
    known.learn(advert(), "tcp", "", meter, sound=False)
    assert known.received == 0
    known.learn(advert(), "tcp", "", meter)
    known.learn(advert(), "tcp", "", await pulled(Meter(), (0.0, 8), (1.0, 50)))
    assert known.received == 100 * MIB


def test_a_mount_is_where_the_path_is_mounted(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "model")
    mounts = {str((tmp_path / "disk").resolve()), "/"}
    monkeypatch.setattr("os.path.ismount", lambda place: str(place) in mounts)
    assert mount_of(tmp_path / "link" / "weights") == str((tmp_path / "disk").resolve())
    assert mount_of(tmp_path) == "/"
