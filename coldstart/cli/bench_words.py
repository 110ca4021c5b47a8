"""What ``coldstart bench`` and its child processes say to each other: one JSON object a line.

Decides the requests and replies, and nothing about how they are fulfilled. It must not know
processes (``bench_family.py``) nor anything that is slow to import: both sides load it first.
Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Loading = Literal["touched", "copied"]
"""``touched``: mapped from the page cache, every page read once; ``copied``: cloned into memory of its own."""


class Word(msgspec.Struct, frozen=True, tag=True):
    """Base of requests and replies."""


# ---------------------------------------------------------------------------------------- requests


class Imports(Word, frozen=True):
    """Import everything that a cold start imports, and build nothing."""


class Lend(Word, frozen=True):
    """Hold the checkpoint's bytes warm; serve them over a plain socket and over tcp."""

    checkpoint: str


class Prepare(Word, frozen=True):
    """Allocate and touch the memory that the following copies arrive in."""

    checkpoint: str


class Plain(Word, frozen=True):
    """Fill the memory over one plain socket."""

    port: int


class Pull(Word, frozen=True):
    """Fill the memory over tcp; with ``digest``, each chunk is digested as it lands."""

    ticket: bytes
    digest: bool


class Hash(Word, frozen=True):
    """Digest every chunk of the memory in ``threads`` threads."""

    threads: int


class Load(Word, frozen=True):
    """``safetensors.torch.load_file``."""

    file: str
    way: Loading


class Hold(Word, frozen=True):
    """Cold-start from storage and stay, as a source. ``place`` is where the store lives."""

    checkpoint: str
    place: str


class Start(Word, frozen=True):
    """Cold-start and leave, ``count`` times but for at most ``seconds``.

    With a ``place`` everything must come from a peer, without one from storage. ``watched``
    finds the first byte's time, which costs the loop a little at every step.
    """

    checkpoint: str
    place: str
    count: int = 1
    seconds: float = 60.0
    watched: bool = False


# ----------------------------------------------------------------------------------------- replies


class Done(Word, frozen=True):
    """``peak`` is the largest resident size of the process so far."""

    peak: int


class Lent(Word, frozen=True):
    port: int
    ticket: bytes


class Took(Word, frozen=True):
    seconds: float


class Outcome(msgspec.Struct, frozen=True):
    """One cold start, with the seconds of its phases.

    ``first_byte`` counts from entering DISCOVER to the first range that landed.
    """

    seconds: float
    phases: dict[str, float]
    first_byte: float = 0.0


class Started(Word, frozen=True):
    outcomes: tuple[Outcome, ...]
    peak: int


class Failed(Word, frozen=True):
    """The request could not be fulfilled; one line for the operator."""

    what: str


Request = Imports | Lend | Prepare | Plain | Pull | Hash | Load | Hold | Start
Reply = Done | Lent | Took | Started | Failed
