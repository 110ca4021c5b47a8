"""The page of ``coldstart report``, as a real browser shows it: in proportion, with nothing loaded or executed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, sync_playwright

from coldstart.chronicle.starts import ColdStart
from coldstart.cli.report import length, write
from coldstart.cli.report_gantt import rollouts
from coldstart.cli.report_page import MOST, page
from coldstart.errors import ConfigError
from tests.operate.starts import BEGAN, failed_start, fallen_start, peer_start, rollout, storage_start

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser here (Debian: chromium)")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
MADE = datetime.fromtimestamp(BEGAN + 3600, UTC)
HOSTILE = "<img src=http://127.0.0.1:9/x onerror=alert(1)>'\"&\x1b[2J\u202e</title></style><script>alert(2)</script>"

Shown = Callable[[Sequence[ColdStart]], Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Shown]:
    """A page as it looks; afterwards, nothing else may have been asked for, and nothing have gone wrong."""
    wrong: list[str] = []
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def show(starts: Sequence[ColdStart]) -> Page:
        file = tmp_path / "fleet.html"
        file.write_text(page(starts, MADE, "The last hour"), encoding="utf-8")
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(file.as_uri())
        return tab

    yield show
    context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == 1


def bars(tab: Page, name: str) -> list[dict[str, float]]:
    """Where the rectangles of a class are."""
    found: list[dict[str, float]] = tab.eval_on_selector_all(
        f".rollout .gantt rect.{name}", "all => all.map(one => one.getBoundingClientRect().toJSON())"
    )
    return found


@needs_browser
def test_bars_are_as_long_as_what_they_stand_for(shown: Shown) -> None:
    starts = [storage_start("w0", 0.0, took=20.0), peer_start("w1", 10.0, "w0", took=10.0)]
    tab = shown(starts)
    (read,), (transfer,) = bars(tab, "fallback"), bars(tab, "transfer")
    by_name = {each.worker: each for each in starts}
    fallback, pulling = by_name["w0"].phases[1], by_name["w1"].phases[2]
    assert fallback.end is not None
    assert pulling.end is not None
    told = (pulling.end - pulling.begin) / (fallback.end - fallback.begin)
    assert transfer["width"] / read["width"] == pytest.approx(told, rel=0.02)
    axis = tab.locator(".rollout .axis svg").bounding_box()
    assert axis is not None
    assert read["width"] / axis["width"] == pytest.approx((fallback.end - fallback.begin) / 20.0, rel=0.02)
    assert read["left"] - axis["x"] == pytest.approx((fallback.begin - BEGAN) / 20.0 * axis["width"], abs=2)
    assert transfer["left"] > read["left"]
    assert len(bars(tab, "pull")) == 2
    assert "from w0, 16.0 GB" in (tab.locator("rect.pull.peer title").first.text_content() or "")


@needs_browser
def test_fallbacks_and_failures_say_why_and_text_can_be_selected(shown: Shown) -> None:
    starts = [*rollout(4), fallen_start("w8", 3.0, "w1", "stalled"), failed_start("w9", 5.0, "disk on fire")]
    tab = shown(starts)
    said = tab.locator(".fallbacks tbody tr").all_inner_texts()
    assert [[cell.strip() for cell in row.split("\t")[1:]] for row in said] == [
        ["w9", "failed", "the store cannot be reached\ndisk on fire"],
        ["w8", "serving, path mixed", "w1: stalled"],
    ]
    assert tab.locator(".figures .bad").inner_text().split() == ["1", "failed"]
    assert len(bars(tab, "pull.left")) == 1
    assert tab.locator(".sources .row").first.inner_text().startswith("w0")
    tab.locator(".fallbacks tbody").evaluate("row => window.getSelection().selectAllChildren(row)")
    assert "disk on fire" in str(tab.evaluate("window.getSelection().toString()"))
    tab.locator("summary").click()
    assert tab.locator("details tbody tr").count() == len(starts)


@needs_browser
def test_five_hundred_starts_and_one(shown: Shown, browser: Browser) -> None:
    tab = shown(rollout(500))
    assert tab.locator(".rollout .row:not(.axis)").count() == 500
    assert len(bars(tab, "transfer")) == 499
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


@needs_browser
def test_one_start_of_nobody_knows_what(shown: Shown) -> None:
    """All that is known of it is that it began."""
    bare = replace(storage_start("w0", 0.0), phases=(), transfers=(), sources={}, seconds=None, outcome="running")
    tab = shown([bare])
    assert tab.locator(".rollout .row:not(.axis)").inner_text().split() == ["w0", "running"]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(shown: Shown, scheme: str) -> None:
    tab = shown(rollout(3))
    tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    ink, paper = (
        tab.evaluate(f"getComputedStyle(document.body).{what}.match(/\\d+/g).map(Number)")
        for what in ("color", "backgroundColor")
    )
    assert (sum(paper) < sum(ink)) is (scheme == "dark")
    assert abs(sum(paper) - sum(ink)) > 450


@needs_browser
def test_hostile_names_are_text(shown: Shown) -> None:
    evil = replace(
        fallen_start(HOSTILE, 0.0, HOSTILE, HOSTILE), host=HOSTILE, model=HOSTILE, reason=HOSTILE, shard=HOSTILE
    )
    tab = shown([evil, replace(failed_start(HOSTILE, 1.0, HOSTILE), worker=HOSTILE)])
    assert tab.locator("img, script, iframe, link").count() == 0
    assert tab.title() == "Cold starts, 2026-09-21 15:13"
    assert "<script>alert(2)</script>" in tab.locator(".fallbacks").inner_text()
    assert "\u202e" not in tab.content()


def test_the_page_loads_nothing_and_has_no_script() -> None:
    text = page(rollout(3), MADE, "The last hour")
    for word in ("<script", "http://", "https://", "url(", "@import", " src=", " href=", "javascript:"):
        assert word not in text
    assert "default-src 'none'" in text


def test_starts_far_apart_are_two_rollouts_and_the_page_has_an_end() -> None:
    found = rollouts([*rollout(3), *rollout(2, 1000.0)])
    assert [len(each.starts) for each in found] == [2, 3]
    many = page([peer_start(f"w{number}", number * 0.01, "w0") for number in range(MOST + 3)], MADE, "The last hour")
    assert "3 earlier ones are left out." in many
    assert many.count('class="row serving"') == MOST


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("1.5d", 129_600), ("1w", 604_800)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert length(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "0s", "1 hour", "1e9s", "²h", "99999999h"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length of time"):
        length(text)


def test_a_page_replaces_files_alone(tmp_path: Path) -> None:
    """Behind a link, what it leads to; what is no file, such as a device, stays what it is."""
    page, link, pipe, loop = (tmp_path / name for name in ("x" * 255, "link", "pipe", "loop"))
    write(str(page), "old")
    link.symlink_to(page)
    write(str(link), "new")
    assert (page.read_text(), link.is_symlink()) == ("new", True)
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(str(pipe), "piped")
    reader.join(timeout=20)
    assert (read, pipe.is_fifo()) == (["piped"], True)
    loop.symlink_to(loop)
    for out in ("", ".", str(tmp_path), str(loop), str(page / "x"), str(tmp_path / "no" / "x"), "/dev/full", "a\0"):
        with pytest.raises(ConfigError, match=r"cannot be written|names no file"):
            write(out, "text")
    assert not Path("/dev/full").is_file()
    assert {each.name for each in tmp_path.iterdir()} == {page.name, "link", "pipe", "loop"}
