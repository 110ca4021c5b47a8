"""Lua that says whether a source will do for a claim, and which of several is best.

Decides the order of reasons and of ranks; ``coldstart.bus.choice`` says the same in Python. A claim is
the table that the client has sent; a source is an advert with its slots in use. Whoever writes under
this namespace may be of another version, or hostile, so every advert is looked at with care.
"""

from __future__ import annotations

CHOICE = """
local TEXTS = {'inbox', 'incarnation', 'layout', 'host', 'device', 'worker'}
local NUMBERS = {'generation', 'slots', 'have', 'total'}

local function wellformed(advert)
  if type(advert) ~= 'table' or type(advert.transports) ~= 'table' then return false end
  for _, field in ipairs(TEXTS) do
    if type(advert[field]) ~= 'string' then return false end
  end
  for _, field in ipairs(NUMBERS) do
    if type(advert[field]) ~= 'number' then return false end
  end
  return advert.proof == nil or type(advert.proof) == 'number'
end

-- An advert with its slots in use; without advert where it is malformed.
local function source_of(name, json)
  local good, advert = pcall(cjson.decode, json or '')
  if not good or not wellformed(advert) then
    return {name = name, layout = good and type(advert) == 'table' and tostring(advert.layout) or ''}
  end
  return {name = name, json = json, advert = advert, layout = advert.layout, used = used(name)}
end

local function shares(mine, theirs)
  if #mine == 0 then return true end
  for _, name in ipairs(mine) do
    for _, other in ipairs(theirs) do
      if name == other then return true end
    end
  end
  return false
end

-- Why a source will not do for a claim that has been in line for so many ms.
local function unusable(claim, source, waited)
  local advert = source.advert
  if not advert then return 'malformed' end
  if source.name == claim.worker then return 'excluded' end
  for _, name in ipairs(claim.exclude) do
    if source.name == name then return 'excluded' end
  end
  if advert.layout ~= claim.layout then return 'layout' end
  if not shares(claim.transports, advert.transports) then return 'transports' end
  if source.struck == nil then source.struck = struck(source.name, advert) end
  if source.struck then return 'struck' end
  if advert.have <= 0 then return 'empty' end
  if advert.have <= claim.have and advert.have < advert.total then return 'behind' end
  if source.used >= advert.slots then return 'busy' end
  if source.used > 0 and waited < claim.share_ms then return 'shared' end
end

local function nearness(claim, advert)
  if claim.host ~= '' and advert.host == claim.host then return 2 end
  return claim.rack ~= '' and advert.rack == claim.rack and 1 or 0
end

-- Nearer first, then less loaded, then more free slots, then more chunks; 0 is a tie.
local function compare(claim, a, b)
  local near_a, near_b = nearness(claim, a.advert), nearness(claim, b.advert)
  if near_a ~= near_b then return near_a > near_b and 1 or -1 end
  local load_a, load_b = a.used / a.advert.slots, b.used / b.advert.slots
  if load_a ~= load_b then return load_a < load_b and 1 or -1 end
  local free_a, free_b = a.advert.slots - a.used, b.advert.slots - b.used
  if free_a ~= free_b then return free_a > free_b and 1 or -1 end
  if a.advert.have ~= b.advert.have then return a.advert.have > b.advert.have and 1 or -1 end
  return 0
end
"""

SURVEY = """
local best, skipped, busy

local function judge(claim, waited, source)
  local reason = unusable(claim, source, waited)
  if reason then
    busy = busy or reason == 'busy' or reason == 'shared'
    if #skipped < MAX_SKIPS then skipped[#skipped + 1] = {source.name, reason, source.layout} end
    return false
  end
  local order = #best > 0 and compare(claim, source, best[1]) or 1
  if order > 0 then best = {source} elseif order == 0 then best[#best + 1] = source end
  return true
end

-- Judge the live ones of these workers, or those up to the first that will do.
local function look_at(claim, waited, names, first)
  if #names == 0 then return end
  local ends = redis.call('ZMSCORE', prefix .. 'leases', unpack(names))
  local adverts = redis.call('HMGET', prefix .. 'adverts', unpack(names))
  for at, name in ipairs(names) do
    if ends[at] and tonumber(ends[at]) > now and judge(claim, waited, source_of(name, adverts[at])) and first then
      return
    end
  end
end

-- Sets best, skipped and busy: those preferred, then SCAN adverts, then more while none will do. Where there
-- are more than SCAN, luck says at which to begin, in the order in which their leases end.
local function survey(claim, waited)
  best, skipped, busy = {}, {}, false
  look_at(claim, waited, {unpack(claim.prefer, 1, math.min(#claim.prefer, MAX_PREFERRED))}, true)
  if #best > 0 then return end
  skipped, busy = {}, false
  local leases = prefix .. 'leases'
  local lapsed = redis.call('ZCOUNT', leases, '-inf', now)
  local count = redis.call('ZCARD', leases) - lapsed
  local start = count > SCAN and claim.luck % count or 0
  for seen = 0, count - 1, SCAN do
    local from, want = (start + seen) % count, math.min(SCAN, count - seen)
    local workers = redis.call('ZRANGE', leases, lapsed + from, lapsed + from + want - 1)
    if #workers < want then
      local others = redis.call('ZRANGE', leases, lapsed, lapsed + want - #workers - 1)
      for _, worker in ipairs(others) do workers[#workers + 1] = worker end
    end
    table.sort(workers)
    look_at(claim, waited, workers, seen > 0)
    -- Who stands in line is served when a source that was not looked at renews its advert.
    if #best > 0 or (busy and claim.queue_ms > 0) then return end
  end
end
"""
