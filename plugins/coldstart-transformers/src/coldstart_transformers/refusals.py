"""Why checkpoints of some quantisations do not start here, in words.

What is said of a method was found out with transformers 5.24 and the method's package, on a machine without an
accelerator; the README has the table. It decides nothing: which methods do start is in ``quantised.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ON_A_GPU: Final = "transformers loads such weights only where there is a GPU; coldstart was not tried with them"

_REASONS: Final[Mapping[str, str]] = {
    "aqlm": "on a CPU one forward does not give the bits of the one before, so that nothing can be proven",
    "eetq": _ON_A_GPU,
    "fbgemm_fp8": _ON_A_GPU,
    "fouroversix": "its package is built from source for a GPU, and coldstart was not tried with it",
    "fp_quant": _ON_A_GPU,
    "gguf": "transformers reads such weights from .gguf files only, and coldstart from .safetensors only",
    "higgs": _ON_A_GPU,
    "hqq": "transformers 5 cannot read such weights back: it has no operation for them yet",
    "nvfp4": "transformers reads no checkpoint that is stored in it, it only quantises others",
    "quanto": "transformers neither saves nor reads back what quanto has quantised",
    "quark": "coldstart was not tried with its package",
    "sinq": "its package replaces transformers' own functions for saving and loading, for the whole process",
    "spqr": _ON_A_GPU,
    "vptq": _ON_A_GPU,
}


def why_not(method: str) -> str:
    """The reason to refuse ``method``, to be put behind its name."""
    return _REASONS.get(method, "coldstart does not know what transformers makes of such weights")
