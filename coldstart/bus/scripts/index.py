"""Scripts about the whole namespace: the index of shards, which is one key in a cluster slot of its own; the clock."""

from __future__ import annotations

from coldstart.bus.scripts.base import on_namespace

INDEX = on_namespace(
    "index",
    """
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - SHARD_MS)
redis.call('PEXPIRE', KEYS[1], SHARD_MS)
return {}
""",
)

SHARDS = on_namespace(
    "shards",
    """
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now - SHARD_MS), '+inf')
""",
)

TIME = on_namespace(
    "time",
    """
return clock
""",
)
