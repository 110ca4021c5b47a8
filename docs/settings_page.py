"""Writes ``docs/settings.md`` from what is written down beside each setting.

    python docs/settings_page.py docs/settings.md

Decides how the page looks, nothing of what it says: that stands in ``coldstart/config/settings.py``, and a test demands
that the page is current.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from coldstart.config import Declared, declared, names
from coldstart.config.kinds import plain
from coldstart.modes.states import Terms
from coldstart.plan import Limits

PACKAGE = Path(__file__).parent.parent / "coldstart"

HEAD = """\
# Settings

Every setting is an argument, an environment variable or a line in a file; the first of these that says something holds:

1. **arguments**: options of the command line such as `--slots`, `join(redis=...)`, fields of
   `coldstart.Settings(...)` that a program makes and gives as `join(settings=...)`;
2. **environment variables**, `COLDSTART_<NAME>`; an empty one counts as not set;
3. **a file**: the one that `COLDSTART_CONFIG` names (`none`: no file), else the first of
   `~/.config/coldstart/config.toml` (`XDG_CONFIG_HOME`) and `/etc/coldstart/config.toml`;
4. the **default**.

The file is TOML without tables: `slots = 4`. What is unknown, of the wrong type or out of range ends a start with one
line that names the variable, or the file, line and key. A variable that is nearly a setting's is warned of.

```console
coldstart config                                     # what holds here, and where each value comes from
coldstart config --explain patience                  # what one of them decides, and why its default is so
mkdir -p ~/.config/coldstart && coldstart config --template > ~/.config/coldstart/config.toml
COLDSTART_CONFIG=fleet.toml coldstart config slots=4 # would this be accepted?
```

In a program, `coldstart.config.load(file="fleet.toml")` gives `Settings`, and `coldstart.config.resolve` where each
value comes from, too. A `Settings` that a program makes by itself is taken as it is: neither the environment nor a file
is read then.
"""

FIXED = """\
## Times that are not settings

Every other wait, life and interval is a constant beside the code that keeps it. Those of the command line, of test
suites and of plugins are left out.

| constant | seconds | |
|---|---:|---|"""

FOOT = """
Plugins have variables of their own, such as `COLDSTART_NCCL_CTAS`; each plugin's README names them. OpenTelemetry's
exporters go by its own (`OTEL_EXPORTER_OTLP_ENDPOINT` and others).
"""


class Fixed(NamedTuple):
    """A time that nobody can set: where it is, how long in seconds, and what for."""

    module: str
    name: str
    seconds: float
    about: str


STRUCTS: tuple[tuple[str, type[msgspec.Struct]], ...] = (("plan", Limits), ("modes.states", Terms))
"""The times of the joiner's machine and of the source's; those that are settings are left out."""
TIMES = {
    "claiming.FIRST_SIGN", "claiming.SIGN_OF_LIFE", "estimate.WATCH", "estimate.GAIN", "links.rates.WEEK",
    "phases.weigh.AGAIN", "phases.weigh.PAUSE", "plan.GRACE", "voting.SEEKING",
}  # fmt: skip
"""Constants that are times, though not called ``*_SECONDS``."""


def fixed() -> Iterator[Fixed]:
    """Every time of the package's own work that is no setting."""
    for module, struct in STRUCTS:
        said = dict(re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", struct.__doc__ or "", re.MULTILINE))
        for field in msgspec.structs.fields(struct):
            if isinstance(field.default, float) and field.name not in {*declared(), "floor"}:
                about = _line(said.get(field.name, ""))
                yield Fixed(module, f"{struct.__name__}.{field.name}", field.default, about[:1].upper() + about[1:])
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not module.startswith(("cli.", "testing.", "config.")):
            yield from _constants(module, ast.parse(path.read_text()).body)


def _constants(module: str, body: list[ast.stmt]) -> Iterator[Fixed]:
    for statement, after in pairwise([*body, ast.Pass()]):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if not name.endswith("_SECONDS") and f"{module}.{name}" not in TIMES:
            continue
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield Fixed(module, name, _product(value), _line(str(said)))


def _line(text: str) -> str:
    return " ".join(text.split())


def _product(value: ast.expr) -> float:
    """``6 * 3600.0``: a number, or the product of some."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(left) * _product(right)
        case _:
            raise ValueError(f"{ast.unparse(value)} is no number of seconds")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for each in declared().values():
        if each.setting.section:
            parts.append(f"## {each.setting.section}\n")
        parts.append(_entry(each))
    rows = [f"| `{each.module}.{each.name}` | {plain(each.seconds)} | {_markdown(each.about)} |" for each in fixed()]
    return "\n".join([*parts, FIXED, *rows, FOOT])


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _entry(each: Declared) -> str:
    unit = f" {each.setting.unit}" if each.setting.unit else ""
    default = f"`{plain(each.default)}`{unit}" if each.default != "" else "empty"
    facts = f"`{names.variable(each.name)}`: {each.wanted}; default {default}"
    return f"### {each.name}\n\n{facts}\n\n{each.setting.about}\n\n*Why:* {each.setting.why}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
