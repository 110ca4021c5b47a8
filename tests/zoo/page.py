"""``python -m tests.zoo.page FILE.json docs/families.md``: writes a run's outcomes into the page, between its markers.

Decides how outcomes read; nothing on the page below the markers is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.zoo.outcome import Outcome, Zoo

BEGIN, END = "<!-- zoo: begin -->", "<!-- zoo: end -->"
SHOWN = 4
"""Names in a cell; more are counted."""


def written(page: str, zoo: Zoo) -> str:
    """``page`` with the tables of ``zoo``; raises ValueError where it has no markers."""
    head, _, rest = page.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{body(zoo)}\n{END}{tail}"


def body(zoo: Zoo) -> str:
    """Totals, and one table for each kind, in the order of the run."""
    right = [each for each in zoo.outcomes if each.right and not each.refusal]
    classes = {each.name.partition(":")[0] for each in right}
    lost = sum(1 for each in right if each.naive != "equal")
    whole = sum(1 for each in right if each.whole)
    told = ", ".join(f"{library} {version}" for library, version in zoo.versions.items())
    parts = [
        f"{len(right)} families of {len(classes)} classes start equal, bit for bit ({told}). "
        f"A strict `load_state_dict` into an emptied copy is wrong, or raises, for {lost} of them. "
        f"Storage is read whole for {whole}."
    ]
    for library, kind in dict.fromkeys((each.library, each.kind) for each in zoo.outcomes):
        chosen = [each for each in zoo.outcomes if (each.library, each.kind) == (library, kind)]
        parts += ["", f"### {library}: {kind}", "", *_table(chosen)]
    return "\n".join(parts)


def _table(outcomes: Sequence[Outcome]) -> Iterable[str]:
    yield "| family | carried | bytes | recomputed | made by serving | storage | plain copy |"
    yield "|---|---:|---:|---|---|---|---|"
    for each in outcomes:
        if each.refusal:
            yield f"| {each.name} | refused: {each.refusal} | | | | | |"
            continue
        storage = "in chunks" if not each.whole else f"whole: {_cell(each.whole)}"
        equal = each.naive if each.right else f"**{_cell(each.wrong)}**"
        cells = [str(each.carried), f"{each.bytes:,}", _names(each.recomputed), _names(each.runtime), storage, equal]
        yield f"| {each.name} | {' | '.join(cells)} |"


def _names(names: Sequence[str]) -> str:
    """How many there are, and what their last parts are called, each once."""
    if not names:
        return ""
    kinds = list(dict.fromkeys(_cell(".".join(name.split(".")[-2:])) for name in names))
    more = f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
    return f"{len(names)}: {', '.join(kinds[:SHOWN])}{more}"


def _cell(words: str) -> str:
    """``words`` with numbers of layers as ``*``, safe in a table."""
    return re.sub(r"(?:^|(?<=[.\[]))\d+(?=[.\]:]|$)", "*", words).replace("|", "\\|")


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(written(target.read_text(), msgspec.json.decode(source.read_bytes(), type=Zoo)))
