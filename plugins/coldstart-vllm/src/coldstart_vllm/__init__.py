"""vLLM's load format ``coldstart``: the entry point that vLLM calls in each of its processes.

Decides only that registering can be repeated and never breaks an engine: whatever goes wrong is
logged, and vLLM then says that it does not know the format. vLLM is imported when it calls, for it
has been imported by then. What the loader does is in ``loader.py``; to read it, go on with
``options``, ``facts`` and ``survey`` (what is refused), ``skeleton`` and ``witness`` (what is carried,
and the proof that loading is copying), ``background`` and ``relay`` (two threads), ``proof`` (whether
the memory may still be lent), ``engine`` (vLLM's own objects).
"""

from __future__ import annotations

import logging

__all__ = ["register", "withdraw"]

FORMAT = "coldstart"

_registered = False


def register() -> None:
    """Make ``--load-format coldstart`` known to this process. Raises nothing."""
    global _registered
    if _registered:
        return
    try:
        from vllm.model_executor.model_loader import register_model_loader

        from coldstart_vllm.loader import ColdstartLoader

        register_model_loader(FORMAT)(ColdstartLoader)
        _registered = True
    except Exception:  # vLLM does not catch what a plugin raises, and an engine may not need this one
        logging.getLogger("vllm.coldstart").exception("load format %s is not available", FORMAT)


def withdraw() -> None:
    """Lend nothing of this process any more; returns when nobody reads its weights.

    For hosts that are about to change weights in a way that the loader does not see (an update over
    ``collective_rpc``, an engine put to sleep). Idempotent; takes as long as transfers in flight may.
    """
    from coldstart_vllm.background import withdraw_all

    withdraw_all()
