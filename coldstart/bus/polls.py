"""The vote of a group's rank as one operation inside the store: the script, its words and its answer.

Decides when a question is decided, by the store's clock, as ``ballots.py`` says it in Python. A group's keys
are ``<namespace>:{<group>}:<name>``, one cluster slot of their own. ``redis.py`` runs it.

    verdicts    hash question -> verdict; written once
    agreed      hash member -> incarnation and the questions that it has said yes to
    counts      hash question -> members that have said yes; ``/last``: ms of the last paper; ``/size``: ranks of
                the group, as the first of them says
    present     sorted set member -> end of its lease in ms
    traces      hash member -> its traceparent, of the first few that have given one
"""

from __future__ import annotations

import math

from coldstart.bus.ballots import GONE, SIZES
from coldstart.bus.limits import GROUP_SECONDS
from coldstart.bus.replies import Fields
from coldstart.bus.scripts.base import Script
from coldstart.group import MAX_TRACES, Paper, Tally, Verdict

VOTE = Script(
    "vote",
    f"""
local LIFE, GONE, MAX_TRACES = {GROUP_SECONDS * 1000:.0f}, '{GONE}', {MAX_TRACES}
local SIZES = '{SIZES.format(mine="%s", others="%s")}'
"""
    + """
-- KEYS[1]: verdicts   ARGV: prefix, member, incarnation, size, lease in ms, number of verdicts heard, trace,
-- then question and verdict of each of these, then question, 1 or 0, and reason of each answer
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local verdicts, member, incarnation = KEYS[1], ARGV[2], ARGV[3]
local size, life_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
local agreed, counts, present = ARGV[1] .. 'agreed', ARGV[1] .. 'counts', ARGV[1] .. 'present'

-- Verdicts that were told stand, even if this store has forgotten them.
local first = 8 + 2 * tonumber(ARGV[6])
for at = 8, first - 1, 2 do redis.call('HSETNX', verdicts, ARGV[at], ARGV[at + 1]) end

-- When nobody at all was heard for long, the store was away or its clock jumped: nobody is to blame.
local last = tonumber(redis.call('HGET', counts, '/last') or now)
redis.call('HSET', counts, '/last', now)
redis.call('HSETNX', counts, '/size', size)
local others = tonumber(redis.call('HGET', counts, '/size'))
if now < last or now > last + life_ms / 4 then
  for _, name in ipairs(redis.call('ZRANGE', present, 0, -1)) do redis.call('ZADD', present, now + life_ms, name) end
end
redis.call('ZADD', present, now + life_ms, member)

-- What an earlier incarnation has said is void.
local good, mine = pcall(cjson.decode, redis.call('HGET', agreed, member) or '')
if not good or type(mine) ~= 'table' then mine = {incarnation = incarnation, yes = {}} end
if mine.incarnation ~= incarnation then
  for question in pairs(mine.yes) do redis.call('HINCRBY', counts, question, -1) end
  mine = {incarnation = incarnation, yes = {}}
end
for at = first, #ARGV, 3 do
  if ARGV[at + 1] == '1' and not mine.yes[ARGV[at]] then
    mine.yes[ARGV[at]] = true
    redis.call('HINCRBY', counts, ARGV[at], 1)
  end
end
redis.call('HSET', agreed, member, cjson.encode(mine))

local gone = redis.call('ZRANGEBYSCORE', present, '-inf', now)
table.sort(gone)
for at = first, #ARGV, 3 do
  local question = ARGV[at]
  if ARGV[at + 1] ~= '1' then
    redis.call('HSETNX', verdicts, question, '0\\n' .. member .. '\\n' .. ARGV[at + 2])
  elseif size ~= others then
    local reason = string.format(SIZES, ARGV[4], others)
    redis.call('HSETNX', verdicts, question, '0\\n' .. member .. '\\n' .. reason)
  elseif gone[1] then
    redis.call('HSETNX', verdicts, question, '0\\n' .. gone[1] .. '\\n' .. GONE)
  elseif tonumber(redis.call('HGET', counts, question) or 0) >= size then
    redis.call('HSETNX', verdicts, question, '1\\n\\n')
  end
end
local traces, told = ARGV[1] .. 'traces', {}
if ARGV[7] ~= '' then
  if redis.call('HEXISTS', traces, member) == 1 or redis.call('HLEN', traces) < MAX_TRACES then
    redis.call('HSET', traces, member, ARGV[7])
  end
  told = redis.call('HVALS', traces)
end
for _, key in ipairs({verdicts, agreed, counts, present, traces}) do redis.call('PEXPIRE', key, LIFE) end
local reply = {redis.call('ZCOUNT', present, '(' .. now, '+inf'), #told}
for _, trace in ipairs(told) do reply[#reply + 1] = trace end
for _, word in ipairs(redis.call('HGETALL', verdicts)) do reply[#reply + 1] = word end
return reply
""",
)


def words(prefix: str, paper: Paper) -> tuple[str | int, ...]:
    """What the script is told after its key."""
    heard = [word for verdict in paper.heard for word in (verdict.question, _written(verdict))]
    answers = [word for answer in paper.answers for word in (answer.question, int(answer.yes), answer.reason)]
    milliseconds = math.ceil(paper.seconds * 1000)
    about = (prefix, paper.member, paper.incarnation, paper.size, milliseconds, len(paper.heard), paper.trace)
    return (*about, *heard, *answers)


def _written(verdict: Verdict) -> str:
    return f"{int(verdict.yes)}\n{verdict.by}\n{verdict.reason}"


def tally(reply: object) -> Tally:
    """The script's answer; raises BusError for one that is none."""
    fields = Fields(reply, "vote")
    present, told = fields.number(), fields.number()
    if not 0 <= told <= MAX_TRACES:
        raise fields.nonsense(f"{told} traces")
    traces = tuple(sorted(fields.text() for _ in range(told)))
    found: list[Verdict] = []
    while fields:
        question, (yes, *rest) = fields.text(), fields.text().split("\n", 2)
        if yes not in ("0", "1") or len(rest) != 2:
            raise fields.nonsense("a malformed verdict")
        found.append(Verdict(question, yes == "1", *rest))
    return Tally(tuple(sorted(found, key=lambda verdict: verdict.question)), present, traces)
