"""Everything that can happen to a joiner and to a source: facts, in the past tense.

Events are the only input of the two machines. ``attempt`` numbers one try (one claim, one
pull, one storage read); an event of an older attempt is stale and changes nothing. Events are
internal and may change at will; what peers send each other is in ``messages.py``. What the
machines ask for in return is in ``effects.py``. Everything is imported from here.
"""

from __future__ import annotations

from coldstart.events.common import AttemptEvent as AttemptEvent
from coldstart.events.common import DrainRequested as DrainRequested
from coldstart.events.common import Event as Event
from coldstart.events.common import Expired as Expired
from coldstart.events.common import Timer as Timer
from coldstart.events.joiner import BytesLanded as BytesLanded
from coldstart.events.joiner import CheckFailed as CheckFailed
from coldstart.events.joiner import CheckPassed as CheckPassed
from coldstart.events.joiner import ChunkCorrupted as ChunkCorrupted
from coldstart.events.joiner import ChunkVerified as ChunkVerified
from coldstart.events.joiner import ClaimDeferred as ClaimDeferred
from coldstart.events.joiner import ClaimFailed as ClaimFailed
from coldstart.events.joiner import Connected as Connected
from coldstart.events.joiner import ConnectFailed as ConnectFailed
from coldstart.events.joiner import DigestsStated as DigestsStated
from coldstart.events.joiner import Drained as Drained
from coldstart.events.joiner import GroupEvent as GroupEvent
from coldstart.events.joiner import GroupHeard as GroupHeard
from coldstart.events.joiner import GroupLost as GroupLost
from coldstart.events.joiner import LoaderElected as LoaderElected
from coldstart.events.joiner import MemoryRefused as MemoryRefused
from coldstart.events.joiner import MemoryReplaced as MemoryReplaced
from coldstart.events.joiner import OfferReceived as OfferReceived
from coldstart.events.joiner import OfferRefused as OfferRefused
from coldstart.events.joiner import PullEnded as PullEnded
from coldstart.events.joiner import SourceChanged as SourceChanged
from coldstart.events.joiner import SourceClaimed as SourceClaimed
from coldstart.events.joiner import SourceProgressed as SourceProgressed
from coldstart.events.joiner import Started as Started
from coldstart.events.joiner import StatementRefused as StatementRefused
from coldstart.events.joiner import StorageOpened as StorageOpened
from coldstart.events.joiner import StorageRefused as StorageRefused
from coldstart.events.joiner import TruthConflicted as TruthConflicted
from coldstart.events.joiner import TruthDisputed as TruthDisputed
from coldstart.events.joiner import TruthMissed as TruthMissed
from coldstart.events.joiner import TruthPublished as TruthPublished
from coldstart.events.joiner import TruthReceived as TruthReceived
from coldstart.events.joiner import TruthUnpublished as TruthUnpublished
from coldstart.events.source import AcceptReceived as AcceptReceived
from coldstart.events.source import AdvertFailed as AdvertFailed
from coldstart.events.source import Advertised as Advertised
from coldstart.events.source import ChunksShared as ChunksShared
from coldstart.events.source import DoneReceived as DoneReceived
from coldstart.events.source import DoubtReceived as DoubtReceived
from coldstart.events.source import GrantClosed as GrantClosed
from coldstart.events.source import HelloReceived as HelloReceived
from coldstart.events.source import LendingStarted as LendingStarted
from coldstart.events.source import OfferFailed as OfferFailed
from coldstart.events.source import OfferOpened as OfferOpened
from coldstart.events.source import Scrubbed as Scrubbed
from coldstart.events.source import ScrubFailed as ScrubFailed
from coldstart.events.source import SharingEnded as SharingEnded
from coldstart.events.source import StoreRenewed as StoreRenewed
from coldstart.events.source import WeightsChanged as WeightsChanged
from coldstart.events.source import WeightsDamaged as WeightsDamaged
from coldstart.events.source import WeightsMoved as WeightsMoved
from coldstart.events.source import WeightsProven as WeightsProven
from coldstart.events.source import WeightsSettled as WeightsSettled
