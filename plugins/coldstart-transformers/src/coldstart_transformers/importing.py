"""Has transformers imported without the talk of what comes with it: it imports torchao wherever that is installed.

Which then says in the log which of its kernels this machine cannot load, and is told by torch how it should be written.
Neither is of use to somebody who asked for a model. It must not import transformers itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

TALKERS = ("torchao", "torch.utils._pytree")


@contextmanager
def hushed() -> Iterator[None]:
    """In the block, these log nothing below errors; afterwards whatever they did before."""
    loggers = [logging.getLogger(name) for name in TALKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
