"""What is said of a setting besides its name, its type and its default.

Decides the kinds of settings there are: text, seconds, rates, shares and counts, each with its unit and range. A field
of :class:`coldstart.config.Settings` is annotated with one of them; help, checks, the template and the page of all
settings read it from there, so that a setting is written down in one place. It must not know any setting.
"""

from __future__ import annotations

import msgspec

DAY = 86_400.0
LEAST_SECONDS = 0.001
MOST_GBPS = 10_000.0
MOST_GB = 1e9


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, for people.

    Args:
        about: what it decides, in whole sentences of Markdown; ends with what an unusual value means.
        why: why its default is what it is.
        unit: of numbers; empty for counts and ratios.
        least, most: range of numbers, both ends included; within it nothing overflows.
        section: the part of the page that begins with this setting; empty: that of the one before.
        secret: the value is shown to nobody.
    """

    about: str
    why: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    section: str = ""
    secret: bool = False

    @property
    def range(self) -> str:
        """``0 to 86400``; empty for text."""
        return "" if self.least is None or self.most is None else f"{plain(self.least)} to {plain(self.most)}"

    def admits(self, value: object) -> bool:
        """Whether ``value``, of the right type, is in the range; not a number never is."""
        if self.least is None or self.most is None or not isinstance(value, int | float):
            return True
        return self.least <= value <= self.most


def text(about: str, why: str, *, section: str = "", secret: bool = False) -> Setting:
    """Words, names, paths, addresses."""
    return Setting(about=about, why=why, section=section, secret=secret)


def seconds(about: str, why: str, *, least: float = LEAST_SECONDS, section: str = "") -> Setting:
    """A time, up to a day."""
    return Setting(about=about, why=why, unit="s", least=least, most=DAY, section=section)


def gbps(about: str, why: str, *, section: str = "") -> Setting:
    """A rate in 10^9 bytes per second."""
    return Setting(about=about, why=why, unit="GB/s", least=0, most=MOST_GBPS, section=section)


def amount(about: str, why: str, *, section: str = "") -> Setting:
    """Memory or disk in 10^9 bytes."""
    return Setting(about=about, why=why, unit="GB", least=0, most=MOST_GB, section=section)


def ratio(about: str, why: str, *, least: float = 0, section: str = "") -> Setting:
    """A part of a whole."""
    return Setting(about=about, why=why, least=least, most=1, section=section)


def count(about: str, why: str, *, least: float, most: float, section: str = "") -> Setting:
    """How many, or how many times."""
    return Setting(about=about, why=why, least=least, most=most, section=section)


def plain(value: object) -> str:
    """A value as people write it: ``5`` for 5.0, ``0.01``, ``86400``."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
