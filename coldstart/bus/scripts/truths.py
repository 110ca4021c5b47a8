"""Scripts about truths: the published one, and the digests that are stated while it is being made."""

from __future__ import annotations

from coldstart.bus.scripts.base import on_shard

PUBLISH_TRUTH = on_shard(
    "publish_truth",
    """
local layout, mine = ARGV[3], ARGV[4]
local root, truth, conflict = prefix .. 'root:' .. layout, prefix .. 'truth:' .. layout, prefix .. 'conflict:' .. layout
local known = redis.call('GET', root)
if not known then
  redis.call('SET', root, mine, 'PX', KEEP)
  redis.call('SET', truth, ARGV[5], 'PX', KEEP)
  redis.call('DEL', prefix .. 'stated:' .. layout)
  changed('truth', mine)
elseif known == mine and ARGV[6] == '1' then
  redis.call('SET', truth, ARGV[5], 'PX', KEEP)
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

FETCH_TRUTH = on_shard(
    "fetch_truth",
    """
if redis.call('EXISTS', prefix .. 'conflict:' .. ARGV[3]) == 1 then return {epoch} end
return {epoch, redis.call('GET', prefix .. 'truth:' .. ARGV[3]) or nil}
""",
)

STATE = on_shard(
    "state",
    """
-- ARGV[4], ARGV[5], ...: chunk, digest. Each chunk has a flag and its digest at its own place in one string.
local layout = ARGV[3]
if redis.call('EXISTS', prefix .. 'root:' .. layout) == 1 then return {epoch, 1} end
local stated = prefix .. 'stated:' .. layout
for at = 4, #ARGV, 2 do
  local place = tonumber(ARGV[at]) * 17
  local known = redis.call('GETRANGE', stated, place, place + 16)
  if known:byte() == 1 and known:sub(2) ~= ARGV[at + 1] then return {epoch, 0} end
end
for at = 4, #ARGV, 2 do
  redis.call('SETRANGE', stated, tonumber(ARGV[at]) * 17, string.char(1) .. ARGV[at + 1])
end
redis.call('PEXPIRE', stated, KEEP)
return {epoch, 1}
""",
)

STATED = on_shard(
    "stated",
    """
local layout = ARGV[3]
if redis.call('EXISTS', prefix .. 'conflict:' .. layout) == 1 then return {epoch, '', ''} end
local root = redis.call('GET', prefix .. 'root:' .. layout)
if root then return {epoch, root, ''} end
return {epoch, '', redis.call('GETRANGE', prefix .. 'stated:' .. layout, tonumber(ARGV[4]) * 17, -1)}
""",
)
