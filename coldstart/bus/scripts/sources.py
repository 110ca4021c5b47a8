"""Scripts about sources and slots: claims, releases, adverts, strikes, and who leads where there is no source."""

from __future__ import annotations

from coldstart.bus.scripts.base import on_shard
from coldstart.bus.scripts.choice import CHOICE, SURVEY
from coldstart.bus.scripts.line import LINE, STAND
from coldstart.bus.scripts.parts import PARTS
from coldstart.bus.scripts.readers import QUEUE, READERS

CLAIM = on_shard(
    "claim",
    PARTS,
    CHOICE,
    SURVEY,
    LINE,
    STAND,
    READERS,
    QUEUE,
    """
local json, transfer, hello = ARGV[3], ARGV[4], ARGV[5]
local claim = cjson.decode(json)
local layout, worker = claim.layout, claim.worker

-- A conflict outweighs even an answer already given: nobody is believed.
local roots = redis.call('SMEMBERS', prefix .. 'conflict:' .. layout)
if #roots > 0 then
  leave(transfer)
  table.sort(roots)
  return {epoch, 'conflicted', cjson.encode(roots)}
end

-- A repeated claim gets the answer that changed something; others are not kept.
local before = redis.call('LRANGE', prefix .. 'claim:' .. transfer, 0, -1)
if #before > 0 then return before end

local place = place_of(transfer, layout)
local passed = '[]'
while grants > 0 do
  survey(claim, place)
  passed = #skipped > 0 and cjson.encode(skipped) or '[]'
  if #best == 0 then break end
  local chosen = best[claim.luck % #best + 1]
  if not serve(chosen, transfer) then return grant(claim, place, hello, chosen, passed) end
  busy = true
end

local root = redis.call('GET', prefix .. 'root:' .. layout) or ''
local lead = prefix .. 'lead:' .. layout
local leader, kept = '', busy
if not busy then
  leader = redis.call('GET', lead) or ''
  kept = leader ~= '' and leader ~= worker
  for _, name in ipairs(claim.exclude) do
    -- To a joiner, an excluded leader does not exist: it takes the lease over.
    if name == leader then kept = false end
  end
end
-- A source whose first chunk of our part is still to come makes nobody lead, but does not hide who does.
if kept or lacking or claim.lead_ms <= 0 or claim.part >= 0 then
  if claim.queue_ms > 0 then stand(claim, json, transfer, hello) else leave(transfer) end
  return queued({epoch, 'deferred', root, passed, kept and leader or ''}, claim, transfer)
end
redis.call('SET', lead, worker, 'PX', claim.lead_ms)
leave(transfer)
return answer(transfer, claim.lead_ms, 'elected', root, passed)
""",
)

RELEASE = on_shard(
    "release",
    PARTS,
    CHOICE,
    LINE,
    """
local source, transfer, letter = ARGV[3], ARGV[4], ARGV[5]
-- A full store takes slots back all the same, and does nothing else.
local full = type(redis.pcall('HSET', KEYS[1], 'epoch', epoch)) == 'table'
leave(transfer)
local lent = prefix .. 'lent:' .. transfer
local worker, inbox = string.match(redis.call('GET', lent) or '', '^(%S+) (.*)$')
if worker and (source == '' or source == worker) then
  source = worker
  redis.call('DEL', lent)
else
  inbox = nil
end
local json = live(source)
if letter ~= '' and not full then
  local advert = not inbox and source_of(source, json).advert
  if inbox or advert then deliver(inbox or advert.inbox, letter, 0) end
end
local freed = redis.call('ZREM', prefix .. 'slots:' .. source, transfer) == 1
if freed then
  redis.call('ZREM', prefix .. 'parts:' .. source, transfer)
  changed('slot', source)
end
if not json then return {epoch} end
if freed and not full then serve(source_of(source, json), '') end
return tell({epoch}, source, json)
""",
)

ADVERTISE = on_shard(
    "advertise",
    PARTS,
    CHOICE,
    LINE,
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
local slots, parts = prefix .. 'slots:' .. worker, prefix .. 'parts:' .. worker
local good, earlier = pcall(cjson.decode, known or '')
if good and type(earlier) == 'table' and earlier.incarnation ~= incarnation then redis.call('DEL', slots, parts) end
-- A transfer that still goes on keeps its slot for as long as its source lives.
local kept = 9 + tonumber(ARGV[9])
for at = 10, kept do
  for _, lent in ipairs({slots, parts}) do
    local ends = tonumber(redis.call('ZSCORE', lent, ARGV[at]) or 0)
    if ends > now and ends < now + life_ms then
      redis.call('ZADD', lent, now + life_ms, ARGV[at])
      if redis.call('PTTL', lent) < life_ms then redis.call('PEXPIRE', lent, life_ms) end
    end
  end
end
-- One that is over has none, even if its joiner could not say so.
if #ARGV > kept then
  redis.call('ZREM', parts, unpack(ARGV, kept + 1))
  if redis.call('ZREM', slots, unpack(ARGV, kept + 1)) > 0 then changed('slot', worker) end
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 64)) do
  redis.call('ZREM', leases, gone)
  redis.call('HDEL', adverts, gone)
end
for _, key in ipairs({KEYS[1], adverts, leases, prefix .. 'stated:' .. layout,
    prefix .. 'root:' .. layout, prefix .. 'truth:' .. layout, prefix .. 'conflict:' .. layout}) do
  redis.call('PEXPIRE', key, KEEP)
end
local there = redis.call('EXISTS', prefix .. 'truth:' .. layout) == 1
if life_ms > 0 and redis.call('EXISTS', prefix .. 'line:' .. layout) == 1 then serve(source_of(worker, json), '') end
local root = there and redis.call('GET', prefix .. 'root:' .. layout) or ''
return {epoch, root, proof > doubted(worker, incarnation) and 0 or 1}
""",
)

WITHDRAW = on_shard(
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

STRIKE = on_shard(
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

LEAD = on_shard(
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

ADVERT = on_shard(
    "advert",
    """
local json = live(ARGV[3])
return json and tell({epoch}, ARGV[3], json) or {epoch}
""",
)

ADVERTS = on_shard(
    "adverts",
    """
local reply = {epoch}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'leases', '(' .. now, '+inf')) do
  tell(reply, worker, redis.call('HGET', prefix .. 'adverts', worker) or '')
end
return reply
""",
)
