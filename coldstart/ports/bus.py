"""The bus: letters between workers, and the store's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from coldstart.group import Paper, Tally
from coldstart.ports.claims import Admission, Advert, Claim, ClaimOutcome, Granted


class Cursor(msgspec.Struct, frozen=True):
    """Where a listener stands in its two streams; bound to one life of the store by ``epoch``."""

    inbox: str = "0-0"
    fleet: str = "0-0"
    epoch: str = ""


class Letter(msgspec.Struct, frozen=True):
    """One message from an inbox; ``fence`` is set by the claim that sent it, else 0.

    A letter with ``granted`` is the store's own, with an empty body: the claim that stood in line for
    ``transfer`` has got a source.
    """

    body: bytes
    fence: int = 0
    transfer: str = ""
    granted: Granted | None = None


class Heard(msgspec.Struct, frozen=True):
    """What a listener got: letters for it, and whether the fleet changed; with the cursor to go on from.

    ``renewed`` says that the store lost its memory (another epoch): adverts must be made again.
    """

    cursor: Cursor
    letters: tuple[Letter, ...] = ()
    fleet_changed: bool = False
    renewed: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What a store knows: which life it is in, the root of the published truth, and whether we are struck.

    A store that fell back to an earlier state is in the same life and may have lost the truth.
    """

    epoch: str
    root: str
    struck: bool = False


class Stated(msgspec.Struct, frozen=True):
    """What is known of a truth that is being made: the digests stated so far, by chunk.

    Once the truth is published, ``root`` names it and ``digests`` is empty: it is fetched as a whole.
    """

    root: str = ""
    digests: Mapping[int, bytes] = {}


class Recorded(msgspec.Struct, frozen=True):
    """A journal entry as the store keeps it; ``at`` is when it arrived there, in seconds of the epoch on its clock."""

    id: str
    at: float
    body: bytes


class Bus(Protocol):
    """Coordination: hints, leases and letters. Nothing in it is needed for safety.

    Every method has a deadline of its own and raises BusError when the store is down, silent
    or refuses; it never retries in secret. Whether a failed write was applied is unknown.
    Times are measured on the store's clock. Losing everything costs only slower starts.
    """

    @property
    def local_address(self) -> str:
        """The address of this machine on the route to the store (``127.0.0.1`` for a local one)."""
        ...

    async def claim(self, claim: Claim) -> ClaimOutcome:
        """Find a source and take a slot, or be elected to read storage: one atomic operation."""
        ...

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        """Give a slot back; returns the source's advert as it stands now, if it is still alive.

        Args:
            source: empty takes the claim back wherever it stands: in line, or at a source by now.
            letter: for the source, before the slot can be granted again: put into the inbox that the hello
                went to or, where the store does not know that (any more), into the source's present one.
        """
        ...

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        """Renew the loader's lease; false when somebody else holds it. ``seconds=0`` gives it up."""
        ...

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        """Admit ``worker`` to storage although there are sources, if fewer than ``most`` others read it.

        It then counts among the readers for ``seconds``; asked again, it is counted anew. ``seconds=0``: it
        has done, or will not read after all. Storage is shared: this is what keeps a crowd from it.
        """
        ...

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        """Make or renew a leased advert; returns what the store knows that it should know.

        Args:
            held: transfers that still go on here: their slots live at least as long as the advert.
            ended: transfers that are over: their slots are free, should their joiners not have said so.
        """
        ...

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        """Take the advert back at once; idempotent. The advert of a later incarnation stays."""
        ...

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        """Doubt a worker's bytes: no claim is granted there until it advertises with a proof above ``proof``.

        ``letter`` is put into its inbox, together with the doubt, so that it hears of it. Idempotent.
        Another incarnation of the worker is not concerned, nor is an unknown worker.
        """
        ...

    async def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        """Publish once; returns the roots known after it: ``(root,)``, or several in a conflict.

        Args:
            again: replace a record that stands under the same root: nobody believes it any more.
        """
        ...

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None: ...

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        """State digests (16 bytes, by chunk) of a truth that is being made, for those who receive meanwhile.

        What stands for a chunk stays. Returns false, and changes nothing, if any of ``digests`` differs
        from what stands. Once a truth is published there is nothing left to state, and this does nothing.
        """
        ...

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        """The published root, or else the digests stated for chunks from ``first`` on; in a conflict neither."""
        ...

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        """Put a letter into an inbox, once per nonce."""
        ...

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        """Wait up to ``seconds`` for letters or, with ``fleet``, a fleet change. One listener per bus object.

        Letters that were given out before may be left out of what an older cursor brings.
        """
        ...

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        """Append to the shard's journal stream (bounded), in order; entries may be repeated."""
        ...

    async def recorded(self, shard: str, after: str = "0-0", most: int = 256) -> Sequence[Recorded]:
        """At most ``most`` entries of the shard's journal after the one with the id ``after``, oldest first."""
        ...

    async def journals(self) -> Sequence[str]:
        """Keys of all shards whose journal was written to within a week."""
        ...

    async def vote(self, group: str, paper: Paper) -> Tally:
        """Say what a rank has to say to its group, and that it lives; returns what has been decided.

        A verdict is written once: yes when ``paper.size`` members have said yes, no as soon as one says
        no, or when somebody answers after a member was not heard of for ``paper.seconds``. A quarter of
        that in which nobody was heard is held against nobody. Idempotent.
        """
        ...

    async def shards(self) -> Sequence[str]:
        """Keys of all shards that had an advert lately."""
        ...

    async def advert(self, shard: str, worker: str) -> Advert | None:
        """The live advert of one worker, as :meth:`adverts` tells it; None if it has none."""
        ...

    async def adverts(self, shard: str) -> Sequence[Advert]:
        """Live adverts of a shard, with slots in use."""
        ...

    async def time(self) -> float:
        """Seconds on the store's clock, since whenever it counts from."""
        ...

    async def aclose(self) -> None: ...
