"""A host's own way to make its ranks agree."""

from __future__ import annotations

from typing import Protocol


class Consensus(Protocol):
    """A host's own way to have its ranks agree, such as a collective of its process group."""

    async def all_agree(self, question: str, yes: bool, seconds: float) -> bool:
        """Whether every rank says yes to ``question``; every rank is asked the same ones in the same order.

        Ends within ``seconds``. May raise anything when a rank is gone; it is not asked again then.
        """
        ...
