"""A fleet in one event heap: the real machines under virtual time, seeded faults, and checked promises.

Start at ``fleet.py`` (:func:`simulate`), then ``scenario.py`` (what can be set), ``process.py`` (one
worker's life), ``joiner.py``, ``claims.py``, ``truths.py``, ``source.py`` and ``movement.py`` (what effects
do), ``network.py`` (links that are shared), ``store.py`` (the way to the store), ``faults.py`` (what befalls
them) and ``promises.py`` (what must hold).
"""

from coldstart.testing.simulator.fleet import simulate as simulate
from coldstart.testing.simulator.process import Process as Process
from coldstart.testing.simulator.scenario import Fabric as Fabric
from coldstart.testing.simulator.scenario import Fault as Fault
from coldstart.testing.simulator.scenario import Link as Link
from coldstart.testing.simulator.scenario import Outcome as Outcome
from coldstart.testing.simulator.scenario import Scenario as Scenario
from coldstart.testing.simulator.scenario import Served as Served
from coldstart.testing.simulator.scenario import Transport as Transport
from coldstart.testing.simulator.scenario import Violation as Violation
from coldstart.testing.simulator.scenario import troubled as troubled
