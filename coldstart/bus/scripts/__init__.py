"""The operations that must be atomic, as Lua that runs inside the store.

Decides who gets which source, who leads, and what counts as a change of the fleet. Time is the
server's ``TIME``; nothing here trusts a client's clock. The scripts know nothing of transports,
phases or bytes of weights. ``redis.py`` calls them; ``ledger.py`` states the same rules in Python.

Every key is ``<namespace>:{<shard>}:<name>``: the hash tag puts a shard into one cluster slot, so a
script may build the keys that only it knows (the chosen source's slots and inbox).

    life                hash: ``epoch`` (random, one per life of the store); ``fence``, ``order`` (counters)
    adverts, leases     hash worker -> advert, sorted set worker -> end of lease in ms
    slots:<worker>      sorted set transfer -> end of slot in ms
    parts:<worker>      the same, of those slots only that are of one part each
    strike:<worker>     hash: ``incarnation`` and the last ``proof`` of it that is doubted
    lead:<layout>       the worker that reads storage for everybody
    claim:<transfer>    the answer to a claim that changed something
    lent:<transfer>     the source and its inbox, until it is released
    line:<layout>       sorted set transfer -> order of arrival, of the claims that wait
    wait:<transfer>     hash: one such claim, while it has its place
    arrived:<layout>    how many claims of everything have come to this line
    moved:<layout>      when the last source of this layout was granted, in ms, and the part (-1: everything)
    readers:<layout>    sorted set worker -> end of its lease in ms, of those that were admitted to storage
    root:, truth:, conflict:<layout>
    stated:<layout>     17 bytes for each chunk: 1 and the digest that was stated
    fleet, inbox:<name>, journal    streams
    nonce:<inbox>/<nonce>           letters that were already put

A script's first write is always one that a full store refuses (HSET, SET, XADD): after any
other write the server no longer checks, and memory would grow past its limit. Only what gives
something back (a release, a withdrawal) does so on a full store too.

``base.py`` has what all begin with, ``choice.py``, ``line.py`` and ``parts.py`` who gets a source or a
part of one, ``readers.py`` who reads storage beside; the scripts themselves are in ``sources.py``, ``readers.py``,
``truths.py``, ``letters.py`` and ``index.py``.
"""

from __future__ import annotations

from coldstart.bus.scripts.base import Script
from coldstart.bus.scripts.index import INDEX, SHARDS, TIME
from coldstart.bus.scripts.letters import RECORD, RECORDED, SEND, TOUCH
from coldstart.bus.scripts.readers import ADMIT
from coldstart.bus.scripts.sources import ADVERT, ADVERTISE, ADVERTS, CLAIM, LEAD, RELEASE, STRIKE, WITHDRAW
from coldstart.bus.scripts.truths import FETCH_TRUTH, PUBLISH_TRUTH, STATE, STATED

__all__ = [
    "ADMIT",
    "ADVERT",
    "ADVERTISE",
    "ADVERTS",
    "CLAIM",
    "FETCH_TRUTH",
    "INDEX",
    "LEAD",
    "PUBLISH_TRUTH",
    "RECORD",
    "RECORDED",
    "RELEASE",
    "SEND",
    "SHARDS",
    "STATE",
    "STATED",
    "STRIKE",
    "TIME",
    "TOUCH",
    "WITHDRAW",
    "Script",
]
