"""Settings for people to read and to start from: values without secrets, and a file with all of them in it.

Decides words and no values. Pure; ``coldstart config`` prints it, and the page of all settings is made of it.
"""

from __future__ import annotations

import json
import re
from textwrap import wrap

from coldstart.config.declared import Declared, declared
from coldstart.config.kinds import plain

_COLUMNS = 118
_HEAD = """\
# Settings of coldstart. They are read from the file that COLDSTART_CONFIG names, else from the first of
# ~/.config/coldstart/config.toml and /etc/coldstart/config.toml. COLDSTART_<NAME> in the environment beats what stands
# here, and an argument beats both. Each line that is commented out gives the default.
"""


def shown(each: Declared, value: object) -> str:
    """A value as it may be shown: without passwords, and without what is secret."""
    if each.setting.secret:
        return "***" if value else ""
    if not isinstance(value, str):
        return plain(value)
    masked = re.sub(r"(?<=://)([^:@/]*):.*@", r"\1:***@", value)
    return re.sub(r"(?<=[?&]password=)[^&]*", "***", masked)


def template() -> str:
    """A file of settings in which everything is commented out, with what each setting decides and why."""
    lines = [_HEAD]
    for each in declared().values():
        if each.setting.section:
            lines += [f"# {'-' * 20} {each.setting.section}", ""]
        unit = f" ({each.setting.unit})" if each.setting.unit else ""
        ranged = f" {each.setting.range}{unit}." if each.setting.range else ""
        lines += [f"# {line}" for line in wrap(f"{each.setting.about}{ranged}", _COLUMNS - 2)]
        lines += [f"# Why: {line}" if not number else f"#      {line}" for number, line in enumerate(_why(each))]
        lines += [f"# {each.name} = {json.dumps(each.default)}", ""]
    return "\n".join(lines)


def _why(each: Declared) -> list[str]:
    return wrap(each.setting.why, _COLUMNS - 7)
