"""``coldstart report``: a fleet's cold starts as one HTML file, from the journal in the store.

Decides which cold starts are in it and where it is written. What it looks like is ``report_page.py``'s.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import anyio

from coldstart.cli import journals
from coldstart.cli.output import age, note, say, size
from coldstart.cli.report_gantt import over
from coldstart.cli.report_page import page
from coldstart.errors import ColdstartError, ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def run(redis: str | None, out: str, last: str) -> None:
    """The command; raises ColdstartError for ``main`` to print."""
    asked = length(last)
    chronicle, nothing = anyio.run(journals.survey, redis)
    since = time.time() - asked
    starts = [start for start in chronicle.starts if over(start) >= since]
    if not starts:
        why = f"none of the {len(chronicle.starts)} that are kept" if chronicle.starts else nothing
        raise ColdstartError(f"no cold start is known of the last {age(asked)}: {why}", advice="give a longer --last")
    text = page(starts, datetime.now().astimezone(), f"The last {age(asked)}")
    if out == "-":
        sys.stdout.write(text)
        return
    _write(Path(out), text)
    say(f"{out}: {len(starts)} cold start{'' if len(starts) == 1 else 's'}, {size(len(text.encode()))}")
    if chronicle.unreadable:
        note(f"{chronicle.unreadable} entries of the journal cannot be read by this version")


def length(text: str) -> float:
    """Seconds in a length of time such as ``90s``, ``30m``, ``1h`` or ``7d``; raises ConfigError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"--last {text!r} is no length of time", advice="give one such as 90s, 30m, 1h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def _write(path: Path, text: str) -> None:
    """At once or not at all: whoever looks at the old page meanwhile sees all of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        what = f"{path} cannot be written: {error.strerror or error}"
        raise ConfigError(what, advice="give another --out") from error
