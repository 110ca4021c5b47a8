"""Scripts about streams: letters, the place of a listener, and the journal."""

from __future__ import annotations

from coldstart.bus.scripts.base import on_shard

SEND = on_shard(
    "send",
    """
local inbox, nonce, body = ARGV[3], ARGV[4], ARGV[5]
if redis.call('SET', prefix .. 'nonce:' .. inbox .. '/' .. nonce, 1, 'NX', 'PX', NONCE_MS) then
  deliver(inbox, body, 0)
end
return {epoch}
""",
)

TOUCH = on_shard(
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

RECORD = on_shard(
    "record",
    """
for at = 3, #ARGV do
  redis.call('XADD', prefix .. 'journal', 'MAXLEN', '~', JOURNAL_ENTRIES, '*', 'entry', ARGV[at])
end
redis.call('PEXPIRE', prefix .. 'journal', KEEP)
return {epoch}
""",
)

RECORDED = on_shard(
    "recorded",
    """
local reply = {epoch}
for _, entry in ipairs(redis.call('XRANGE', prefix .. 'journal', '(' .. ARGV[3], '+', 'COUNT', ARGV[4])) do
  reply[#reply + 1] = entry[1]
  reply[#reply + 1] = entry[2][2] or ''
end
return reply
""",
)
