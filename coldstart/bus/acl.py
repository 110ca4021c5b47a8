"""What a worker needs to be allowed at the store, and nothing else.

Decides the rule of an ACL user for workers; the tests of the bus on real servers run under it. Scripts run with
their caller's rights, so the commands in ``scripts/`` and ``polls.py`` are named here too. It must not know what
they are for.
"""

from __future__ import annotations

DIRECT = ("client|setname", "eval", "evalsha", "xread")
"""What connections send themselves."""

SCRIPTED = (
    "del", "exists", "get", "getrange", "hdel", "hexists", "hget", "hgetall", "hincrby", "hlen", "hmget", "hset",
    "hsetnx", "hvals", "incr", "lrange", "pexpire", "pttl", "rpush", "sadd", "scard", "set", "setrange", "sismember",
    "smembers", "time", "xadd", "xinfo|stream", "xrange", "zadd", "zcard", "zcount", "zmscore", "zrange",
    "zrangebyscore", "zrank", "zrem", "zremrangebyscore", "zscore",
)  # fmt: skip
"""What scripts call."""

DESCRIBING = ("info",)
"""What ``coldstart doctor`` asks besides; without it the store's version and memory are not checked."""


def rule(*namespaces: str) -> tuple[str, ...]:
    """The words of ``ACL SETUSER name on >password ...`` for workers of these namespaces."""
    keys = tuple(f"~{namespace}:*" for namespace in namespaces)
    commands = tuple(f"+{command}" for command in sorted((*DIRECT, *SCRIPTED)))
    return ("resetkeys", *keys, "resetchannels", "-@all", *commands)
