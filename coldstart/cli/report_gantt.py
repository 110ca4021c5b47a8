"""The chart of a rollout: a row for each cold start, its phases and pulls as bars on one axis of time.

Decides which cold starts make one rollout, what becomes a bar, a mark or a grid line, and where it is. Pure; the page
around it is ``report_page.py``'s. Every text of others goes through :func:`plain`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coldstart.chronicle.starts import ColdStart, Mark, Refusal, Stretch, Transfer
from coldstart.cli.output import seconds, size, visible
from coldstart.phases.states import STORAGE, Phase

APART_SECONDS = 60.0
"""After so long in which nobody starts another rollout begins: each has an axis of its own."""
TICKS = 8
ROW = 22
"""Height of a row, in pixels: phases above, pulls below."""

_OVER = frozenset({Phase.SERVE.value, Phase.FAILED.value, Phase.GONE.value})
_SAID = {"stalled", "corrupted", "detour", "verdict", "withheld"}
"""Marks that are worth a sign in the chart."""


class Rollout(NamedTuple):
    """Cold starts that belong together, by when they began; moments in seconds of the epoch."""

    begin: float
    end: float
    starts: tuple[ColdStart, ...]


def rollouts(starts: Iterable[ColdStart]) -> list[Rollout]:
    """The latest first."""
    found: list[Rollout] = []
    for start in sorted(starts, key=lambda each: (each.began, each.worker)):
        last = found[-1] if found else None
        if last is not None and start.began <= last.end + APART_SECONDS:
            found[-1] = Rollout(last.begin, max(last.end, over(start)), (*last.starts, start))
        else:
            found.append(Rollout(start.began, over(start), (start,)))
    return found[::-1]


def over(start: ColdStart) -> float:
    """When it served, or ended, or was last heard of."""
    return start.began + start.seconds if start.seconds is not None else max(start.heard, start.began)


def plain(text: str) -> str:
    """Text of others for a page: on one line, and never markup."""
    return html.escape(visible(text))


def chart(rollout: Rollout) -> Iterator[str]:
    """The rows, with the axis above them."""
    scale = _Scale(rollout.begin, max(rollout.end - rollout.begin, 0.001))
    yield '<div class="gantt">'
    yield f'<div class="row axis"><span></span><svg>{"".join(scale.labels())}</svg><span>to SERVE</span></div>'
    grid = "".join(scale.grid())
    for start in rollout.starts:
        yield _row(start, scale, grid)
    yield "</div>"


class _Scale:
    """Places moments between 0 and 100 percent."""

    def __init__(self, begin: float, length: float) -> None:
        self._begin, self._length = begin, length

    def bar(self, begin: float, end: float, name: str, top: int, height: int, title: str) -> str:
        left, right = self._place(begin), self._place(end)
        return (
            f'<rect class="{name}" x="{left:.3f}%" width="{max(right - left, 0):.3f}%" y="{top}" height="{height}">'
            f"<title>{title}</title></rect>"
        )

    def sign(self, at: float, name: str, title: str) -> str:
        return f'<circle class="{name}" cx="{self._place(at):.3f}%" cy="7" r="3.5"><title>{title}</title></circle>'

    def labels(self) -> Iterator[str]:
        for tick in self._ticks():
            at = 100 * tick / self._length
            anchor = ' text-anchor="middle"' if 0 < at < 96 else ' text-anchor="end"' if at else ""
            yield f'<text x="{at:.3f}%" y="14"{anchor}>{_told(tick)}</text>'

    def grid(self) -> Iterator[str]:
        for tick in self._ticks():
            at = 100 * tick / self._length
            yield f'<line x1="{at:.3f}%" x2="{at:.3f}%" y1="0" y2="{ROW}"/>'

    def _place(self, at: float) -> float:
        return min(100.0, max(0.0, 100 * (at - self._begin) / self._length))

    def _ticks(self) -> list[float]:
        step = _step(self._length / TICKS)
        return [step * number for number in range(int(self._length / step) + 1)]


def _told(tick: float) -> str:
    return "0" if not tick else f"{tick:g} s" if tick >= 1 else f"{tick * 1000:g} ms"


def _step(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(base * power for base in (1, 2, 5, 10) if base * power >= least)


def _row(start: ColdStart, scale: _Scale, grid: str) -> str:
    bars = [*_phases(start, scale), *(_pull(each, start, scale) for each in start.transfers), *_signs(start, scale)]
    took = seconds(start.seconds) if start.seconds is not None else start.outcome
    name, told = plain(start.worker), plain(f"{start.worker} on {start.host or 'an unknown host'}: {start.outcome}")
    return (
        f'<div class="row {start.outcome}"><span class="name" title="{told}">{name}</span>'
        f'<svg role="img" aria-label="{told}"><g class="grid">{grid}</g>{"".join(bars)}</svg>'
        f'<span class="took">{plain(took)}</span></div>'
    )


def _phases(start: ColdStart, scale: _Scale) -> Iterator[str]:
    if start.built > 0:
        yield scale.bar(start.began, start.began + start.built, "build", 2, 10, f"build, {seconds(start.built)}")
    for each in _merged(start.phases):
        if each.phase in _OVER:
            return
        end = each.end if each.end is not None else over(start)
        whom = f" ({each.source})" if each.source else ""
        title = plain(f"{each.phase}{whom}, {seconds(max(end - each.begin, 0))}")
        yield scale.bar(each.begin, end, each.phase.lower() if each.phase in _KNOWN else "build", 2, 10, title)


_KNOWN = {each.value for each in Phase}


def _merged(phases: Sequence[Stretch]) -> Iterator[Stretch]:
    """One for each phase of each attempt, whatever states it went through."""
    held: Stretch | None = None
    for each in phases:
        if held is not None and (held.phase, held.attempt) == (each.phase, each.attempt):
            held = Stretch(held.phase, held.state, held.attempt, each.source or held.source, held.begin, each.end)
        else:
            if held is not None:
                yield held
            held = each
    if held is not None:
        yield held


def _pull(each: Transfer, start: ColdStart, scale: _Scale) -> str:
    end = each.end if each.end is not None else over(start)
    parts = [f"from {each.source}", f"{size(each.nbytes)}", seconds(max(end - each.begin, 0))]
    if each.nbytes and each.rate:
        parts.append(f"{each.rate / 1e9:.2f} GB/s")
    if each.transport and each.source != STORAGE:
        parts.append(f"over {each.transport}")
    if each.outcome not in ("", "ok"):
        parts.append(each.outcome)
    name = "storage" if each.source == STORAGE else "peer" if each.outcome in ("", "ok") else "peer left"
    return scale.bar(each.begin, end, f"pull {name}", 14, 6, plain(", ".join(parts)))


def _signs(start: ColdStart, scale: _Scale) -> Iterator[str]:
    end = over(start)
    said: list[Mark | Refusal] = [mark for mark in start.marks if mark.kind in _SAID and mark.at <= end]
    said += [refusal for refusal in start.refusals if refusal.at <= end and refusal.how != "passed over"]
    for each in said:
        kind = each.kind if isinstance(each, Mark) else each.how
        whom = f"{each.source}: " if each.source else ""
        yield scale.sign(each.at, "sign", plain(f"{kind}: {whom}{each.reason}"))
    if start.outcome == "failed":
        yield scale.sign(end, "sign end", plain(f"failed: {start.reason}"))
