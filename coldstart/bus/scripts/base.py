"""What all scripts begin with: their constants, the server's clock, and the few words about a shard.

Decides how a script is put together and how the store tells an advert. It knows keys, but not who may
use which source (``choice.py``).
"""

from __future__ import annotations

import hashlib

from coldstart.bus.limits import (
    FLEET_ENTRIES,
    INBOX_LETTERS,
    INBOX_SECONDS,
    JOURNAL_ENTRIES,
    KEEP_SECONDS,
    LOOKS,
    MAX_CONFLICTING_ROOTS,
    MAX_CROWD,
    MAX_GRANTS,
    MAX_PREFERRED,
    MAX_RATE,
    MAX_SKIPS,
    MAX_TEXT,
    MAX_TRANSPORTS,
    MAX_WAITING,
    MOVED_SECONDS,
    NONCE_SECONDS,
    SCAN,
    SHARD_SECONDS,
)
from coldstart.ports import MAX_HOSTS, PARTS


class Script:
    """One script, and the SHA-1 by which a server that has seen it knows it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_CONSTANTS = f"""
local KEEP, INBOX_MS, NONCE_MS = {KEEP_SECONDS * 1000:.0f}, {INBOX_SECONDS * 1000:.0f}, {NONCE_SECONDS * 1000:.0f}
local INBOX_LETTERS, FLEET_ENTRIES, JOURNAL_ENTRIES = {INBOX_LETTERS}, {FLEET_ENTRIES}, {JOURNAL_ENTRIES}
local MAX_SKIPS, SCAN, MAX_ROOTS, MAX_CROWD = {MAX_SKIPS}, {SCAN}, {MAX_CONFLICTING_ROOTS}, {MAX_CROWD}
local MAX_PREFERRED, MAX_WAITING, LOOKS, MAX_GRANTS = {MAX_PREFERRED}, {MAX_WAITING}, {LOOKS}, {MAX_GRANTS}
local SHARD_MS, MOVED_MS, PARTS = {SHARD_SECONDS * 1000:.0f}, {MOVED_SECONDS * 1000:.0f}, {PARTS}
local MAX_RATE, MAX_HOSTS, MAX_TEXT, MAX_TRANSPORTS = {MAX_RATE}, {MAX_HOSTS}, {MAX_TEXT}, {MAX_TRANSPORTS}
"""

_CLOCK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_SHARD = """
-- KEYS[1]: life   ARGV[1]: prefix of the shard's keys   ARGV[2]: the epoch, should this be a new life
local prefix = ARGV[1]
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then
  epoch = ARGV[2]
  redis.call('HSET', KEYS[1], 'epoch', epoch)
  redis.call('PEXPIRE', KEYS[1], KEEP)
end

local function changed(what, about)
  redis.call('XADD', prefix .. 'fleet', 'MAXLEN', '~', FLEET_ENTRIES, '*', 'what', what, 'about', about)
  redis.call('PEXPIRE', prefix .. 'fleet', KEEP)
end

local function deliver(inbox, body, fence, ...)
  local stream = prefix .. 'inbox:' .. inbox
  redis.call('XADD', stream, 'MAXLEN', '~', INBOX_LETTERS, '*', 'body', body, 'fence', fence, ...)
  redis.call('PEXPIRE', stream, INBOX_MS)
end

local function used(worker)
  return redis.call('ZCOUNT', prefix .. 'slots:' .. worker, '(' .. now, '+inf')
end

local function live(worker)
  local lease = redis.call('ZSCORE', prefix .. 'leases', worker)
  if lease and tonumber(lease) > now then return redis.call('HGET', prefix .. 'adverts', worker) end
end

-- The last proof of this incarnation that is doubted; adverts of older versions have none and mean 0.
local function doubted(worker, incarnation)
  local strike = redis.call('HMGET', prefix .. 'strike:' .. worker, 'incarnation', 'proof')
  return strike[1] == incarnation and tonumber(strike[2]) or -1
end

local function struck(worker, advert)
  return (tonumber(advert.proof) or 0) <= doubted(worker, advert.incarnation)
end

-- An advert as it is told: what its worker wrote, slots in use, and whether it is struck.
local function tell(reply, worker, json)
  local _, advert = pcall(cjson.decode, json)
  local fine, doubt = pcall(struck, worker, advert)
  reply[#reply + 1] = json
  reply[#reply + 1] = used(worker)
  reply[#reply + 1] = fine and doubt and 1 or 0
  return reply
end
"""


def on_namespace(name: str, text: str) -> Script:
    """A script about a whole namespace."""
    return Script(name, _CONSTANTS + _CLOCK + text)


def on_shard(name: str, *texts: str) -> Script:
    """A script about one shard."""
    return Script(name, _CONSTANTS + _CLOCK + _SHARD + "".join(texts))
