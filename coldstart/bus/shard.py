"""What the store in memory knows of one shard: plain state; the rules are in ``ledger.py`` and ``turn.py``."""

from __future__ import annotations

from collections import defaultdict, deque

from coldstart.bus.leases import Leases
from coldstart.bus.limits import JOURNAL_ENTRIES
from coldstart.bus.line import Lines
from coldstart.bus.roster import Roster
from coldstart.ports import Elected, Granted, Letter, Recorded


class Shard:
    """One shard. A test may spoil it."""

    def __init__(self) -> None:
        self.roster = Roster()
        self.lines = Lines()
        self.leaders: Leases[str] = Leases()
        self.answers: Leases[Granted | Elected] = Leases()
        self.lent: Leases[tuple[str, str]] = Leases()
        """The source and its inbox, by transfer, until that is released."""
        self.nonces: Leases[bool] = Leases()
        self.readers: defaultdict[str, Leases[bool]] = defaultdict(Leases)
        """Those admitted to storage, by layout and name."""
        self.truths: dict[str, tuple[str, bytes]] = {}
        self.conflicts: dict[str, list[str]] = {}
        self.stated: dict[str, dict[int, bytes]] = {}
        self.inboxes: Leases[deque[tuple[int, Letter]]] = Leases()
        self.journal: deque[Recorded] = deque(maxlen=JOURNAL_ENTRIES)
        self.fence = 0
        self.changes = 0

    def root(self, layout: str) -> str:
        """The root of the published truth, or nothing."""
        return self.truths[layout][0] if layout in self.truths else ""
