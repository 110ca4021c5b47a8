"""Coordination between workers: hints, leases and letters, none of them needed for safety.

``memory.py`` keeps a fleet inside one process, with ``ledger.py`` as its store; ``redis.py`` speaks to
any Redis or Valkey, by the scripts in ``scripts/``; ``embedded.py`` brings a Valkey of its own to one
machine. Nothing is imported here, so that a worker loads only the bus that it uses.
"""
