"""Proofs between members of a fleet that shares keys, for transports whose ports strangers can reach."""

from __future__ import annotations

from typing import Protocol


class Signer(Protocol):
    """Proves that this worker has a key of the fleet, and whether others have; a key itself is never shown.

    ``domain`` names the transport and the side that signs, so that no proof serves for another. What is signed
    should hold random numbers of both sides, or it can be said again by whoever has heard it.
    """

    def sign(self, domain: str, *words: bytes) -> tuple[str, bytes]:
        """The name of the key that signs now, at most 32 characters of ASCII, and 32 bytes. Any thread."""
        ...

    def proves(self, key: str, mac: bytes, domain: str, *words: bytes) -> bool:
        """Whether a holder of the key, which must be one that is known here, has signed these words. Any thread."""
        ...

    def derive(self, key: str, domain: str, *words: bytes) -> bytes | None:
        """32 bytes that only holders of the key can make of these words, to authenticate a session with.

        They tell nothing of the key, nor of what it has signed. None: the key is not known here. Any thread.
        """
        ...

    def unproven(self, domain: str) -> None:
        """Note that somebody has come without any proof where one was wanted. Any thread."""
        ...
