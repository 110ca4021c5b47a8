"""Draws the joiner's phases as a Mermaid diagram from the machine's own table.

``python -m coldstart.diagram README.md ...`` puts it between the markers of each page; a test demands
that the pictures there are current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coldstart.machine import EDGES
from coldstart.phases.states import Phase

BEGIN = "<!-- states: begin -->"
END = "<!-- states: end -->"


def mermaid() -> str:
    """The diagram as a fenced Mermaid block."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    lines += [f"    {'[*]' if before is Phase.IDLE else before} --> {after}" for before, after in EDGES]
    lines += ["    FAILED --> [*]", "    GONE --> [*]", "```"]
    return "\n".join(lines)


def insert(text: str) -> str:
    """``text`` with everything between the markers replaced by the current diagram."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{mermaid()}\n{END}{tail}"


if __name__ == "__main__":
    for target in map(Path, sys.argv[1:]):
        target.write_text(insert(target.read_text()))
