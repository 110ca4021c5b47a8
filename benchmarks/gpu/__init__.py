"""Measures coldstart between two GPUs of one host, beside what the same run finds to be the limits.

    python -m benchmarks.gpu [--quick] [--only WORD,...] [--json FILE]
    python -m benchmarks.gpu --cpu                     # the same script at toy sizes, without a GPU
    python -m benchmarks.gpu.page FILE docs/benchmarks.md

To read it: ``words`` (what is said), ``models`` (what is moved), ``cases`` (what is measured, in which
order), ``pair`` and ``side`` (each case in processes of its own, ended at its deadline), then the
measurements themselves: ``limits``, ``loops``, ``pulls``, ``digests``, ``lending``, ``starts``,
``stored``; ``table`` and ``page`` show what came out.
"""
