"""Lua that says whether a grant is of one part, of which, and who may share a source for it.

``coldstart.bus.line`` and ``coldstart.bus.choice`` say the same in Python. Claims and adverts of older
versions name neither part nor crowd, which means everything from one source.

A ``place`` is where a claim stands: its ``transfer``, ``since`` when, and the ``role`` that it took; without
since and role it does not stand. ``part`` is noted there once it was found out.
"""

from __future__ import annotations

PARTS = """
local function is_part(value)
  return type(value) == 'number' and value >= 0 and value < PARTS and value % 1 == 0
end

local function are_parts(values)
  if values == nil then return true end
  if type(values) ~= 'table' then return false end
  for at, value in pairs(values) do
    if type(at) ~= 'number' or not is_part(value) then return false end
  end
  return true
end

-- Whether a source has anything of a part; who names none has some of each.
local function has_part(advert, part)
  local parts = advert.parts or {}
  for _, found in ipairs(parts) do
    if found == part then return true end
  end
  return #parts == 0
end

local last_grants = {}

-- When a source of this layout was last granted, in ms, and whether for one part only.
local function last_grant(layout)
  if not last_grants[layout] then
    local at, part = string.match(redis.call('GET', prefix .. 'moved:' .. layout) or '', '^(%d+) (%-?%d+)$')
    last_grants[layout] = {at = tonumber(at) or 0, of_part = (tonumber(part) or -1) >= 0}
  end
  return last_grants[layout]
end

local function moved(layout, part)
  redis.call('SET', prefix .. 'moved:' .. layout, now .. ' ' .. part, 'PX', MOVED_MS)
  last_grants[layout] = {at = now, of_part = part >= 0}
end

-- Whether as many others stand in line as a claim calls a crowd.
local function crowded(claim, transfer)
  local line = prefix .. 'line:' .. claim.layout
  if claim.crowd <= 0 or redis.call('ZCARD', line) < claim.crowd then return false end
  local found, at, each = 0, 0, claim.crowd + 1
  while found < claim.crowd do
    local transfers, waits = redis.call('ZRANGE', line, at, at + each - 1), {}
    for _, other in ipairs(transfers) do
      if other ~= transfer then waits[#waits + 1] = prefix .. 'wait:' .. other end
    end
    if #waits > 0 then found = found + redis.call('EXISTS', unpack(waits)) end
    if #transfers < each then break end
    at = at + each
  end
  return found >= claim.crowd
end

-- A crowd lasts: the last few of it would keep a source from one another if each took everything.
local function lasts(claim)
  local last = last_grant(claim.layout)
  return last.of_part and now - last.at < claim.share_ms
end

-- The role that a place names; older versions name none.
local function role_of(text)
  local role = tonumber(text)
  return is_part(role) and role or 0
end

-- The role of whoever comes to this line next.
local function next_role(layout)
  return (tonumber(redis.call('GET', prefix .. 'arrived:' .. layout)) or 0) % PARTS
end

-- The role of a claim that takes a place; who asks for a certain part takes it from nobody.
local function take_role(claim)
  local role, arrived = next_role(claim.layout), prefix .. 'arrived:' .. claim.layout
  if claim.part < 0 then
    redis.call('INCR', arrived)
    redis.call('PEXPIRE', arrived, KEEP)
  end
  return role
end

-- The part that a grant to this claim would be of, or -1 for everything; found out once until the line moves.
local function part_for(claim, place)
  if claim.part >= 0 or claim.crowd <= 0 then return claim.part end
  if not place.part then
    local crowd = lasts(claim) or crowded(claim, place.transfer)
    place.part = crowd and (place.role or next_role(claim.layout)) or -1
  end
  return place.part
end

-- Whether a source lends nothing but parts.
local function lends_parts(source)
  return redis.call('ZCOUNT', prefix .. 'parts:' .. source.name, '(' .. now, '+inf') >= source.used
end

-- How many ms a claim has waited since anything moved in its line.
local function waited(claim, place)
  return place.since and now - math.max(place.since, last_grant(claim.layout).at) or 0
end

-- Whether a source is left to itself for the present because it lends to somebody already.
local function shared(claim, source, place)
  if source.used == 0 or claim.share_ms <= 0 or waited(claim, place) >= claim.share_ms then return false end
  return part_for(claim, place) < 0 or not lends_parts(source)
end
"""
