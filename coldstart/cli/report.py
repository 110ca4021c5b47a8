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
    write(out, text)
    say(f"{out}: {len(starts)} cold start{'' if len(starts) == 1 else 's'}, {size(len(text.encode()))}")
    if chronicle.unreadable:
        note(f"{chronicle.unreadable} entries of the journal cannot be read by this version")


def length(text: str) -> float:
    """Seconds in a length of time such as ``90s``, ``30m``, ``1h`` or ``7d``; raises ConfigError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"--last {text!r} is no length of time", advice="give one such as 90s, 30m, 1h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def write(out: str, text: str) -> None:
    """At once or not at all: whoever looks at the old page meanwhile sees all of it.

    Devices and pipes are written to and stay what they are; behind a link, what it leads to is replaced.

    Raises:
        ConfigError: it cannot be written there.
    """
    if not out:
        raise ConfigError("--out names no file", advice="give one, or '-' for stdout")
    path = Path(out)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path.resolve(), text)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a NUL
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(f"{out} cannot be written: {reason}", advice="give another --out") from error


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
