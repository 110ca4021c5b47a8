"""Measures a rollout on one machine: real workers, each behind a link of its own.

    python -m benchmarks.fleet [--workers 8] [--mbit 200] [--mib 96] [--json FILE] [--keep DIRECTORY]
    python -m benchmarks.fleet.joiners [--joiners 500] [--json FILE]      # coordination alone

To read it: ``network`` (a namespace and a shaped link for each worker), ``worker`` (what runs in one),
``cases`` (who starts when, and what is timed), ``predicted`` (what the
simulator says of it), ``results`` (what came out), ``__main__`` (what is asked for).
``joiners`` is by itself: hundreds of cold starts as coroutines against one store.
"""
