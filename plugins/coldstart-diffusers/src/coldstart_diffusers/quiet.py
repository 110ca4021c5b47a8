"""Keeps diffusers silent while we use it, and leaves its settings as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from coldstart_transformers.quiet import quiet as quiet_transformers
from diffusers.utils import logging as chatter


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, and no messages below errors, inside the block; transformers is quiet as well.

    The settings belong to the process; another thread that uses diffusers meanwhile is quiet, too.
    """
    level, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity(logging.ERROR)
    chatter.disable_progress_bar()
    try:
        with quiet_transformers():
            yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            chatter.enable_progress_bar()
