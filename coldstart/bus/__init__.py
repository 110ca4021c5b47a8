"""Coordination between workers: hints, leases and letters, none of them needed for safety.

``memory.py`` keeps a fleet inside one process, ``redis.py`` speaks to any Redis or Valkey,
``embedded.py`` brings a Valkey of its own to one machine. Nothing is imported here, so that a
worker loads only the bus that it uses.
"""
