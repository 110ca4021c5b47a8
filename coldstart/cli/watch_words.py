"""A picture of a fleet in lines, for a terminal and for a pipe.

Decides what is said of each part of a picture and in which tone. Text of others is made visible where it is printed
(``output.visible``); nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coldstart.cli.output import age, seconds, size, visible
from coldstart.cli.watching import Fallback, Moving, Picture, Refused, Weights, roots
from coldstart.phases.states import STORAGE

BAR = 16


class Said(NamedTuple):
    """One line; ``style`` is how a terminal shows it."""

    text: str
    style: str = ""


def lines(picture: Picture) -> list[Said]:
    """All of it."""
    found = [Said(f"{clock(picture.at)}  {_summary(picture)}", "bold")]
    for heading, part in (
        ("holders", [_weights(each) for each in picture.weights]),
        ("transfers", [*_tree(picture), *_waiting(picture)]),
        ("refusals", [_refused(each, picture.at) for each in picture.refused]),
        ("fallbacks and failures", [said for each in picture.fallbacks for said in _fallback(each, picture.at)]),
    ):
        if part:
            found += [Said(heading, "bold"), *(Said(f"  {visible(said.text)}", said.style) for said in part)]
    return found


def clock(at: float) -> str:
    """A moment as this machine's clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _summary(picture: Picture) -> str:
    holders = sum(each.complete for each in picture.weights)
    receiving = sum(bool(each.source) for each in picture.moving)
    if not picture.weights and not picture.moving:
        return "nobody holds weights, and nobody starts"
    rate = sum(each.rate for each in picture.moving)
    speed = f" at {size(rate)}/s" if rate else ""
    waiting = len(picture.moving) - receiving
    return f"{_counted(holders, 'holder')}, {receiving} receiving{speed}, {waiting} before that"


def _weights(each: Weights) -> Said:
    parts = [_counted(each.complete, "holder")]
    parts += [f"{count} {name}" for name, count in (("partial", each.partial), ("withheld", each.withheld)) if count]
    if each.struck:
        parts.append(f"{each.struck} doubted")
    style = "red" if not each.complete and not each.partial else "yellow" if each.withheld or each.struck else "green"
    return Said(f"{each.model or each.shard}: {', '.join(parts)}; {each.used} of {each.slots} slots in use", style)


def _tree(picture: Picture) -> Iterator[Said]:
    """Who receives from whom, each below its source."""
    moving = [each for each in picture.moving if each.source]
    shown: set[tuple[str, str]] = set()

    def below(source: str, indent: str) -> Iterator[Said]:
        children = [each for each in moving if each.source == source and (each.shard, each.worker) not in shown]
        for index, each in enumerate(children):
            shown.add((each.shard, each.worker))
            last = index == len(children) - 1
            yield Said(f"{indent}{'└─ ' if last else '├─ '}{_progress(each, picture.at)}", "cyan")
            yield from below(each.worker, indent + ("   " if last else "│  "))

    for root in roots(moving):
        yield Said(root, "magenta" if root == STORAGE else "green")
        yield from below(root, "")
    for each in moving:  # two that name each other: journals of different moments
        if (each.shard, each.worker) not in shown:
            yield Said(f"{_progress(each, picture.at)} from {each.source}", "cyan")


def _progress(each: Moving, now: float) -> str:
    full = round(each.share * BAR)
    done = f"{each.have}/{each.chunks} chunks"
    if each.nbytes:
        done = f"{size(each.share * each.nbytes)} of {size(each.nbytes)}"
    rate = f"  {size(each.rate)}/s" if each.rate else ""
    left = (1 - each.share) * each.nbytes / each.rate if each.rate else 0.0
    ends = f"  {seconds(left)} left" if left else ""
    over = f" over {each.transport}" if each.transport else ""
    also = f", also from {', '.join(each.others)}" if each.others else ""
    bar = f"{each.worker} [{'#' * full}{'.' * (BAR - full)}] {each.share:4.0%}"
    return f"{bar}  {done}{rate}{ends}{over}{also}, for {seconds(max(0.0, now - each.since))}"


def _waiting(picture: Picture) -> Iterator[Said]:
    for each in picture.moving:
        if not each.source:
            yield Said(f"{each.worker} in {each.phase} for {seconds(max(0.0, picture.at - each.since))}", "dim")


def _refused(each: Refused, now: float) -> Said:
    times = f", {each.times} times" if each.times > 1 else ""
    whom = f"{each.source} {'passed over for' if each.how == 'passed over' else each.how} {each.worker}"
    return Said(f"{_ago(each.at, now)}  {whom}: {each.reason}{times}", "yellow")


def _fallback(each: Fallback, now: float) -> Iterator[Said]:
    what = "failed" if each.outcome == "failed" else f"read storage (path {each.path})"
    style = "red" if each.outcome == "failed" else "yellow"
    first, *others = each.reasons or ("nobody has said why",)
    yield Said(f"{_ago(each.at, now)}  {each.worker} {what}: {first}", style)
    yield from (Said(f"            {reason}", style) for reason in others)


def _ago(at: float, now: float) -> str:
    return f"{age(max(0.0, now - at)):>6} ago"


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def text(said: Iterable[Said]) -> str:
    """Lines as they stand in a pipe."""
    return "\n".join(each.text for each in said)
