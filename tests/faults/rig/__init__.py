"""What the fault tests are made of: real processes, real stores, a proxy between them, and a clock.

``nursery`` makes processes, ``worker`` is what runs in one, ``plugins`` are what it may be built with,
``store`` and ``proxy`` are what it talks to, ``fleet`` is what a test holds, ``case`` what it must keep to.
"""
