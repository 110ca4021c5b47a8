"""Draws the joiner's phases from the machine's own table: as Mermaid for pages, and as a picture for the site.

``python -m coldstart.diagram README.md ...`` puts Mermaid between the markers of each page, for where that is drawn;
with ``--svg FILE`` it writes the picture, too, which needs no script and no network. Graphviz draws it (Debian:
graphviz). A test demands that pages and picture are current.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from html import unescape
from itertools import pairwise
from pathlib import Path

from coldstart.machine import EDGES
from coldstart.phases.states import Phase

BEGIN = "<!-- states: begin -->"
END = "<!-- states: end -->"

GOOD = (Phase.IDLE, Phase.DISCOVER, Phase.HANDSHAKE, Phase.TRANSFER, Phase.VERIFY, Phase.SERVE, Phase.GONE)
"""The course that everybody hopes for: in one line, and dark."""

ASIDE = ((Phase.TRANSFER, Phase.FALLBACK), (Phase.SERVE, Phase.FAILED))
"""Below which of them the others stand."""


def mermaid() -> str:
    """The diagram as a fenced Mermaid block."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    lines += [f"    {'[*]' if before is Phase.IDLE else before} --> {after}" for before, after in EDGES]
    lines += ["    FAILED --> [*]", "    GONE --> [*]", "```"]
    return "\n".join(lines)


def dot() -> str:
    """The diagram in Graphviz's language."""
    good = list(pairwise(GOOD))
    lines = [
        "digraph states {",
        '  rankdir=LR; bgcolor="white"; pad=0.2; nodesep=0.5; ranksep=0.6',
        '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=12]',
        "  edge [arrowsize=0.7]",
        f'  {Phase.IDLE} [label="", shape=circle, style=filled, fillcolor=black, width=0.2]',
    ]
    lines += [f"  {phase} [style=\"rounded,filled\", fillcolor=\"#eef3fb\"]" for phase in GOOD[1:]]
    for before, after in EDGES:
        style = "weight=20, penwidth=1.6" if (before, after) in good else 'constraint=false, color="#8a8a8a"'
        lines.append(f"  {before} -> {after} [{style}]")
    lines += [f"  {{ rank=same; {beside}; {phase} }}" for beside, phase in ASIDE]
    return "\n".join([*lines, "}"])


def svg() -> str:
    """The diagram as a picture of its own.

    Raises:
        FileNotFoundError: Graphviz is not installed.
    """
    done = subprocess.run(["dot", "-Tsvg"], input=dot(), capture_output=True, text=True, check=True)
    return done.stdout


def edges_of(picture: str) -> list[tuple[str, str]]:
    """Who leads to whom in a picture: Graphviz names each arrow by its ends."""
    titles = map(unescape, re.findall(r"<title>([^<]*)</title>", picture))
    return [(before, after) for before, arrow, after in (title.partition("->") for title in titles) if arrow]


def insert(text: str) -> str:
    """``text`` with everything between the markers replaced by the current diagram."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{mermaid()}\n{END}{tail}"


def main(words: Sequence[str]) -> int:
    """Write every page named, and the picture after ``--svg``."""
    pages = list(words)
    if "--svg" in pages:
        at = pages.index("--svg")
        _, file = pages[at : at + 2]
        del pages[at : at + 2]
        try:
            Path(file).write_text(svg())
        except FileNotFoundError:
            print(f"{file} is not drawn: 'dot' is not installed (Debian: graphviz)", file=sys.stderr)  # noqa: T201
            return 1
    for page in map(Path, pages):
        page.write_text(insert(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
