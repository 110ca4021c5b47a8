"""What the library takes from its process: environment variables, standard error, the current CUDA device.

The one module here that touches them. The library reads its settings from the environment while
an engine starts, and writes its log to descriptor 2, so both are changed for that moment and put
back; a variable that the host has set is left as it is. It must not know engines
(``library.py``).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final

from coldstart.driver import apart_from_captures

_lock = threading.RLock()
_log = logging.getLogger(__name__)

_GLOG: Final = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ |WARNING: Logging before InitGoogleLogging")


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set what the host has not set, for the block; one block at a time."""
    with _lock:
        added = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


@contextmanager
def hushed() -> Iterator[None]:
    """Keep the library's log lines off standard error; what others write there meanwhile arrives late, not never."""
    with _lock, tempfile.TemporaryFile() as said:
        try:
            kept = os.dup(2)
        except OSError:  # a daemon without standard error has nothing to protect
            yield
            return
        _flush()
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, 2)
            os.close(kept)
            _sort(said)


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _sort(said: IO[bytes]) -> None:
    said.seek(0)
    for line in said:
        if _GLOG.match(line):
            _log.debug("transfer engine: %s", line.decode(errors="replace").rstrip())
        elif line.strip():
            os.write(2, line)


@contextmanager
def current(device: str) -> Iterator[None]:
    """Make ``device`` the calling thread's CUDA device for the block, apart from graphs that the host captures there.

    Nothing for memory of the host.

    Native code works on the current device of its thread, which is the first one until somebody says otherwise.
    """
    if not device.startswith("cuda"):
        yield
        return
    import torch  # it is the host's already, where there is device memory

    with torch.cuda.device(device), apart_from_captures(device):
        # A thread that has made no call of the CUDA runtime yet has no context for calls of the driver.
        torch.cuda.current_stream().synchronize()
        yield
