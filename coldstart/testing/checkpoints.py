"""What a builder's own tests need to read checkpoints: the reader and the placement, as the core uses them."""

from __future__ import annotations

from coldstart.checkpoint import read_checkpoint as read_checkpoint
from coldstart.transports.placement import Placement as Placement
from coldstart.transports.placement import Unplaced as Unplaced
from coldstart.transports.placement import place as place
