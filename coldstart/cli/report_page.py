"""The page of a fleet's cold starts: one HTML file that needs nothing else.

Decides what stands where: figures, a chart for each rollout, bytes by source, fallbacks with their reasons, and every
start in a table. Pure. The page has no script and loads nothing; its own policy forbids both, so that a hostile name
in a journal could not either.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from coldstart import __version__
from coldstart.chronicle.starts import ColdStart
from coldstart.cli.output import seconds, size
from coldstart.cli.report_gantt import chart, over, plain, rollouts
from coldstart.cli.report_style import STYLE
from coldstart.cli.watching import fell_back
from coldstart.phases.states import STORAGE

MOST = 2000
"""Starts on one page, the latest; a browser draws no more of them gladly."""
SOURCES = 24

_LEGEND = (
    ("build", "skeleton"), ("discover", "DISCOVER"), ("handshake", "HANDSHAKE"), ("transfer", "TRANSFER"),
    ("fallback", "FALLBACK"), ("verify", "VERIFY"), ("pull peer", "from a peer"), ("pull storage", "from storage"),
    ("pull peer left", "peer that was left"), ("sign", "detour, stall or refusal"),
)  # fmt: skip
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(starts: Sequence[ColdStart], made: datetime, period: str) -> str:
    """The whole file.

    Args:
        made: now, in the zone in which moments are shown.
        period: what was asked for, in words.
    """
    shown = sorted(starts, key=lambda each: each.began)[-MOST:]
    return "\n".join(_lines(shown, len(starts) - len(shown), made, period)) + "\n"


def _lines(starts: Sequence[ColdStart], left_out: int, made: datetime, period: str) -> Iterator[str]:
    title = f"Cold starts, {made:%Y-%m-%d %H:%M}"
    yield f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>Cold starts</h1>"
    missing = f" {left_out} earlier ones are left out." if left_out else ""
    yield (
        f'<p class="about">{plain(period)}, until {made:%Y-%m-%d %H:%M:%S %Z}; from the journal in the store, on its'
        f" clock. coldstart {__version__}.{missing}</p>"
    )
    yield from _figures(starts)
    yield from _legend()
    for rollout in rollouts(starts):
        began = _moment(rollout.begin, made.tzinfo)
        count = len(rollout.starts)
        many = f"{count} cold starts, {seconds(rollout.end - rollout.begin)} from the first to the last"
        yield f'<section class="rollout"><h2>{began} <small>{many if count > 1 else "1 cold start"}</small></h2>'
        yield from chart(rollout)
        yield "</section>"
    yield from _sources(starts)
    yield from _fallbacks(starts, made.tzinfo)
    yield from _table(starts, made.tzinfo)
    yield "</body>\n</html>"


def _figures(starts: Sequence[ColdStart]) -> Iterator[str]:
    served = [each for each in starts if each.outcome in ("serving", "gone")]
    took = sorted(each.seconds for each in served if each.seconds is not None)
    given = _given(starts)
    peers = sum(nbytes for source, nbytes in given.items() if source != STORAGE)
    paths = Counter(each.path for each in served)
    outcomes = Counter(each.outcome for each in starts)
    figures = [("cold starts", str(len(starts)))]
    figures += [(f"path {path}", str(paths[path])) for path in ("peer", "mixed", "storage", "loaded") if paths[path]]
    figures += [(name, str(outcomes[name])) for name in ("failed", "cancelled", "running") if outcomes[name]]
    if took:
        figures += [("median", seconds(statistics.median(took))), ("slowest", seconds(took[-1]))]
    figures += [("from peers", size(peers)), ("from storage", size(given[STORAGE]))]
    yield '<ul class="figures">'
    for name, value in figures:
        bad = ' class="bad"' if name == "failed" else ""
        yield f"<li{bad}><b>{value}</b> {name}</li>"
    yield "</ul>"


def _legend() -> Iterator[str]:
    yield '<ul class="legend">'
    for name, words in _LEGEND:
        shape = '<circle class="sign" cx="7" cy="6" r="4"/>' if name == "sign" else (
            f'<rect class="{name}" width="14" height="{6 if name.startswith("pull") else 10}" y="1"/>'
        )  # fmt: skip
        yield f'<li><svg width="14" height="12">{shape}</svg> {words}</li>'
    yield "</ul>"


def _sources(starts: Sequence[ColdStart]) -> Iterator[str]:
    """Who has given how much, the most first."""
    given = _given(starts).most_common()
    if not given:
        return
    most = given[0][1] or 1
    to = Counter(source for start in starts for source in start.sources)
    yield '<section class="sources"><h2>Bytes by source</h2>'
    for source, nbytes in given[:SOURCES]:
        name, width = ("storage" if source == STORAGE else "peer"), 100 * nbytes / most
        said = f"{size(nbytes)} to {to[source]} worker{'' if to[source] == 1 else 's'}"
        yield (
            f'<div class="row"><span class="name" title="{plain(source)}">{plain(source)}</span><svg role="img"'
            f' aria-label="{plain(source)}: {said}"><rect class="pull {name}" width="{width:.3f}%" height="14" y="4">'
            f'<title>{plain(source)}: {said}</title></rect></svg><span class="took">{said}</span></div>'
        )
    if others := given[SOURCES:]:
        yield f"<p>and {size(sum(nbytes for _, nbytes in others))} from {len(others)} others</p>"
    yield "</section>"


def _given(starts: Sequence[ColdStart]) -> Counter[str]:
    given: Counter[str] = Counter()
    for start in starts:
        given.update(start.sources)
    return given


def _fallbacks(starts: Sequence[ColdStart], zone: tzinfo | None) -> Iterator[str]:
    fell = [start for start in starts if start.outcome == "failed" or fell_back(start)]
    yield '<section class="fallbacks"><h2>Fallbacks and failures</h2>'
    if not fell:
        yield "<p>None: whoever read storage was elected to.</p></section>"
        return
    yield "<table><thead><tr><th>ended</th><th>worker</th><th>outcome</th><th>why</th></tr></thead><tbody>"
    for start in reversed(fell):
        what = "failed" if start.outcome == "failed" else f"{start.outcome}, path {start.path}"
        reasons = dict.fromkeys((*start.detours, start.reason) if start.reason else start.detours)
        why = "".join(f"<div>{plain(reason)}</div>" for reason in reasons) or "nobody has said why"
        name = ' class="bad"' if start.outcome == "failed" else ""
        yield (
            f"<tr{name}><td>{_moment(over(start), zone)}</td><td>{plain(start.worker)}</td>"
            f"<td>{plain(what)}</td><td>{why}</td></tr>"
        )
    yield "</tbody></table></section>"


def _table(starts: Sequence[ColdStart], zone: tzinfo | None) -> Iterator[str]:
    heads = ("began", "worker", "host", "weights", "outcome", "path", "took", "bytes", "from")
    yield "<details><summary>Every cold start in figures</summary><table><thead><tr>"
    yield "".join(f"<th>{head}</th>" for head in heads) + "</tr></thead><tbody>"
    for start in reversed(starts):
        origins = ", ".join(f"{source} {size(nbytes)}" for source, nbytes in start.sources.items())
        cells = (
            _moment(start.began, zone), start.worker, start.host, start.model or start.shard, start.outcome, start.path,
            "" if start.seconds is None else seconds(start.seconds), size(sum(start.sources.values())), origins,
        )  # fmt: skip
        yield "<tr>" + "".join(f"<td>{plain(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></details>"


def _moment(at: float, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"
