"""The interfaces between the runner and everything that touches the world.

Plugins implement these. Together with ``coldstart.layout``, ``coldstart.errors``, ``coldstart.driver``,
``coldstart.channels`` and ``coldstart.admission`` this package is the plugin API; :data:`API` is its number. Skeleton
builders may also build on ``coldstart.skeletons.module``, ``.adoption`` and ``.stored``, which count with it.

It holds Protocols and the frozen values that cross them, no behaviour, one module for each thing that is behind an
interface; everything is imported from here. It must not know any implementation; ``registry.py`` finds those.
"""

from __future__ import annotations

from coldstart.classification import Classification as Classification
from coldstart.classification import ClassifiedTensor as ClassifiedTensor
from coldstart.identity import Rank as Rank
from coldstart.layout import PARTS as PARTS
from coldstart.ports.bus import Bus as Bus
from coldstart.ports.bus import Cursor as Cursor
from coldstart.ports.bus import Heard as Heard
from coldstart.ports.bus import Letter as Letter
from coldstart.ports.bus import Recorded as Recorded
from coldstart.ports.bus import Standing as Standing
from coldstart.ports.bus import Stated as Stated
from coldstart.ports.claims import EXCLUDED as EXCLUDED
from coldstart.ports.claims import MAX_HOSTS as MAX_HOSTS
from coldstart.ports.claims import Admission as Admission
from coldstart.ports.claims import Advert as Advert
from coldstart.ports.claims import Claim as Claim
from coldstart.ports.claims import ClaimOutcome as ClaimOutcome
from coldstart.ports.claims import Conflicted as Conflicted
from coldstart.ports.claims import Deferred as Deferred
from coldstart.ports.claims import Elected as Elected
from coldstart.ports.claims import Granted as Granted
from coldstart.ports.claims import Queue as Queue
from coldstart.ports.claims import Skip as Skip
from coldstart.ports.consensus import Consensus as Consensus
from coldstart.ports.digests import BatchDigester as BatchDigester
from coldstart.ports.digests import Digester as Digester
from coldstart.ports.memory import Memory as Memory
from coldstart.ports.memory import Region as Region
from coldstart.ports.memory import Settling as Settling
from coldstart.ports.shelves import Opened as Opened
from coldstart.ports.shelves import Shelf as Shelf
from coldstart.ports.signing import Signer as Signer
from coldstart.ports.skeletons import SAMPLE_BYTES as SAMPLE_BYTES
from coldstart.ports.skeletons import Answering as Answering
from coldstart.ports.skeletons import Cast as Cast
from coldstart.ports.skeletons import Checkpoint as Checkpoint
from coldstart.ports.skeletons import Leaving as Leaving
from coldstart.ports.skeletons import Probing as Probing
from coldstart.ports.skeletons import Receiving as Receiving
from coldstart.ports.skeletons import Skeleton as Skeleton
from coldstart.ports.skeletons import SkeletonFactory as SkeletonFactory
from coldstart.ports.skeletons import StoredAs as StoredAs
from coldstart.ports.skeletons import StoredRange as StoredRange
from coldstart.ports.skeletons import StoredTensor as StoredTensor
from coldstart.ports.transports import Availability as Availability
from coldstart.ports.transports import Connecting as Connecting
from coldstart.ports.transports import Counting as Counting
from coldstart.ports.transports import Grant as Grant
from coldstart.ports.transports import Growing as Growing
from coldstart.ports.transports import Keeping as Keeping
from coldstart.ports.transports import Landed as Landed
from coldstart.ports.transports import Link as Link
from coldstart.ports.transports import Preparing as Preparing
from coldstart.ports.transports import Routing as Routing
from coldstart.ports.transports import Traits as Traits
from coldstart.ports.transports import Transport as Transport
from coldstart.ports.transports import TransportFactory as TransportFactory
from coldstart.ports.transports import TransportSettings as TransportSettings
from coldstart.probe import Probe as Probe

API = 1
"""Number of the plugin API; a plugin that states another number is refused by name."""
