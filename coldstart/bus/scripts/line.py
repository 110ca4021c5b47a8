"""Lua that keeps claims in line and serves them: the order in which a source with room is given away.

``coldstart.bus.line`` and ``coldstart.bus.turn`` say the same in Python. A line is a sorted set of transfers by
order of arrival; the claim itself is a hash that ends with its place, so whoever gave up is passed over.
"""

from __future__ import annotations

LINE = """
local looks, grants = LOOKS, MAX_GRANTS

local function leave(transfer)
  local wait = prefix .. 'wait:' .. transfer
  local layout = redis.call('HGET', wait, 'layout')
  if layout then
    redis.call('DEL', wait)
    redis.call('ZREM', prefix .. 'line:' .. layout, transfer)
  end
end

local function answer(transfer, life_ms, ...)
  local answered = prefix .. 'claim:' .. transfer
  redis.call('RPUSH', answered, epoch, ...)
  redis.call('PEXPIRE', answered, life_ms)
  return {epoch, ...}
end

-- Note of a slot that it is of one part, or that it is not.
local function keep_part(worker, transfer, slot_ms, part)
  local parts = prefix .. 'parts:' .. worker
  if part < 0 then
    redis.call('ZREM', parts, transfer)
  else
    redis.call('ZREMRANGEBYSCORE', parts, '-inf', now)
    redis.call('ZADD', parts, now + slot_ms, transfer)
    if redis.call('PTTL', parts) < slot_ms then redis.call('PEXPIRE', parts, slot_ms) end
  end
end

local function grant(claim, place, hello, source, passed)
  local transfer, part = place.transfer, part_for(claim, place)
  local root = redis.call('GET', prefix .. 'root:' .. claim.layout) or ''
  local slots, slot_ms = prefix .. 'slots:' .. source.name, claim.slot_ms
  local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
  redis.call('PEXPIRE', KEYS[1], KEEP)
  redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
  -- Who is granted the slot that it still holds takes no second one.
  source.used = source.used + redis.call('ZADD', slots, now + slot_ms, transfer)
  if redis.call('PTTL', slots) < slot_ms then redis.call('PEXPIRE', slots, slot_ms) end
  redis.call('SET', prefix .. 'lent:' .. transfer, source.name .. ' ' .. source.advert.inbox, 'PX', INBOX_MS)
  keep_part(source.name, transfer, slot_ms, part)
  moved(claim.layout, part)
  if claim.part < 0 and not place.since then take_role(claim) end
  leave(transfer)
  deliver(source.advert.inbox, hello, fence)
  return answer(transfer, slot_ms, 'granted', root, passed, source.json, source.used, 0, fence, part)
end

-- The claim that stands in line, its hello and its place; nothing where that is lost or not as we write it.
local function in_line(transfer)
  local wait = redis.call('HMGET', prefix .. 'wait:' .. transfer, 'claim', 'hello', 'since', 'role')
  local good, claim = pcall(cjson.decode, wait[1] or '')
  if not good or type(claim) ~= 'table' or not wait[2] or not tonumber(wait[3]) then return end
  if type(claim.slot_ms) == 'number' and type(claim.inbox) == 'string' and type(claim.layout) == 'string' then
    claim.part = is_part(claim.part) and claim.part or -1
    claim.crowd = type(claim.crowd) == 'number' and claim.crowd <= MAX_CROWD and math.floor(claim.crowd) or 0
    return claim, wait[2], {transfer = transfer, since = tonumber(wait[3]), role = role_of(wait[4])}
  end
end

-- Grant a source to those in line whom it suits, those before one of them only; whether to anybody.
local function serve(source, before)
  local served, at, gone = false, 0, 0
  local line = prefix .. 'line:' .. source.layout
  if not source.advert or redis.call('EXISTS', line) == 0 then return false end
  if redis.call('EXISTS', prefix .. 'conflict:' .. source.layout) == 1 then return false end
  while true do
    local transfers = redis.call('ZRANGE', line, at, at + 15)
    if #transfers == 0 then return served end
    for _, transfer in ipairs(transfers) do
      if transfer == before or source.used >= source.advert.slots or grants == 0 or looks == 0 or gone == SCAN then
        return served
      end
      local claim, hello, place = in_line(transfer)
      if not claim then
        redis.call('ZREM', line, transfer)
        gone = gone + 1
      else
        looks = looks - 1
        local sound, reason = pcall(unusable, claim, source, place)
        if not sound or reason then
          at = at + 1
        else
          grants = grants - 1
          served = true
          local granted = grant(claim, place, hello, source, '[]')
          if claim.inbox ~= '' then
            local told = cjson.encode({epoch, granted[3], source.json, source.used, granted[8], granted[9]})
            deliver(claim.inbox, '', 0, 'transfer', transfer, 'granted', told)
          end
        end
      end
    end
  end
end
"""

STAND = """
local function place_of(transfer, layout)
  local wait = redis.call('HMGET', prefix .. 'wait:' .. transfer, 'layout', 'since', 'role')
  if wait[1] ~= layout then return {transfer = transfer} end
  return {transfer = transfer, since = tonumber(wait[2]), role = role_of(wait[3])}
end

-- Take a place at the end of the line, or keep the one there is.
local function stand(claim, json, transfer, hello)
  local wait, line = prefix .. 'wait:' .. transfer, prefix .. 'line:' .. claim.layout
  if not place_of(transfer, claim.layout).since then
    local order = redis.call('HINCRBY', KEYS[1], 'order', 1)
    redis.call('PEXPIRE', KEYS[1], KEEP)
    leave(transfer)
    if redis.call('ZCARD', line) >= MAX_WAITING then
      for _, other in ipairs(redis.call('ZRANGE', line, 0, LOOKS - 1)) do
        if redis.call('EXISTS', prefix .. 'wait:' .. other) == 0 then redis.call('ZREM', line, other) end
      end
    end
    if redis.call('ZCARD', line) >= MAX_WAITING then return end
    redis.call('ZADD', line, order, transfer)
    redis.call('HSET', wait, 'layout', claim.layout, 'since', now, 'role', take_role(claim))
  end
  redis.call('HSET', wait, 'claim', json, 'hello', hello)
  redis.call('PEXPIRE', wait, claim.queue_ms)
  if redis.call('PTTL', line) < claim.queue_ms then redis.call('PEXPIRE', line, claim.queue_ms) end
end
"""
