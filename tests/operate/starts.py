"""Cold starts of fleets that never were, as a reader of the journal would have them."""

from __future__ import annotations

from coldstart.chronicle.starts import ColdStart, Mark, Outcome, Refusal, Stretch, Transfer
from coldstart.phases.states import STORAGE

GB = 10**9
BEGAN = 1_790_000_000.0


def peer_start(
    worker: str, at: float, source: str, *, took: float = 4.0, total: int = 16 * GB, host: str = "10.0.0.7"
) -> ColdStart:
    """One that got everything from ``source``; ``at`` is in seconds after :data:`BEGAN`."""
    began = BEGAN + at
    phases = _phases(began, took, ("DISCOVER", 0.02), ("HANDSHAKE", 0.03), ("TRANSFER", 0.85), ("VERIFY", 0.1), source)
    pull = Transfer(1, source, "tcp", phases[2].begin, phases[2].end, total, 0.8 * took, "tcp", 6e9, outcome="ok")
    return _start(worker, began, took, {source: total}, phases, (pull,), host=host, total=total)


def storage_start(worker: str, at: float, *, took: float = 20.0, total: int = 16 * GB) -> ColdStart:
    """One that was elected to read storage."""
    began = BEGAN + at
    phases = _phases(began, took, ("DISCOVER", 0.01), ("FALLBACK", 0.94), ("VERIFY", 0.05), STORAGE)
    pull = Transfer(1, STORAGE, STORAGE, phases[1].begin, phases[1].end, total, took * 0.9, leading=True, outcome="ok")
    return _start(worker, began, took, {STORAGE: total}, phases, (pull,), total=total)


def fallen_start(worker: str, at: float, source: str, reason: str, *, took: float = 14.0) -> ColdStart:
    """One whose source has stalled, and that has read the rest from storage."""
    began, total = BEGAN + at, 16 * GB
    phases = _phases(began, took, ("DISCOVER", 0.02), ("TRANSFER", 0.4), ("FALLBACK", 0.5), ("VERIFY", 0.08), source)
    first = Transfer(1, source, "tcp", phases[1].begin, phases[1].end, total // 4, 2.0, outcome=reason)
    rest = Transfer(2, STORAGE, STORAGE, phases[2].begin, phases[2].end, 3 * total // 4, 6.0, outcome="ok")
    left = phases[2].begin
    marks = (Mark(left, "stalled", reason, source, 1), Mark(left, "detour", f"{source}: {reason}"))
    refusals = (Refusal(began + 0.2, 1, "w9", "refused", "busy"),)
    origins = {source: total // 4, STORAGE: 3 * total // 4}
    return _start(worker, began, took, origins, phases, (first, rest), marks=marks, refusals=refusals, total=total)


def failed_start(worker: str, at: float, reason: str) -> ColdStart:
    """One that found no path."""
    began = BEGAN + at
    phases = _phases(began, 6.0, ("DISCOVER", 0.1), ("FALLBACK", 0.9), STORAGE, end="FAILED")
    marks = (Mark(began + 0.6, "detour", "the store cannot be reached"), Mark(began + 6, "detour", reason))
    return _start(worker, began, 6.0, {}, phases, (), outcome="failed", reason=reason, marks=marks)


def rollout(count: int, at: float = 0.0) -> list[ColdStart]:
    """One reads storage, the others receive from those before them."""
    first = storage_start("w0", at)
    return [
        first,
        *(peer_start(f"w{n}", at + 0.05 * n, f"w{(n - 1) // 2}", took=20.5 + n % 7) for n in range(1, count)),
    ]


def _phases(began: float, took: float, *parts: tuple[str, float] | str, end: str = "SERVE") -> tuple[Stretch, ...]:
    """Shares of the time after half a second of building; the last word is the source."""
    source = str(parts[-1])
    at, left, found = began + 0.5, took - 0.5, []
    for part in parts[:-1]:
        assert isinstance(part, tuple)
        name, share = part
        found.append(Stretch(name, name, 1, source if name in ("TRANSFER", "FALLBACK") else "", at, at + share * left))
        at += share * left
    found.append(Stretch(end, end, 1, "", began + took, None))
    return tuple(found)


def _start(
    worker: str,
    began: float,
    took: float,
    sources: dict[str, int],
    phases: tuple[Stretch, ...],
    transfers: tuple[Transfer, ...],
    *,
    marks: tuple[Mark, ...] = (),
    refusals: tuple[Refusal, ...] = (),
    outcome: Outcome = "serving",
    reason: str = "",
    host: str = "10.0.0.7",
    total: int = 0,
) -> ColdStart:
    return ColdStart(
        start=f"{worker}-1", worker=worker, shard="s" * 32, model="llama-8b@5f1c09aa/single", host=host, rank="",
        trace="", group="", index=0, size=1, began=began, heard=began + took, built=0.5, outcome=outcome,
        seconds=took, total=total, verified=1, chunks=1, sources=sources, phases=phases, transfers=transfers,
        refusals=refusals, marks=marks, loans=(), reason=reason,
    )  # fmt: skip
