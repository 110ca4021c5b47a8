"""The contract of a Bus, as tests: what the runner relies on, whoever keeps the state.

Subclass :class:`BusContract` in a test module, give it :meth:`~BusContract.open_bus`, and run pytest
with anyio's plugin. The fake and the real bus of coldstart pass the same suite, which is what makes
the fake trustworthy. It must not look behind the port: no key, no script, no clock but its own patience.

    class TestMyBus(BusContract):
        @asynccontextmanager
        async def open_bus(self):
            server = ...
            yield lambda: MyBus.open(server)    # buses that share one empty store
"""

from __future__ import annotations

from coldstart.testing.bus_contract.ballots import Ballots
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, Connect, advert, claim
from coldstart.testing.bus_contract.finding import Finding
from coldstart.testing.bus_contract.leading import Leading
from coldstart.testing.bus_contract.leases import Leases
from coldstart.testing.bus_contract.letters import Letters
from coldstart.testing.bus_contract.lines import Lines
from coldstart.testing.bus_contract.parts import Parts
from coldstart.testing.bus_contract.places import Places
from coldstart.testing.bus_contract.queues import Queues
from coldstart.testing.bus_contract.relays import Relays
from coldstart.testing.bus_contract.strikes import Strikes
from coldstart.testing.bus_contract.truths import Truths

__all__ = ["LAYOUT", "SHARD", "BusContract", "Connect", "advert", "claim"]


class BusContract(Finding, Relays, Lines, Queues, Places, Parts, Leases, Strikes, Leading, Truths, Letters, Ballots):
    """Subclass it and implement :meth:`open_bus`."""
