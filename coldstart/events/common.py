"""What all events have in common, and the two that either side may hear."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Timer(StrEnum):
    """The clocks a machine may set; each is armed, re-armed or disarmed by an effect."""

    PATIENCE = "patience"
    ANSWER = "answer"
    RETRY = "retry"
    STALL = "stall"
    QUIET = "quiet"
    CHECK = "check"
    DRAIN = "drain"
    RENEW = "renew"
    GRANT = "grant"
    TELL = "tell"
    SCRUB = "scrub"
    GROUP = "group"


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class AttemptEvent(Event, frozen=True):
    """Base of events that belong to one attempt; below zero it is one at a further source, beside the first."""

    attempt: int


class Expired(Event, frozen=True):
    """A timer ran out; ``subject`` tells apart timers of one kind (a grant's transfer id)."""

    timer: Timer
    subject: str = ""


class DrainRequested(Event, frozen=True):
    """The host wants to stop: finish or end what is in flight."""
