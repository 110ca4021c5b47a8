"""How a command ends when one of its threads does not.

A read from storage that hangs keeps its thread in the operating system, where nothing can reach it,
and the interpreter waits for its threads before it ends. The command has said its last word by then:
it ends without them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

STUCK_SECONDS = 1.0
"""A thread that has work to finish is done by then."""


def leave(code: int) -> NoReturn:
    """End the process with ``code``, whether or not all threads have come back."""
    deadline = time.monotonic() + STUCK_SECONDS
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    waited_for = [thread for thread in others if not thread.daemon]
    for thread in waited_for:
        thread.join(max(0.0, deadline - time.monotonic()))
    if not any(thread.is_alive() for thread in waited_for):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
