"""What a builder's own tests need to read checkpoints: reader, placement and inspection, as the core uses them."""

from __future__ import annotations

from coldstart.checkpoint import read_checkpoint as read_checkpoint
from coldstart.skeletons.assembly import Inspected as Inspected
from coldstart.skeletons.assembly import Order as Order
from coldstart.skeletons.assembly import inspect as inspect
from coldstart.transports.placement import Placement as Placement
from coldstart.transports.placement import Unplaced as Unplaced
from coldstart.transports.placement import place as place
