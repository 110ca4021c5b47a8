"""The plan: which cases there are, in which order, how long each may take, and its limit.

Decides what is left out and why, before a process is started for it. What matters most comes first,
because a run has an end. How the cases are measured is in the modules that ``function`` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.gpu.words import Facts, Size

COPY: Final = "device-to-device copy, CUDA IPC, flat"
NCCL: Final = "NCCL broadcast, flat"
ENGINE: Final = "TransferEngine read, flat"
SOCKET: Final = "plain TCP socket, host memory, one connection"
READING: Final = "reading once, int64 sum: the limit"
LOAD_HOT: Final = "safetensors load_file, page cache hot"
LOAD_COLD: Final = "safetensors load_file, page cache cold"
LOAD_LARGE: Final = "safetensors load_file of the large model, page cache cold"

MEASURED_BY: Final[Mapping[str, str]] = {
    COPY: "limit copy",
    NCCL: "limit nccl",
    ENGINE: "limit engine",
    SOCKET: "limit socket",
    LOAD_COLD: "load_file",
    LOAD_HOT: "load_file",
    LOAD_LARGE: "load_file large",
}
"""The case that measures a limit, where it is not the one that is held against it."""

LIMIT_OF: Final[Mapping[str, str]] = {"nccl": NCCL, "transfer-engine": ENGINE, "tcp": SOCKET, "gloo": SOCKET}
"""What a transport is held against; one that is not named here, against the plain copy."""

GENTLE: Final[Mapping[str, Mapping[str, str]]] = {
    "nccl": {"lend_gbps": "70"},
    "transfer-engine": {"lend_gbps": "250"},
}
"""How a transport is asked to spare the source, where it can be."""


class Case(msgspec.Struct, frozen=True):
    """What one pair of processes measures.

    Args:
        seconds: after so long it is stopped.
        rounds: repeats at most, 0 for as many as the run has.
        stored: whether it needs the checkpoint on the disk.
        limits: by the beginning of a figure's label, the label of what it is held against; ``""`` is for the rest.
        missing: why it is not tried at all.
    """

    name: str
    section: str
    function: str
    seconds: float
    model: str = ""
    options: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}
    missing: str = ""
    rounds: int = 0
    stored: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """Names of the cases that have to run before it."""
        limits = {MEASURED_BY[limit] for limit in self.limits.values() if limit in MEASURED_BY}
        return frozenset(limits | {_checkpoint(self.model)} if self.stored else limits)


def _checkpoint(model: str) -> str:
    """The name of the case that writes it."""
    return "checkpoint large" if model == "large" else "checkpoint"


def wanted(cases: Sequence[Case], words: Sequence[str]) -> Sequence[Case]:
    """Those with one of ``words`` in their name, and those that they need; all of them without words."""
    chosen = {case.name for case in cases if not words or any(word in case.name for word in words)}
    while more := {need for case in cases if case.name in chosen for need in case.needs} - chosen:
        chosen |= more
    return [case for case in cases if case.name in chosen]


def plan(facts: Facts, size: Size) -> Sequence[Case]:
    """All cases of a run, in order."""
    transports, cuda = facts.transports, bool(facts.gpus)
    return [
        *_limits(cuda),
        *_loops(cuda, ("llama", "moe")),
        *_pulls(transports, "llama"),
        *_pulls(transports, "moe"),
        Case("digest", "digest", "benchmarks.gpu.digests:digests", 60, "llama", limits={"csfp1": READING}),
        *_large(transports, cuda, size),
        *_lending(transports),
        *_starts(transports),
        *_stored(facts, cuda),
        *_large_starts(transports, size),
    ]


def _limits(cuda: bool) -> Iterator[Case]:
    missing = "" if cuda else "needs CUDA"
    for name, function in (("copy", "copy"), ("nccl", "nccl"), ("engine", "transfer_engine")):
        limits = {} if name == "copy" else {"": COPY}
        where = f"benchmarks.gpu.limits:{function}"
        yield Case(f"limit {name}", "limits", where, 40, limits=limits, missing=missing)
    yield Case("limit socket", "limits", "benchmarks.gpu.limits:plain_socket", 30)


def _loops(cuda: bool, models: Sequence[str]) -> Iterator[Case]:
    for model in models:
        yield Case(
            f"loop {model}",
            "per-tensor loops of public systems",
            "benchmarks.gpu.loops:per_tensor",
            40,
            model,
            limits={"": NCCL},
            missing="" if cuda else "needs CUDA",
        )


def _pulls(transports: Mapping[str, str], model: str) -> Iterator[Case]:
    for name, why in transports.items():
        yield Case(
            f"pull {name} {model}",
            "coldstart transports, arena to arena",
            "benchmarks.gpu.pulls:pull",
            70 if name == "tcp" else 40,
            model,
            {"transport": name},
            {"": LIMIT_OF.get(name, COPY)},
            why,
            _rounds(name),
        )


def _rounds(name: str) -> int:
    """Few repeats of what takes seconds a time."""
    return 2 if name == "tcp" else 0


def _lending(transports: Mapping[str, str]) -> Iterator[Case]:
    for name, why in transports.items():
        for mood, options in (("", {}), (" gently", GENTLE.get(name))):
            if options is not None:
                yield Case(
                    f"lending {name}{mood}",
                    "what lending costs the source",
                    "benchmarks.gpu.lending:lending",
                    40,
                    "llama",
                    {"transport": name, **options},
                    missing=why,
                )


def _starts(transports: Mapping[str, str]) -> Iterator[Case]:
    yield Case("checkpoint", "cold starts", "benchmarks.gpu.stored:write", 90, "llama")
    for name, why in sorted(transports.items(), key=lambda each: each[0] == "tcp"):  # the slowest one last
        limit = LIMIT_OF.get(name, COPY)
        yield Case(
            f"start {name}",
            "cold starts",
            "benchmarks.gpu.starts:from_peer",
            70,
            "llama",
            {"transport": name},
            {"": limit},
            why,
            _rounds(name),
            stored=True,
        )


def _stored(facts: Facts, cuda: bool) -> Iterator[Case]:
    section = "storage"
    yield Case("load_file", section, "benchmarks.gpu.stored:load", 90, "llama", stored=True)
    limits = {"cold start from storage, page cache cold": LOAD_COLD, "": LOAD_HOT}
    function = "benchmarks.gpu.starts:from_storage"
    yield Case("start storage", section, function, 90, "llama", limits=limits, stored=True)
    usable = [name for name, why in facts.loaders.items() if not why]
    for name in usable[:1] or facts.loaders:
        yield Case(
            f"load {name}",
            section,
            "benchmarks.gpu.stored:load_fast",
            90,
            "llama",
            {"loader": name},
            missing=facts.loaders[name] or ("" if cuda else "needs CUDA"),
            stored=True,
        )


def _large(transports: Mapping[str, str], cuda: bool, size: Size) -> Iterator[Case]:
    if size == "quick":
        return
    fast = {name: why for name, why in transports.items() if name != "tcp" or size == "toy"}
    yield from _pulls(fast, "large")
    yield from _loops(cuda, ("large",))


def _large_starts(transports: Mapping[str, str], size: Size) -> Iterator[Case]:
    """Against a cold disk, whose reading is the longest of all: once."""
    if size == "quick":
        return
    section = "cold starts of the large model"
    yield Case("checkpoint large", section, "benchmarks.gpu.stored:write", 240, "large")
    yield Case("load_file large", section, "benchmarks.gpu.stored:load_cold", 120, "large", rounds=1, stored=True)
    for name, why in transports.items():
        if name != "tcp" or size == "toy":
            yield Case(
                f"start {name} large",
                section,
                "benchmarks.gpu.starts:from_peer",
                90,
                "large",
                {"transport": name},
                {f"{name}: cold start from a peer, the same": LOAD_LARGE, "": LIMIT_OF.get(name, COPY)},
                why,
                2,
                stored=True,
            )
