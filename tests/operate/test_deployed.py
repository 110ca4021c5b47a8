"""The dashboard and the alerts that users deploy: every metric in them is in a real scrape, every query is PromQL, and
each alert fires for what it is there for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart.reasons import Cause
from tests.operate.scraping import environment, exporter, free_port, needs_promtool, promtool, samples, scrape

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "coldstart.json"

Write = Callable[..., Path]


def expressions() -> list[str]:
    """The dashboard's queries, with Grafana's own variables as it would fill them in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    filled = {"$__range": "1h", "$__rate_interval": "1m", "$__interval": "30s", "$shard": ".*"}
    for name, value in filled.items():
        found = [each.replace(name, value) for each in found]
    assert not any("$" in each for each in found)
    return found


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory, write_checkpoint: Write) -> Iterator[list[str]]:
    """What Prometheus gets from two real workers, of which the second has its weights from the first, and then from
    the exporter of their fleet."""
    home = tmp_path_factory.mktemp("scraped")
    checkpoint = str(write_checkpoint(home / "m", mib=8))
    workers: list[subprocess.Popen[str]] = []
    ports: list[int] = []
    try:
        for name in ("w1", "w2"):
            ports.append(free_port())
            words = ("--checkpoint", checkpoint, "--skeleton", "tensors", "--name", name, "--json")
            process = subprocess.Popen(
                [sys.executable, "-m", "coldstart.cli.main", "worker", *words, "--metrics-port", str(ports[-1])],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(home),
            )
            workers.append(process)
            assert process.stdout is not None
            while json.loads(process.stdout.readline())["event"] != "serving":
                pass
        shown = [scrape(port) for port in ports]
        with exporter(home) as port:
            while "coldstart_fleet_holders{" not in (told := scrape(port)):
                time.sleep(0.1)
        yield [*shown, told]
    finally:
        for process in workers:
            process.terminate()
        for process in workers:
            process.communicate(timeout=30)
            assert process.returncode == 0


@pytest.mark.processes
def test_a_real_scrape_has_what_was_done(scrapes: list[str]) -> None:
    first, second, _ = (samples(text) for text in scrapes)
    assert first["coldstart_starts_total,served,storage"] == 1
    assert second["coldstart_starts_total,served,peer"] == 1
    assert second["coldstart_transferred_bytes_total,received,tcp"] > 8_000_000
    assert second["coldstart_transfer_rate_bytes_per_second_count,tcp"] == 1
    assert 0 < second["coldstart_start_duration_seconds_sum,peer"] < 60
    assert first["coldstart_slots"] == 2
    assert first["coldstart_slots_used"] <= 1, "the last joiner's slot may not be given back yet"
    assert {f"coldstart_fallbacks_total,{cause}" for cause in Cause} <= first.keys(), "at 0 from the beginning"
    assert sum(value for name, value in first.items() if name.startswith("coldstart_fallbacks")) == 0


@pytest.mark.processes
def test_every_metric_of_dashboard_alerts_and_page_is_in_a_real_scrape(scrapes: list[str]) -> None:
    shown = {name.partition(",")[0] for text in scrapes for name in samples(text)}
    shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    for file in (ALERTS, DASHBOARD, ROOT / "docs" / "operate.md"):
        named = set(re.findall(r"\bcoldstart_[a-z_]+[a-z]\b", file.read_text()))
        assert len(named) > 5, file
        assert named - shown == set(), file


@pytest.mark.processes
@needs_promtool
def test_the_scrape_is_as_prometheus_wants_it(scrapes: list[str]) -> None:
    for text in scrapes:
        promtool("check", "metrics", text=text)


@needs_promtool
def test_the_alerts_fire_for_what_they_are_there_for(tmp_path: Path) -> None:
    promtool("check", "rules", str(ALERTS))
    for file in (ALERTS, Path(__file__).parent / "alerts_test.yaml"):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", str(tmp_path / "alerts_test.yaml"))


@needs_promtool
def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(expressions())]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [
        (at["x"] + across, at["y"] + down) for at in places for across in range(at["w"]) for down in range(at["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over one another"
    assert all(panel["type"] == "row" or panel["targets"] for panel in panels)


def test_each_alert_has_its_place_in_the_page() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    names = re.findall(r"alert: (\w+)", ALERTS.read_text())
    assert len(names) == 7
    for name in names:
        assert f"#{name.lower()}" in ALERTS.read_text()
        assert f"### {name}\n" in page
