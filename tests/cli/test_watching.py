"""What a picture of a fleet shows, from adverts and journals alone; and how it is said."""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.chronicle.starts import ColdStart, Mark, Refusal, Stretch, Transfer
from coldstart.cli.journal_words import items
from coldstart.cli.looking import Look
from coldstart.cli.watch_words import lines
from coldstart.cli.watching import MOST, Picture, picture
from coldstart.ports import Advert

NOW = 1_000_000.0


def advert(worker: str, have: int = 100, **more: object) -> Advert:
    made = Advert(worker, f"{worker}.1", worker, 1, "aa", 2, have, 100, ("tcp",), "10.0.0.1", "cpu")
    return replace(made, **more)


def start(worker: str, *, source: str = "", outcome: str = "running", **more: object) -> ColdStart:
    began = NOW - 30
    pulls = (Transfer(1, source, "tcp", began + 1, None),) if source else ()
    phase = {"running": "TRANSFER" if source else "DISCOVER", "serving": "SERVE", "failed": "FAILED"}[outcome]
    made = ColdStart(
        start=worker, worker=worker, shard="s", model="minilm@1", host="", rank="", trace="", group="", index=0, size=1,
        began=began, heard=NOW - 1, built=0.5, outcome=outcome,  # type: ignore[arg-type]
        seconds=None if outcome == "running" else 20.0, total=0 if outcome == "running" else 10**9,
        verified=0, chunks=100, sources={}, phases=(Stretch(phase, phase, 1, source, began + 1, None),),
        transfers=pulls, refusals=(), marks=(), loans=(),
    )  # fmt: skip
    return replace(made, **more)


def told(look: Look, before: Picture | None = None) -> str:
    return "\n".join(said.text for said in lines(picture(look, before)))


SERVING = start("a", outcome="serving", sources={"storage": 10**9})


def test_transfers_are_a_tree_with_progress_and_rate() -> None:
    starts = (SERVING, start("b", source="a"), start("c", source="b"), start("d", source="a"))
    first = Look(NOW, {"s": (advert("a"), advert("b", 20), advert("c", 10), advert("d", 0))}, starts)
    then = Look(NOW + 2, {"s": (advert("a"), advert("b", 60), advert("c", 10), advert("d", 0))}, starts)
    said = told(then, picture(first)).splitlines()
    tree = said[said.index("transfers") + 1 : said.index("transfers") + 5]
    assert tree[0] == "  a"
    assert tree[1].startswith("  ├─ b [##########......]  60%  600.0 MB of 1.0 GB  200.0 MB/s  2.00 s left over tcp")
    assert tree[2].startswith("  │  └─ c [##..............]  10%  100.0 MB of 1.0 GB over tcp")
    assert tree[3].startswith("  └─ d [................]   0%")
    again = picture(replace(then, now=NOW + 3), picture(then, picture(first)))
    assert next(each for each in again.moving if each.worker == "b").rate == 200e6, "an advert comes every two seconds"
    later = picture(replace(then, now=NOW + 60), again)
    assert next(each for each in later.moving if each.worker == "b").rate == 0


def test_of_several_sources_the_first_is_in_the_tree_and_the_others_are_named() -> None:
    pulls = tuple(Transfer(attempt, name, "tcp", NOW - 9, None) for attempt, name in ((1, "a"), (-1, "c"), (-2, "d")))
    ended = Transfer(-3, "e", "tcp", NOW - 9, NOW - 5, outcome="stalled")
    adverts = (advert("a"), advert("b", 20), advert("c"), advert("d"), advert("e"))
    look = Look(NOW, {"s": adverts}, (SERVING, start("b", transfers=(*pulls, ended))))
    (moving,) = picture(look).moving
    assert (moving.source, moving.others) == ("a", ("c", "d"))
    assert "over tcp, also from c, d, for " in told(look)


def test_before_anybody_has_served_progress_is_in_chunks_and_two_that_name_each_other_are_shown() -> None:
    starts = (start("b", source="c"), start("c", source="b"))
    said = told(Look(NOW, {"s": (advert("b", 20), advert("c", 10))}, starts))
    assert "b [###.............]  20%  20/100 chunks" in said
    assert "c [##..............]  10%  10/100 chunks" in said


def test_holders_say_who_holds_what() -> None:
    adverts = (advert("a", used=1), advert("b", 50), advert("c", 0), advert("d", struck=True))
    said = told(Look(NOW, {"s": adverts}, (SERVING,)))
    assert "minilm@1: 1 holder, 1 partial, 1 withheld, 1 doubted; 1 of 8 slots in use" in said


def test_refusals_are_summed_up_and_forgotten_after_a_while() -> None:
    refusals = tuple(Refusal(NOW - ago, 1, "a", "refused", "busy") for ago in (5, 9, 10_000))
    said = told(Look(NOW, {}, (replace(start("b"), refusals=refusals),)))
    assert "5 s ago  a refused b: busy, 2 times" in said


def test_fallbacks_and_failures_say_why_and_the_elected_reader_is_neither() -> None:
    marks = (Mark(NOW - 20, "detour", "a: stalled"), Mark(NOW - 19, "detour", "c: no answer"))
    fell = start("b", outcome="serving", sources={"a": 1, "storage": 2}, marks=marks)
    failed = start("f", outcome="failed", reason="disk on fire")
    said = told(Look(NOW, {}, (SERVING, fell, failed)))
    assert "b read storage (path mixed): a: stalled\n" in said
    assert "c: no answer" in said
    assert "f failed: disk on fire" in said
    assert "a read storage" not in said


def test_a_worker_that_was_killed_is_not_shown_for_ever() -> None:
    killed = replace(start("b", source="a"), heard=NOW - 1000)
    assert picture(Look(NOW, {"s": ()}, (killed,))).moving == ()
    assert len(picture(Look(NOW, {"s": (advert("b", 10),)}, (killed,))).moving) == 1, "its advert lives"


def test_a_large_fleet_fits_and_hostile_names_stay_on_their_line() -> None:
    refusals = tuple(Refusal(NOW - 1, 1, f"s{number}", "refused", "busy") for number in range(100))
    evil = replace(start("x\x1b[2J\n", source="\x1b]0;pwned"), refusals=refusals)
    look = Look(NOW, {}, (evil,))
    assert len(picture(look).refused) == MOST
    assert "\x1b" not in told(look)
    assert len(lines(picture(look))) == 1 + 1 + 2 + 1 + MOST


def test_what_is_known_better_later_is_not_another_thing() -> None:
    """Moments move when the worker's clock is placed better, or when the end of a pull says how long it was."""
    before = start("b", source="a")
    pull = before.transfers[0]
    after = replace(
        before, began=before.began - 0.4, transfers=(replace(pull, begin=pull.begin - 0.1, end=NOW, outcome="ok"),)
    )
    known = {item.key for item in items((before,))}
    assert [item.kind for item in items((after,)) if item.key not in known] == ["pulled"]


def test_the_journal_tells_one_thing_after_the_other() -> None:
    marks = (Mark(NOW - 20, "stalled", "nothing came", "a", 1),)
    done = replace(start("b", source="a", outcome="serving", sources={"a": 10**9}), marks=marks)
    found = [(item.kind, item.words) for item in items((done, SERVING)) if item.worker == "b"]
    assert found == [
        ("began", "minilm@1"),
        ("SERVE", "path peer after 20.00 s: 1.0 GB from a"),
        ("pulls", "a over tcp"),
        ("stalled", "a: nothing came"),
    ]
