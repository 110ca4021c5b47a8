"""Writes the measured parts of ``fleet.md`` from results in JSON, and draws the simulated one.

    python docs/fleet_page.py simulated RESULT.json     # of coldstart bench fleet --json; draws fleet.svg
    python docs/fleet_page.py links RESULT.json         # of python -m benchmarks.fleet --json
    python docs/fleet_page.py joiners RESULT.json       # of python -m benchmarks.fleet.joiners --json

Decides how results read on a page. What is measured is decided by the three commands, which anybody can
repeat. Drawing needs ``requirements-plot.txt``.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import msgspec

PAGE = Path(__file__).with_name("fleet.md")
PICTURE = "fleet.svg"
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fleet import coordination, results  # noqa: E402
from coldstart.cli import bench_fleet_results as simulated  # noqa: E402

LINES = {
    "storage for all": ("storage_for_all", "#b2182b", ":"),
    "doubling": ("doubling", "#ef8a62", "--"),
    "chain": ("chain", "#67a9cf", "--"),
    "perfect pipeline": ("pipeline", "#2166ac", ":"),
}
"""On paper: label, field, colour and stroke."""


def between(text: str, marker: str, body: str) -> str:
    """``text`` with ``body`` between the two comments named ``marker``; raises ValueError where they are not."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{body}\n{end}{tail}"


# ------------------------------------------------------------------------------------- simulated


def simulated_part(result: simulated.Result) -> str:
    """Scenario, tables and bars of ``coldstart bench fleet``."""
    told = (
        f"{result.date}, coldstart {result.version}, Python {result.python}: `{result.command}`. One alone: "
        f"{result.one.seconds:.2f} s. {'. '.join(note[0].upper() + note[1:] for note in result.notes)}."
    )
    return "\n".join(
        [
            textwrap.fill(told, 110, break_on_hyphens=False),
            "",
            "| workers | simulated | with workers dying | storage for all | doubling | chain | perfect pipeline |",
            "|---:|---:|---:|---:|---:|---:|---:|",
            *(_times(row) for row in result.rows),
            "",
            "| workers | dying | killed | storage reads | calls of one to the store | of all, per start "
            "| broken promises |",
            "|---:|---|---:|---:|---:|---:|---:|",
            *(_cost(row.workers, way, run) for row in result.rows for way, run in _runs(row)),
            "",
            *(f"- {_verdict(bar.met)}: {bar.what}: {bar.value:g}, at most {bar.limit:g}" for bar in result.bars),
        ]
    )


def _times(row: simulated.Row) -> str:
    paper, dying = row.paper, "" if row.dying is None else f"{row.dying.times:.2f}"
    on_paper = (paper.storage_for_all, paper.doubling, paper.chain, paper.pipeline)
    return f"| {row.workers:,} | {row.quiet.times:.2f} | {dying} | {' | '.join(f'{each:.2f}' for each in on_paper)} |"


def _runs(row: simulated.Row) -> Sequence[tuple[str, simulated.Rollout]]:
    return [("no", row.quiet), *([] if row.dying is None else [("yes", row.dying)])]


def _cost(workers: int, way: str, run: simulated.Rollout) -> str:
    return (
        f"| {workers:,} | {way} | {run.killed} | {run.storage_reads} | {run.own_calls:g} "
        f"| {run.all_calls:.1f} | {run.violations} |"
    )


def draw(result: simulated.Result, target: Path) -> None:
    """The times of all fleets over the number of workers, as an SVG that is the same for the same result."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "coldstart", "svg.fonttype": "none", "font.family": "sans-serif"})
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 5))
    workers = [row.workers for row in result.rows]
    for label, (field, colour, stroke) in LINES.items():
        axes.plot(workers, [getattr(row.paper, field) for row in result.rows], stroke, color=colour, label=label)
    axes.plot(workers, [row.quiet.times for row in result.rows], "o-", color="black", label="simulated")
    dying = [row for row in result.rows if row.dying is not None]
    times = [row.dying.times for row in dying if row.dying is not None]
    axes.plot([row.workers for row in dying], times, "x", color="black", label="simulated, workers dying")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(workers, [f"{number:,}" for number in workers])
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_xlabel("workers that start at once")
    axes.set_ylabel("until all serve, in times of one alone")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    target.write_text("\n".join(line.rstrip() for line in target.read_text().splitlines()) + "\n")


# ---------------------------------------------------------------------------------- measured here


def links_part(result: results.Result) -> str:
    """What the shaped rollout came to."""
    facts, *rows = results.table(result).splitlines()
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    told = f"{facts}{f'; settings: {settings}' if settings else ''}."
    said = [f"- {each}" for each in results.verdicts(result)]
    return "\n".join([textwrap.fill(told, 110, break_on_hyphens=False), *rows, "", *said])


def joiners_part(result: coordination.Result) -> str:
    """What coordination alone came to."""
    facts, *rows = coordination.table(result).splitlines()
    said = [f"- {row}" if row and not row.startswith("|") else row for row in rows]
    return "\n".join([f"{facts}.", *said])


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main(words: Sequence[str]) -> int:
    """The script; returns the exit code."""
    match words:
        case ["simulated", path]:
            found = msgspec.json.decode(Path(path).read_bytes(), type=simulated.Result)
            _write("simulated", simulated_part(found))
            draw(found, PAGE.with_name(PICTURE))
        case ["links", path]:
            _write("links", links_part(msgspec.json.decode(Path(path).read_bytes(), type=results.Result)))
        case ["joiners", path]:
            _write("joiners", joiners_part(msgspec.json.decode(Path(path).read_bytes(), type=coordination.Result)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def _write(marker: str, body: str) -> None:
    PAGE.write_text(between(PAGE.read_text(), marker, body))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
