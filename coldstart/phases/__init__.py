"""The joiner's phases, one page each, pure.

``states.py`` names the states, ``moves.py`` says how each is entered, and the pages
``discover``, ``handshake``, ``transfer``, ``fallback``, ``verify`` and ``serve`` say what every
event means there. ``coldstart.machine`` joins the pages into one table.
"""
