"""The zoo: small models of many public classes, each started cold between two processes.

``family.py`` says what a class needs, the ``transformers_*`` and ``diffusers_*`` modules declare
the classes, ``worker.py`` is one of the two processes, ``start.py`` has them start one family and
judges, ``outcome.py`` is what comes of it, and ``page.py`` writes it into ``docs/families.md``.
"""
