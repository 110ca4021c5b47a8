"""The one reader of the environment: settings from arguments, variables and a file, with their defaults and reasons.

Decides nothing but values. It must not import what it configures. What there is to set is in ``settings.py``, in what
form it is written down in ``kinds.py``, read back in ``declared.py``. Where values come from and which one holds is in
``loading.py``, with ``files.py``, ``names.py`` and ``places.py``; what torchrun and OpenTelemetry say is read in
``launch.py``.
"""

from __future__ import annotations

from coldstart.config.declared import Declared as Declared
from coldstart.config.declared import declared as declared
from coldstart.config.launch import otlp_endpoint as otlp_endpoint
from coldstart.config.launch import otlp_protocol as otlp_protocol
from coldstart.config.launch import otlp_seconds as otlp_seconds
from coldstart.config.launch import torchrun as torchrun
from coldstart.config.loading import FILE as FILE
from coldstart.config.loading import Effective as Effective
from coldstart.config.loading import Origin as Origin
from coldstart.config.loading import checked as checked
from coldstart.config.loading import environment as environment
from coldstart.config.loading import load as load
from coldstart.config.loading import others as others
from coldstart.config.loading import resolve as resolve
from coldstart.config.loading import slips as slips
from coldstart.config.names import PREFIX as PREFIX
from coldstart.config.settings import Settings as Settings
