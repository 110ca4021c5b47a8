"""A figure beside a setting's name is its default; other figures of the pages are the code's constants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from coldstart import estimate, scrubbing, seals
from coldstart.bus.notary import CLOCK_SECONDS
from coldstart.bus.redis import CALL_SECONDS
from coldstart.claiming import LEAD_SECONDS
from coldstart.config import Settings
from coldstart.phases import weigh
from coldstart.plan import Limits
from coldstart.records import MAX_RECORD
from coldstart.shelves.mirror import SMALL_BYTES
from coldstart.shelves.objects import MAX_OBJECTS
from coldstart.transports.tcp_source import HELLO_SECONDS, MAX_STRANGERS
from tests.docs.pages import ROOT, pages

DEFAULTS = {
    f"COLDSTART_{field.name.upper()}": float(field.default)
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.default, int | float)
}
UNITS = {"s": 1.0, "GB/s": 1.0, "MB/s": 1e-3, "%": 1e-2, "times": 1.0, "": 1.0}
"""What one of each is in the unit of its setting."""

FIGURE = r"(?P<figure>\d+(?:\.\d+)?) ?(?P<unit>GB/s|MB/s|s\b|%|times\b)"
BEFORE = re.compile(FIGURE + r"[a-z ]*\(`(?P<name>COLDSTART_\w+)`")
BEHIND = re.compile(
    r"`(?P<name>COLDSTART_\w+)`(?:, | \()(?P<figure>\d+(?:\.\d+)?) ?(?P<unit>GB/s|MB/s|s\b|%|)(?=[:),])"
)


class Told(NamedTuple):
    """A default as a page tells it, in the setting's unit."""

    where: str
    name: str
    value: float


def told(page: Path) -> Iterator[Told]:
    text = " ".join(page.read_text().split())
    for found in (*BEFORE.finditer(text), *BEHIND.finditer(text)):
        yield Told(page.name, found["name"], float(found["figure"]) * UNITS[found["unit"]])


ALL = [each for page in pages() for each in told(page)]


@pytest.mark.parametrize("each", ALL, ids=lambda each: f"{each.where}-{each.name}")
def test_a_figure_beside_a_setting_is_its_default(each: Told) -> None:
    assert each.value == pytest.approx(DEFAULTS[each.name])


def test_the_promises_name_their_figures() -> None:
    named = {each.name for each in ALL if each.where == "README.md"}
    assert {f"COLDSTART_{name}" for name in ("PATIENCE", "FLOOR_GBPS", "MARGIN", "PRESENCE")} <= named


def test_settings_and_the_machine_have_the_same_defaults() -> None:
    limits, settings = Limits(), Settings()
    assert limits.floor == settings.floor_gbps * 1e9
    shared = set(Limits.__struct_fields__) & set(Settings.__struct_fields__)
    assert {"patience", "stall", "answer", "follow", "presence", "margin", "drain"} <= shared
    assert {name: getattr(limits, name) for name in shared} == {name: getattr(settings, name) for name in shared}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("how-it-works.md", f"calls to a store that stands still ({CALL_SECONDS:g} s each, four at most)"),
        ("lending.md", f"every {scrubbing.LOOK_SECONDS:g} s where the share allows it"),
        ("lending.md", f"pause of {1 / Settings().scrub_share:g} times what it took"),
        ("lending.md", {3: "three"}[scrubbing.MISSES] + " times in a row count as wrong"),
        ("estimates.md", f"while it was watched (from {estimate.WATCH:g} s on)"),
        ("estimates.md", f"and at least {estimate.GAIN:g} s longer"),
        ("estimates.md", f"after {estimate.WATCH:g} s or half of what storage would take"),
        ("estimates.md", f"asks again after {weigh.PAUSE:g} s"),
        ("estimates.md", {1.0: "then once a second"}[weigh.AGAIN]),
        ("estimates.md", {1.0: "the place in line is renewed (every second)"}[Limits().retry]),
        ("groups.md", f"not heard of for `COLDSTART_PRESENCE` ({Limits().presence:g} s)"),
        ("object-stores.md", f"more than {MAX_OBJECTS:,} are refused"),
        ("object-stores.md", f"each at most {SMALL_BYTES // 2**20} MiB"),
        ("object-stores.md", f"without progress before another one is elected ({LEAD_SECONDS:g} s)"),
        ("object-stores.md", f"({0.8 * Settings().storage_stall:g} of {Settings().storage_stall:g} s)"),
        ("threat-model.md", f"{MAX_STRANGERS} strangers at a time, {HELLO_SECONDS:g} s each"),
        ("threat-model.md", f"A caller has {HELLO_SECONDS:g} s for all of it"),
        ("threat-model.md", f"each record of at most {MAX_RECORD // 1024} KiB"),
        ("threat-model.md", f"The store's time is asked every {CLOCK_SECONDS:g} s"),
        ("threat-model.md", {60.0: "to another worker of the shard within its minute"}[seals.WINDOW_SECONDS]),
        ("embed.md", f"its advert ends with its lease, {Settings().lease:g} s later"),
        ("embed.md", f"{CALL_SECONDS * 4:g} s four calls of {CALL_SECONDS:g} s"),
    ],
)
def test_other_figures_are_the_codes(page: str, words: str) -> None:
    assert words in " ".join((ROOT / "docs" / page).read_text().split())
