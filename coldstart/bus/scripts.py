"""The operations that must be atomic, as Lua that runs inside the store.

Decides who gets which source, who leads, and what counts as a change of the fleet. Time is the
server's ``TIME``; nothing here trusts a client's clock. The scripts know nothing of transports,
phases or bytes of weights. ``redis.py`` calls them; ``ledger.py`` states the same rules in Python.

Every key is ``<namespace>:{<shard>}:<name>``: the hash tag puts a shard into one cluster slot, so a
script may build the keys that only it knows (the chosen source's slots and inbox).

    life                hash: ``epoch`` (random, one per life of the store) and ``fence`` (counter)
    adverts, leases     hash worker -> advert, sorted set worker -> end of lease in ms
    slots:<worker>      sorted set transfer -> end of slot in ms
    strike:<worker>     hash: ``incarnation`` and the last ``proof`` of it that is doubted
    lead:<layout>       the worker that reads storage for everybody
    claim:<transfer>    the first answer to a claim
    root:, truth:, conflict:<layout>
    fleet, inbox:<name>, journal    streams
    nonce:<inbox>/<nonce>           letters that were already put

A script's first write is always one that a full store refuses (HSET, SET, XADD): after any
other write the server no longer checks, and memory would grow past its limit.
"""

from __future__ import annotations

import hashlib

from coldstart.bus.limits import (
    FLEET_ENTRIES,
    INBOX_LETTERS,
    INBOX_SECONDS,
    JOURNAL_ENTRIES,
    KEEP_SECONDS,
    MAX_CONFLICTING_ROOTS,
    MAX_SKIPS,
    NONCE_SECONDS,
    SCAN,
    SHARD_SECONDS,
)


class Script:
    """One script, and the SHA-1 by which a server that has seen it knows it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_CONSTANTS = f"""
local KEEP, INBOX_MS, NONCE_MS = {KEEP_SECONDS * 1000:.0f}, {INBOX_SECONDS * 1000:.0f}, {NONCE_SECONDS * 1000:.0f}
local INBOX_LETTERS, FLEET_ENTRIES, JOURNAL_ENTRIES = {INBOX_LETTERS}, {FLEET_ENTRIES}, {JOURNAL_ENTRIES}
local MAX_SKIPS, SCAN, MAX_ROOTS = {MAX_SKIPS}, {SCAN}, {MAX_CONFLICTING_ROOTS}
local SHARD_MS = {SHARD_SECONDS * 1000:.0f}
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

local function deliver(inbox, body, fence)
  local stream = prefix .. 'inbox:' .. inbox
  redis.call('XADD', stream, 'MAXLEN', '~', INBOX_LETTERS, '*', 'body', body, 'fence', fence)
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


def _on_shard(name: str, body: str) -> Script:
    return Script(name, _CONSTANTS + _CLOCK + _SHARD + body)


CLAIM = _on_shard(
    "claim",
    """
local layout, worker, transfer, hello = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local slot_ms, lead_ms, luck = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local excluded, mine = {[worker] = true}, {}
for _, name in ipairs(cjson.decode(ARGV[10])) do excluded[name] = true end
local transports = cjson.decode(ARGV[11])
for _, name in ipairs(transports) do mine[name] = true end

-- A conflict outweighs even an answer already given: nobody is believed.
local roots = redis.call('SMEMBERS', prefix .. 'conflict:' .. layout)
if #roots > 0 then
  table.sort(roots)
  return {epoch, 'conflicted', cjson.encode(roots)}
end

-- A repeated claim gets the first answer. Only answers that changed something are kept.
local answered = prefix .. 'claim:' .. transfer
local before = redis.call('LRANGE', answered, 0, -1)
if #before > 0 then return before end

local function answer(life_ms, ...)
  redis.call('RPUSH', answered, epoch, ...)
  redis.call('PEXPIRE', answered, life_ms)
  return redis.call('LRANGE', answered, 0, -1)
end

local function shares(theirs)
  if #transports == 0 then return true end
  for _, name in ipairs(theirs) do
    if mine[name] then return true end
  end
  return false
end

-- Whoever writes under this namespace may be of another version, or hostile.
local TEXTS = {'worker', 'inbox', 'incarnation', 'layout', 'host', 'device'}
local NUMBERS = {'generation', 'slots', 'have', 'total'}

local function unusable(name, advert, taken)
  for _, field in ipairs(TEXTS) do
    if type(advert[field]) ~= 'string' then return 'malformed' end
  end
  for _, field in ipairs(NUMBERS) do
    if type(advert[field]) ~= 'number' then return 'malformed' end
  end
  if advert.proof ~= nil and type(advert.proof) ~= 'number' then return 'malformed' end
  if excluded[name] then return 'excluded' end
  if advert.layout ~= layout then return 'layout' end
  if not shares(advert.transports) then return 'transports' end
  if struck(name, advert) then return 'struck' end
  if advert.have <= 0 then return 'empty' end
  if taken >= advert.slots then return 'busy' end
end

-- Less loaded first, then more free slots, then more chunks; 0 is a tie.
local function compare(a, b)
  local load_a, load_b = a.used / a.advert.slots, b.used / b.advert.slots
  if load_a ~= load_b then return load_a < load_b and 1 or -1 end
  local free_a, free_b = a.advert.slots - a.used, b.advert.slots - b.used
  if free_a ~= free_b then return free_a > free_b and 1 or -1 end
  if a.advert.have ~= b.advert.have then return a.advert.have > b.advert.have and 1 or -1 end
  return 0
end

local workers = redis.call('ZRANGEBYSCORE', prefix .. 'leases', '(' .. now, '+inf')
table.sort(workers)
local start = #workers > SCAN and luck % #workers or 0
local best, skipped, busy = {}, {}, false
for step = 1, #workers do
  if step > SCAN and #best > 0 then break end
  local name = workers[(start + step - 1) % #workers + 1]
  local json = redis.call('HGET', prefix .. 'adverts', name)
  local good, advert = pcall(cjson.decode, json or '')
  local taken = used(name)
  local fine, reason = pcall(unusable, name, advert, taken)
  if not good or not fine then reason = 'malformed' end
  if reason then
    busy = busy or reason == 'busy'
    if #skipped < MAX_SKIPS then
      skipped[#skipped + 1] = {name, reason, good and type(advert) == 'table' and tostring(advert.layout) or ''}
    end
  else
    local candidate = {name = name, json = json, advert = advert, used = taken}
    local order = #best > 0 and compare(candidate, best[1]) or 1
    if order > 0 then best = {candidate} elseif order == 0 then best[#best + 1] = candidate end
  end
end

local root = redis.call('GET', prefix .. 'root:' .. layout) or ''
local passed = #skipped > 0 and cjson.encode(skipped) or '[]'

if #best > 0 then
  local chosen = best[luck % #best + 1]
  local slots = prefix .. 'slots:' .. chosen.name
  local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
  redis.call('PEXPIRE', KEYS[1], KEEP)
  redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
  redis.call('ZADD', slots, now + slot_ms, transfer)
  if redis.call('PTTL', slots) < slot_ms then redis.call('PEXPIRE', slots, slot_ms) end
  deliver(chosen.advert.inbox, hello, fence)
  return answer(slot_ms, 'granted', root, passed, chosen.json, chosen.used + 1, 0, fence)
end

if busy then return {epoch, 'deferred', root, passed, ''} end
local lead = prefix .. 'lead:' .. layout
local leader = redis.call('GET', lead)
-- To a joiner, an excluded leader does not exist: it takes the lease over.
if leader and leader ~= worker and not excluded[leader] then return {epoch, 'deferred', root, passed, leader} end
if lead_ms <= 0 then return {epoch, 'deferred', root, passed, ''} end
redis.call('SET', lead, worker, 'PX', lead_ms)
return answer(lead_ms, 'elected', root, passed)
""",
)

RELEASE = _on_shard(
    "release",
    """
local source, transfer = ARGV[3], ARGV[4]
if redis.call('ZREM', prefix .. 'slots:' .. source, transfer) == 1 then changed('slot', source) end
local json = live(source)
return json and tell({epoch}, source, json) or {epoch}
""",
)

LEAD = _on_shard(
    "lead",
    """
local lead, worker, life_ms = prefix .. 'lead:' .. ARGV[3], ARGV[4], tonumber(ARGV[5])
local leader = redis.call('GET', lead)
if leader and leader ~= worker then return {epoch, 0} end
if life_ms > 0 then
  redis.call('SET', lead, worker, 'PX', life_ms)
elseif leader then
  redis.call('DEL', lead)
  changed('lead', worker)
end
return {epoch, 1}
""",
)

ADVERTISE = _on_shard(
    "advertise",
    """
local worker, json, life_ms = ARGV[3], ARGV[4], tonumber(ARGV[5])
local layout, incarnation, proof = ARGV[6], ARGV[7], tonumber(ARGV[8])
local adverts, leases = prefix .. 'adverts', prefix .. 'leases'
local known, alive = redis.call('HGET', adverts, worker), live(worker)
redis.call('HSET', adverts, worker, json)
redis.call('ZADD', leases, now + life_ms, worker)
if alive ~= json then changed('advert', worker) end

-- A strike ends with a higher proof or another incarnation, never with a lapse.
local strike = prefix .. 'strike:' .. worker
if proof > doubted(worker, incarnation) then redis.call('DEL', strike) else redis.call('PEXPIRE', strike, SHARD_MS) end

-- A new incarnation has lent nothing yet.
local good, earlier = pcall(cjson.decode, known or '')
if good and type(earlier) == 'table' and earlier.incarnation ~= incarnation then
  redis.call('DEL', prefix .. 'slots:' .. worker)
end
-- A transfer that still goes on keeps its slot for as long as its source lives.
local slots = prefix .. 'slots:' .. worker
local kept = 9 + tonumber(ARGV[9])
for at = 10, kept do
  local ends = tonumber(redis.call('ZSCORE', slots, ARGV[at]) or 0)
  if ends > now and ends < now + life_ms then
    redis.call('ZADD', slots, now + life_ms, ARGV[at])
    if redis.call('PTTL', slots) < life_ms then redis.call('PEXPIRE', slots, life_ms) end
  end
end
-- One that is over has none, even if its joiner could not say so.
local freed = 0
for at = kept + 1, #ARGV do freed = freed + redis.call('ZREM', slots, ARGV[at]) end
if freed > 0 then changed('slot', worker) end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 64)) do
  redis.call('ZREM', leases, gone)
  redis.call('HDEL', adverts, gone)
end
for _, key in ipairs({KEYS[1], adverts, leases,
    prefix .. 'root:' .. layout, prefix .. 'truth:' .. layout, prefix .. 'conflict:' .. layout}) do
  redis.call('PEXPIRE', key, KEEP)
end
local there = redis.call('EXISTS', prefix .. 'truth:' .. layout) == 1
local root = there and redis.call('GET', prefix .. 'root:' .. layout) or ''
return {epoch, root, proof > doubted(worker, incarnation) and 0 or 1}
""",
)

WITHDRAW = _on_shard(
    "withdraw",
    """
local worker, incarnation = ARGV[3], ARGV[4]
local good, known = pcall(cjson.decode, redis.call('HGET', prefix .. 'adverts', worker) or '')
if good and type(known) == 'table' and known.incarnation ~= incarnation then return {epoch} end
redis.call('HDEL', prefix .. 'adverts', worker)
if redis.call('ZREM', prefix .. 'leases', worker) == 1 then changed('withdraw', worker) end
return {epoch}
""",
)

STRIKE = _on_shard(
    "strike",
    """
local worker, incarnation, proof = ARGV[3], ARGV[4], tonumber(ARGV[5])
local good, advert = pcall(cjson.decode, live(worker) or '')
if not good or type(advert) ~= 'table' or advert.incarnation ~= incarnation then return {epoch} end
local proven, strike = tonumber(advert.proof) or 0, prefix .. 'strike:' .. worker
if proven > proof or proven <= doubted(worker, incarnation) then return {epoch} end
redis.call('HSET', strike, 'incarnation', incarnation, 'proof', proven)
redis.call('PEXPIRE', strike, SHARD_MS)
if type(advert.inbox) == 'string' then deliver(advert.inbox, ARGV[6], 0) end
changed('strike', worker)
return {epoch}
""",
)

PUBLISH_TRUTH = _on_shard(
    "publish_truth",
    """
local layout, mine = ARGV[3], ARGV[4]
local root, truth, conflict = prefix .. 'root:' .. layout, prefix .. 'truth:' .. layout, prefix .. 'conflict:' .. layout
local known = redis.call('GET', root)
if not known then
  redis.call('SET', root, mine, 'PX', KEEP)
  redis.call('SET', truth, ARGV[5], 'PX', KEEP)
  changed('truth', mine)
elseif known ~= mine and redis.call('SISMEMBER', conflict, mine) == 0
    and redis.call('SCARD', conflict) < MAX_ROOTS then
  redis.call('SADD', conflict, known, mine)
  redis.call('PEXPIRE', conflict, KEEP)
  changed('conflict', mine)
end
local roots = redis.call('SMEMBERS', conflict)
table.sort(roots)
if #roots == 0 then roots = {mine} end
return {epoch, unpack(roots)}
""",
)

FETCH_TRUTH = _on_shard(
    "fetch_truth",
    """
if redis.call('EXISTS', prefix .. 'conflict:' .. ARGV[3]) == 1 then return {epoch} end
return {epoch, redis.call('GET', prefix .. 'truth:' .. ARGV[3]) or nil}
""",
)

SEND = _on_shard(
    "send",
    """
local inbox, nonce, body = ARGV[3], ARGV[4], ARGV[5]
if redis.call('SET', prefix .. 'nonce:' .. inbox .. '/' .. nonce, 1, 'NX', 'PX', NONCE_MS) then
  deliver(inbox, body, 0)
end
return {epoch}
""",
)

TOUCH = _on_shard(
    "touch",
    """
redis.call('PEXPIRE', KEYS[1], KEEP)
redis.call('PEXPIRE', prefix .. 'inbox:' .. ARGV[3], INBOX_MS)

-- Where a listener goes on: at its cursor, unless the store went back to before it and will reuse those ids.
local function standing(stream, cursor)
  local found = redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'STREAM', stream) or {}
  local last = '0-0'
  for at = 1, #found, 2 do
    if found[at] == 'last-generated-id' then last = found[at + 1] end
  end
  local ms, seq = string.match(last, '(%d+)-(%d+)')
  local my_ms, my_seq = string.match(cursor, '(%d+)-(%d+)')
  ms, seq, my_ms, my_seq = tonumber(ms), tonumber(seq), tonumber(my_ms), tonumber(my_seq)
  return (my_ms > ms or (my_ms == ms and my_seq > seq)) and last or cursor
end
return {epoch, standing(prefix .. 'inbox:' .. ARGV[3], ARGV[4]), standing(prefix .. 'fleet', ARGV[5])}
""",
)

RECORD = _on_shard(
    "record",
    """
for at = 3, #ARGV do
  redis.call('XADD', prefix .. 'journal', 'MAXLEN', '~', JOURNAL_ENTRIES, '*', 'entry', ARGV[at])
end
redis.call('PEXPIRE', prefix .. 'journal', KEEP)
return {epoch}
""",
)

ADVERTS = _on_shard(
    "adverts",
    """
local reply = {epoch}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'leases', '(' .. now, '+inf')) do
  tell(reply, worker, redis.call('HGET', prefix .. 'adverts', worker) or '')
end
return reply
""",
)

# The index of shards is one key of the whole namespace, so it lives in a cluster slot of its own.

INDEX = Script(
    "index",
    _CONSTANTS
    + _CLOCK
    + """
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - SHARD_MS)
redis.call('PEXPIRE', KEYS[1], SHARD_MS)
return {}
""",
)

SHARDS = Script(
    "shards",
    _CONSTANTS
    + _CLOCK
    + """
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now - SHARD_MS), '+inf')
""",
)
