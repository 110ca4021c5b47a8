"""Where checkpoints are kept: a directory of this machine, or a prefix in an object store.

``coldstart.ports.Shelf`` is what both can do: list, stat, read ranges. ``location.py`` tells one from the other by what
was asked for, ``directory.py`` is the first implementation, ``objects.py`` the other, over ``bucket.py``, which alone
knows the library. What builders need as files is brought to a ``mirror.py``; ``cache.py`` keeps what was read, and
``whole.py`` lends whole files to loaders that want them. Weights are read by ``coldstart.transports``.
"""
