"""A few numbers that a module computes, compared with those that were published with its truth.

Decides what "the same numbers" means. Pure; who computes them is the builder (``ports.Probing``),
and when they are compared is ``probing.py``'s matter. Digests say that the bytes are right; a probe
that differs says that they are read in another way here than where they were published: a
transposed weight, permuted heads, other constants.
"""

from __future__ import annotations

from math import isfinite, isnan

import msgspec

MOST_NUMBERS = 256
"""A probe is a fingerprint, not an output: more numbers than this are not published."""


class Probe(msgspec.Struct, frozen=True):
    """What a fixed tiny forward gave.

    Args:
        name: which forward, over which input; numbers under different names are not compared.
        numbers: what it gave, at most 256.
        tolerance: how far a number may be from the published one, as a share of the largest published one.
    """

    name: str
    numbers: tuple[float, ...]
    tolerance: float


def differs(published: Probe, own: Probe) -> str:
    """How ``own`` differs from what was published, by its own tolerance, in words; empty if it does not."""
    if len(published.numbers) != len(own.numbers):
        return f"{len(published.numbers)} numbers expected, got {len(own.numbers)}"
    largest = max((abs(number) for number in published.numbers if isfinite(number)), default=0.0)
    for index, (expected, got) in enumerate(zip(published.numbers, own.numbers, strict=True)):
        if not _near(expected, got, own.tolerance * largest):
            return f"number {index} expected {expected:.6g}, got {got:.6g} (within {own.tolerance:g} of {largest:.6g})"
    return ""


def _near(expected: float, got: float, allowed: float) -> bool:
    if isnan(expected) or isnan(got):
        return isnan(expected) and isnan(got)
    if isfinite(expected) and isfinite(got):
        return abs(expected - got) <= allowed
    return expected == got
