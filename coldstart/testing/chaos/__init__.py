"""Seeded chaos over a fleet of real hands: what the parts around the machines make of random trouble.

    from coldstart.testing.chaos import storm

    outcome = storm(7, transport=lambda inner: MyTransport())
    assert not outcome.violations, outcome

``coldstart.testing.simulator`` drives the two pure machines, thousands of workers at a time; here
a few workers run with everything that stands between machines and world (``joining``, ``lending``,
``claiming``, ``truths``, ``landing``, ``runner``, ``mail``), in virtual time, over the fakes of
``coldstart.testing.harness``. ``python -m coldstart.testing.chaos 7`` replays a seed and tells it.

Start at ``storm.py``, then ``subject.py`` (one worker, and what can be wrong with it), ``line.py``
(its way to the store), ``faults.py`` (what befalls whom) and ``promises.py`` (what must hold).
"""

from coldstart.testing.chaos.outcome import Outcome as Outcome
from coldstart.testing.chaos.outcome import Violation as Violation
from coldstart.testing.chaos.storm import storm as storm
