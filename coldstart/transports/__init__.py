"""Transports of the core: ``tcp`` between workers, ``storage`` from the checkpoint.

Each is an implementation of ``ports.Transport`` and knows nothing of phases, buses or torch;
others come from plugins and pass the same suite, ``coldstart.testing.transport_contract``.
"""
