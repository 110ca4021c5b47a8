"""coldstart transports over pairs of a collective library: the entry points ``nccl`` and ``gloo``.

Decides where each may be used: ``nccl`` where there is a CUDA device and nccl4py, ``gloo`` only
where somebody asks for it by ``COLDSTART_NCCL_GLOO=1``, since it is for tests. The only module that
reads the environment. Both are the same transport (``transport.py``) over another library
(``nccl.py``, ``gloo.py``), and have names of their own, so that a worker on the host's memory and one
on a GPU never take each other for a match, and no report says NCCL of bytes that it never saw.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from coldstart.errors import ConfigError
from coldstart.ports import API, Availability, Traits, TransportSettings
from coldstart_nccl.transport import CollectiveTransport

__all__ = ["GLOO", "NCCL"]

CTAS: Final = "COLDSTART_NCCL_CTAS"
ASK_FOR_GLOO: Final = "COLDSTART_NCCL_GLOO"

_INSTALL: Final = "pip install 'coldstart-nccl[cuda13]' (or [cuda12])"


class NcclFactory:
    """Opens the transport ``nccl``."""

    api: int = API

    def probe(self) -> Availability:
        """Looks for the packages and for NVIDIA's driver; loads neither."""
        for module in ("nccl.core", "cuda.core", "cuda.bindings"):
            if not _installed(module):
                return Availability(usable=False, reason=f"no module {module}: {_INSTALL}")
        if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
            return Availability(usable=False, reason="no NVIDIA device on this machine")
        return Availability(usable=True, reason="nccl4py")

    def open(self, settings: TransportSettings) -> CollectiveTransport:
        """The library is loaded and used once in the background, if the weights are to be on a GPU.

        Raises:
            ConfigError: ``COLDSTART_NCCL_CTAS`` is no number from 1 to 32.
        """
        from coldstart_nccl.nccl import NcclBackend

        traits = Traits(one_sided=False, needs_peer=True, abortable=True, device_kinds=("cuda",), link="nvlink")
        return CollectiveTransport(NcclBackend(), traits, settings, _ctas())


class GlooFactory:
    """Opens the transport ``gloo``."""

    api: int = API

    def probe(self) -> Availability:
        """Usable only on request: an installed transport that can run is used, and this one is for tests."""
        if os.environ.get(ASK_FOR_GLOO) != "1":
            return Availability(usable=False, reason=f"for tests, on request only: set {ASK_FOR_GLOO}=1")
        return Availability(usable=True, reason="torch.distributed")

    def open(self, settings: TransportSettings) -> CollectiveTransport:
        """Imports torch: call it in a thread."""
        from coldstart_nccl.gloo import GlooBackend

        traits = Traits(one_sided=False, needs_peer=True, abortable=True, device_kinds=("cpu",), link="tcp")
        return CollectiveTransport(GlooBackend(), traits, settings)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or broken
        return False


def _ctas() -> int:
    given = os.environ.get(CTAS, "")
    if not given:
        return 0
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= 32:
        raise ConfigError(f"{CTAS} is {given!r}", advice="set it to a number from 1 to 32, or leave it unset")
    return int(given)


NCCL: Final = NcclFactory()
"""The entry point ``nccl``."""
GLOO: Final = GlooFactory()
"""The entry point ``gloo``."""
