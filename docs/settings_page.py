"""Writes ``docs/settings.md`` from what is written down beside each setting.

    python docs/settings_page.py docs/settings.md

Decides how the page looks, nothing of what it says: that stands in ``coldstart/config/settings.py``, and a test demands
that the page is current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coldstart.config import Declared, declared, names
from coldstart.config.kinds import plain

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
coldstart config --template > ~/.config/coldstart/config.toml
COLDSTART_CONFIG=fleet.toml coldstart config slots=4 # would this be accepted?
```

In a program, `coldstart.config.load(file="fleet.toml")` gives `Settings`, and `coldstart.config.resolve` where each
value comes from, too. A `Settings` that a program makes by itself is taken as it is: neither the environment nor a file
is read then.
"""

FOOT = """\
## What is not here

Limits that nobody needs to change are constants beside the code that keeps them. Plugins have variables of their own,
such as `COLDSTART_NCCL_CTAS`; each plugin's README names them. OpenTelemetry's exporters go by its own variables
(`OTEL_EXPORTER_OTLP_ENDPOINT` and others).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for each in declared().values():
        if each.setting.section:
            parts.append(f"## {each.setting.section}\n")
        parts.append(_entry(each))
    parts.append(FOOT)
    return "\n".join(parts)


def _entry(each: Declared) -> str:
    kinds = {str: "text", int: "whole number", float: "number"}
    default = f"`{plain(each.default)}`" if each.default != "" else "empty"
    unit = f" {each.setting.unit}" if each.setting.unit else ""
    ranged = f", {each.setting.range}{unit}" if each.setting.range else ""
    facts = f"`{names.variable(each.name)}`, {kinds[each.type]}{ranged}; default {default}{unit if default != 'empty' else ''}"
    return f"### {each.name}\n\n{facts}\n\n{each.setting.about}\n\n*Why:* {each.setting.why}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
