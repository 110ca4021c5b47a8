"""What came of one family, the line that says so, and the line of them all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One family's cold start between two processes, against the ordinarily loaded module.

    ``carried`` counts the tensors that travelled, ``bytes`` what they take; ``recomputed`` names those that
    each worker computed for itself, ``runtime`` those that only a forward brings into being. ``naive``
    is what a strict ``load_state_dict`` into an emptied copy gives. ``whole`` says why storage was
    read whole; empty: chunk by chunk. ``refusal`` is the stated reason of one that was to be refused.
    """

    name: str
    library: str
    kind: str
    bytes: int = 0
    carried: int = 0
    recomputed: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    naive: str = ""
    whole: str = ""
    refusal: str = ""
    wrong: str = ""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Equal, or refused as it should be."""
        return not self.wrong

    @property
    def line(self) -> str:
        verdict = f"WRONG: {self.wrong}" if self.wrong else f"refused: {self.refusal}" if self.refusal else "equal"
        recomputed, runtime = len(self.recomputed), len(self.runtime)
        counts = f"{self.carried:>4} carried {recomputed:>3} recomputed {runtime:>2} runtime"
        total = self.carried + recomputed + runtime
        return f"{self.name:<58} {total:>4} tensors {self.bytes:>9} bytes {counts}  {verdict}"


class Zoo(msgspec.Struct, frozen=True):
    """All outcomes of a run, with the versions of the libraries they hold for."""

    versions: dict[str, str]
    outcomes: tuple[Outcome, ...]


def total(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The last line of a run."""
    refused = sum(1 for each in outcomes if each.right and each.refusal)
    wrong = sum(1 for each in outcomes if not each.right)
    naive = sum(1 for each in outcomes if each.naive not in ("", "equal"))
    classes = len({each.name.partition(":")[0] for each in outcomes})
    return (
        f"{len(outcomes)} families of {classes} classes: {len(outcomes) - refused - wrong} equal, {refused} refused "
        f"for the stated reason, {wrong} wrong; a copy by load_state_dict is not equal for {naive}; {seconds:.0f} s"
    )
