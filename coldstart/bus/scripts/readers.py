"""Lua that counts who reads storage, admits one more to it, and says where a claim stands in line.

``coldstart.bus.ledger`` says the same in Python. Whether storage is worth it is for the joiner to say
(``coldstart.estimate``): it names the number of readers at which it would still be, and the store counts.
"""

from __future__ import annotations

from coldstart.bus.scripts.base import on_shard

READERS = """
-- How many others than a worker read storage: whoever leads, and those that were admitted.
local function readers(layout, worker)
  local admitted, leader = prefix .. 'readers:' .. layout, redis.call('GET', prefix .. 'lead:' .. layout)
  local function counts(name)
    local ends = redis.call('ZSCORE', admitted, name)
    return ends and tonumber(ends) > now and 1 or 0
  end
  local found = redis.call('ZCOUNT', admitted, '(' .. now, '+inf') - counts(worker)
  if leader and leader ~= worker then found = found + 1 - counts(leader) end
  return found
end
"""

QUEUE = """
-- An answer with what is known of the line, where there are complete sources to stand in line for.
local function queued(reply, claim, transfer)
  local ahead = redis.call('ZRANK', prefix .. 'line:' .. claim.layout, transfer)
  if not ahead or #best > 0 or #taken == 0 then return reply end
  local slots, lent, rate, hosts, known = 0, 0, 0, {}, {}
  for _, source in ipairs(taken) do
    local host = source.advert.host
    slots, lent, rate = slots + source.advert.slots, lent + source.used, math.max(rate, source.advert.rate or 0)
    if not known[host] and #hosts < MAX_HOSTS then hosts[#hosts + 1] = host end
    known[host] = true
  end
  local others = readers(claim.layout, claim.worker)
  for _, fact in ipairs({ahead, slots, lent, string.format('%.0f', rate), others, cjson.encode(hosts)}) do
    reply[#reply + 1] = fact
  end
  return reply
end
"""

ADMIT = on_shard(
    "admit",
    READERS,
    """
local layout, worker, most, life_ms = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local admitted, others = prefix .. 'readers:' .. layout, readers(layout, worker)
if life_ms <= 0 or others >= most then
  redis.call('ZREM', admitted, worker)
  return {epoch, 0, others}
end
redis.call('ZADD', admitted, now + life_ms, worker)
redis.call('ZREMRANGEBYSCORE', admitted, '-inf', now)
if redis.call('PTTL', admitted) < life_ms then redis.call('PEXPIRE', admitted, life_ms) end
return {epoch, 1, others}
""",
)
