"""Scripts about the whole namespace: the indexes of shards, each one key in a cluster slot of its own; the clock.

There are two: of the shards that had an advert lately, and of those that have a journal; each with its own life.
"""

from __future__ import annotations

from coldstart.bus.scripts.base import on_namespace

INDEX = on_namespace(
    "index",
    """
local life = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - life)
redis.call('PEXPIRE', KEYS[1], life)
return {}
""",
)

SHARDS = on_namespace(
    "shards",
    """
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now - tonumber(ARGV[1])), '+inf')
""",
)

TIME = on_namespace(
    "time",
    """
return clock
""",
)
