"""Lua that says whether a source will do for a claim, and which of several is best.

Decides the order of reasons and of ranks; ``coldstart.bus.choice`` says the same in Python. A claim is
the table that the client has sent; a source is an advert with its slots in use. Whoever writes under
this namespace may be of another version, or hostile, so every advert is looked at with care.
"""

from __future__ import annotations

CHOICE = """
local function is_rate(rate)
  return rate == nil or type(rate) == 'number' and rate >= 0 and rate <= MAX_RATE and rate % 1 == 0
end

-- As coldstart.identity.is_id: what may become part of a key.
local function is_id(text)
  return type(text) == 'string' and #text <= 96 and string.match(text, '^[%w_.:-]+$') ~= nil
end

local function is_text(text)
  return type(text) == 'string' and #text <= MAX_TEXT
end

local function wellformed(name, advert)
  return type(advert) == 'table' and type(advert.transports) == 'table' and #advert.transports <= MAX_TRANSPORTS
    and advert.worker == name and is_id(name) and is_id(advert.inbox) and is_id(advert.incarnation)
    and is_id(advert.layout) and is_text(advert.host) and is_text(advert.device)
    and type(advert.generation) == 'number' and type(advert.slots) == 'number'
    and type(advert.have) == 'number' and type(advert.total) == 'number'
    and (advert.proof == nil or type(advert.proof) == 'number') and are_parts(advert.parts) and is_rate(advert.rate)
end

-- An advert with its slots in use; without advert where it is malformed.
local function source_of(name, json)
  local good, advert = pcall(cjson.decode, json or '')
  if not good or not wellformed(name, advert) then
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

-- Why a source will not do for a claim in this place.
local function unusable(claim, source, place)
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
  -- Of those who have less than everything and wait for one another, whoever has most must find all others behind.
  if claim.part < 0 and advert.have <= claim.have and advert.have < advert.total then return 'behind' end
  local part = part_for(claim, place)
  if part >= 0 and not has_part(advert, part) then return 'part' end
  if source.used >= advert.slots then return 'busy' end
  if shared(claim, source, place) then return 'shared' end
end

local function nearness(claim, advert)
  if claim.host ~= '' and advert.host == claim.host then return 2 end
  return claim.rack ~= '' and advert.rack == claim.rack and 1 or 0
end

local function rank(claim, source)
  source.near = nearness(claim, source.advert)
  source.load, source.free = source.used / source.advert.slots, source.advert.slots - source.used
end

-- Nearer first, then less loaded, then more free slots, then more chunks; 0 is a tie.
local function compare(a, b)
  if a.near ~= b.near then return a.near > b.near and 1 or -1 end
  if a.load ~= b.load then return a.load < b.load and 1 or -1 end
  if a.free ~= b.free then return a.free > b.free and 1 or -1 end
  if a.advert.have ~= b.advert.have then return a.advert.have > b.advert.have and 1 or -1 end
  return 0
end
"""

SURVEY = """
local best, skipped, busy, lacking, taken

local function judge(claim, source, place)
  local reason = unusable(claim, source, place)
  if reason then
    if reason == 'busy' or reason == 'shared' then
      busy = true
      if source.advert.have >= source.advert.total then taken[#taken + 1] = source end
    end
    lacking = lacking or reason == 'part'
    if #skipped < MAX_SKIPS then skipped[#skipped + 1] = {source.name, reason, source.layout} end
    return false
  end
  rank(claim, source)
  local order = best[1] and compare(source, best[1]) or 1
  if order > 0 then best = {source} elseif order == 0 then best[#best + 1] = source end
  return true
end

-- Judge the live ones of these workers, or those up to the first that will do.
local function look_at(claim, place, names, first)
  if #names == 0 then return end
  local strikes = {}
  for at, name in ipairs(names) do strikes[at] = prefix .. 'strike:' .. name end
  local trusted = redis.call('EXISTS', unpack(strikes)) == 0
  local ends = redis.call('ZMSCORE', prefix .. 'leases', unpack(names))
  local adverts = redis.call('HMGET', prefix .. 'adverts', unpack(names))
  for at, name in ipairs(names) do
    if ends[at] and tonumber(ends[at]) > now then
      local source = source_of(name, adverts[at])
      if trusted then source.struck = false end
      if judge(claim, source, place) and first then return end
    end
  end
end

-- Sets best, skipped, busy, lacking and taken (those that are only taken, and complete): those preferred, then SCAN
-- adverts, then more while none will do. Where there are more than SCAN, luck says at which to begin, in the order in
-- which their leases end.
local function survey(claim, place)
  best, skipped, busy, lacking, taken = {}, {}, false, false, {}
  place.part = nil
  look_at(claim, place, {unpack(claim.prefer, 1, math.min(#claim.prefer, MAX_PREFERRED))}, true)
  if #best > 0 then return end
  skipped, busy, lacking, taken = {}, false, false, {}
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
    look_at(claim, place, workers, seen > 0)
    -- Who stands in line is served when a source that was not looked at renews its advert.
    if #best > 0 or (busy and claim.queue_ms > 0) then return end
  end
end
"""
