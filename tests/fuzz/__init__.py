"""Fuzzers of everything that reads what others wrote: ``targets.py`` says what, ``mutation.py`` how.

``make fuzz`` runs them for minutes, with atheris where it is installed and by mutation where it is not; a short and
deterministic run is part of the tests. What broke once is in ``corpus/`` and is tried first, for ever.
"""
