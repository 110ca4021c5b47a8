"""Logs and spans, derived from the machines' steps.

``names`` says what things are called in a trace, ``joiner`` makes the spans of a cold start, ``source`` those of what
is lent, ``logs`` finds the host's logger. Uses OpenTelemetry's API only and never sets global providers; without a
provider spans cost next to nothing. Everything is imported from here.
"""

from __future__ import annotations

from coldstart.telemetry.joiner import JoinerTrace as JoinerTrace
from coldstart.telemetry.logs import Logger as Logger
from coldstart.telemetry.logs import logger as logger
from coldstart.telemetry.source import SourceTrace as SourceTrace
