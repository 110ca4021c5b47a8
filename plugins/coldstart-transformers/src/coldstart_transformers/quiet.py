"""Keeps transformers silent while we use it, and leaves its settings as they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
from transformers.utils import logging as chatter

_hide_bars: Callable[[], None] = chatter.disable_progress_bar
_show_bars: Callable[[], None] = chatter.enable_progress_bar


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, and no messages below errors, inside the block.

    The settings belong to the process; another thread that uses transformers meanwhile is
    quiet as well, and a log level it sets itself is lost.
    """
    level = chatter.get_verbosity()
    bars, hub_bars = chatter.is_progress_bar_enabled(), not are_progress_bars_disabled()
    chatter.set_verbosity(logging.ERROR)
    _hide_bars()
    try:
        yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            _show_bars()
        elif hub_bars:
            enable_progress_bars()
