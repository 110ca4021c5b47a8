"""What is going on in a fleet, put together from its adverts and journals: a picture for ``coldstart watch``.

Decides what is shown of whom: who holds what, who receives from whom and how far that is, what was refused lately,
and who has read storage although there were peers. Pure; how it is drawn is in ``watch_words.py``.

A joiner says in its advert how many chunks it has, and in its journal whom it reads from. Bytes are known once anybody
has served these weights; until then there are chunks only. A rate is what the last advert has told of more than
the one before; an advert comes every two seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from coldstart.chronicle.lines import RefusalKind
from coldstart.chronicle.starts import ColdStart, Path
from coldstart.cli.looking import Look
from coldstart.cli.peers import state_of
from coldstart.phases.states import STORAGE, Phase
from coldstart.ports import Advert

RECENT_SECONDS = 600.0
"""Refusals and fallbacks are shown for so long."""
MOST = 12
"""Of each kind, the latest."""
STEADY_SECONDS = 5.0
"""What has not been seen to have more for so long does not move."""
LIVES_SECONDS = 120.0
"""A cold start without an advert that nobody has heard of for so long is not shown any more: its worker was killed."""


class Weights(msgspec.Struct, frozen=True):
    """One shard: how many live workers have how much of it, and their slots."""

    shard: str
    model: str
    complete: int
    partial: int
    withheld: int
    struck: int
    slots: int
    used: int


class Moving(msgspec.Struct, frozen=True):
    """A cold start under way. ``source`` is empty while it looks for one; bytes and rate are 0 where not known.

    ``others`` are the sources beside it from which it receives, too.
    """

    worker: str
    shard: str
    phase: str
    source: str
    transport: str
    since: float
    chunks: int
    have: int
    nbytes: int
    rate: float
    seen: float = 0.0
    """When it was last seen to have more."""
    others: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Of all chunks, from 0 to 1."""
        return self.have / self.chunks if self.chunks else 0.0


class Refused(msgspec.Struct, frozen=True):
    """Who was not given anything by whom, ``times`` times of late, the last time ``at``."""

    at: float
    worker: str
    source: str
    how: RefusalKind
    reason: str
    times: int = 1


class Fallback(msgspec.Struct, frozen=True):
    """A cold start that read storage after it had tried peers, or that failed; ``reasons`` are all of its detours."""

    at: float
    worker: str
    model: str
    outcome: str
    path: Path
    reasons: tuple[str, ...]


class Picture(msgspec.Struct, frozen=True):
    """A fleet at one moment, in seconds of the epoch."""

    at: float
    weights: tuple[Weights, ...]
    moving: tuple[Moving, ...]
    refused: tuple[Refused, ...]
    fallbacks: tuple[Fallback, ...]


def picture(look: Look, before: Picture | None = None) -> Picture:
    """What ``look`` shows; ``before`` tells how fast it goes."""
    names = {start.shard: start.model for start in look.starts}
    return Picture(
        at=look.now,
        weights=tuple(_weights(shard, names.get(shard, ""), held) for shard, held in look.adverts.items() if held),
        moving=tuple(_moving(look, before)),
        refused=tuple(_refused(look)),
        fallbacks=tuple(_fallbacks(look)),
    )


def roots(moving: Iterable[Moving]) -> list[str]:
    """Who gives and does not receive: where the trees begin."""
    moving = tuple(moving)
    receiving = {each.worker for each in moving if each.source}
    return sorted({each.source for each in moving if each.source} - receiving)


def _weights(shard: str, model: str, adverts: tuple[Advert, ...]) -> Weights:
    states = [state_of(advert) for advert in adverts]
    return Weights(
        shard,
        model,
        complete=states.count("complete"),
        partial=states.count("partial"),
        withheld=states.count("withheld"),
        struck=states.count("struck"),
        slots=sum(advert.slots for advert in adverts),
        used=sum(advert.used for advert in adverts),
    )


def _moving(look: Look, before: Picture | None) -> Iterable[Moving]:
    adverts = {(shard, advert.incarnation): advert for shard, held in look.adverts.items() for advert in held}
    sizes = _sizes(look.starts)
    last = {(each.shard, each.worker): each for each in before.moving} if before is not None else {}
    for start in look.starts:
        advert = adverts.get((start.shard, start.start))
        if start.outcome != "running" or (advert is None and look.now - start.heard > LIVES_SECONDS):
            continue
        pulls = [each for each in reversed(start.transfers) if each.end is None]
        pull = next((each for each in pulls if each.attempt >= 0), pulls[0] if pulls else None)
        have, chunks = (advert.have, advert.total) if advert is not None else (start.verified, start.chunks)
        nbytes = sizes.get(start.shard, 0)
        was = last.get((start.shard, start.worker))
        seen, rate = _rate(was, have, nbytes / chunks if chunks else 0.0, look.now)
        yield Moving(
            worker=start.worker,
            shard=start.shard,
            phase=start.phase or "BUILD",
            source=pull.source if pull is not None else "",
            transport=pull.transport if pull is not None and pull.source != STORAGE else "",
            since=start.began,
            chunks=chunks,
            have=have,
            nbytes=nbytes,
            rate=rate if pull is not None else 0.0,
            seen=seen,
            others=tuple([each.source for each in pulls if each is not pull][::-1]),
        )


def _rate(was: Moving | None, have: int, chunk: float, now: float) -> tuple[float, float]:
    """When it was last seen to have more, and bytes per second until then; that is believed for a while."""
    if was is None or have < was.have:
        return now, 0.0
    if have == was.have:
        return was.seen, was.rate if now - was.seen < STEADY_SECONDS else 0.0
    return now, (have - was.have) * chunk / max(now - was.seen, 0.001)


def _sizes(starts: Iterable[ColdStart]) -> Mapping[str, int]:
    """Bytes of each shard's weights, from whoever has served them."""
    return {start.shard: start.total for start in starts if start.total}


def _refused(look: Look) -> Iterable[Refused]:
    """The latest, those that are alike together."""
    found: dict[tuple[str, str, str, str], Refused] = {}
    for start in look.starts:
        for each in start.refusals:
            if look.now - each.at > RECENT_SECONDS:
                continue
            key = (start.worker, each.source, each.how, each.reason)
            was = found.get(key)
            times = 1 if was is None else was.times + 1
            at = each.at if was is None else max(was.at, each.at)
            found[key] = Refused(at, start.worker, each.source, each.how, each.reason, times)
    return sorted(found.values(), key=lambda each: -each.at)[:MOST]


def _fallbacks(look: Look) -> Iterable[Fallback]:
    found: list[Fallback] = []
    for start in look.starts:
        at = start.began + start.seconds if start.seconds is not None else start.heard
        if look.now - at <= RECENT_SECONDS and (start.outcome == "failed" or fell_back(start)):
            reasons = (*start.detours, start.reason) if start.reason else start.detours
            found.append(
                Fallback(at, start.worker, start.model, start.outcome, start.path, tuple(dict.fromkeys(reasons)))
            )
    return sorted(found, key=lambda each: -each.at)[:MOST]


def fell_back(start: ColdStart) -> bool:
    """Whether it reads, or has read, storage after it had tried something else."""
    read = start.path in ("storage", "mixed") or start.phase == Phase.FALLBACK.value
    return read and bool(start.detours)
