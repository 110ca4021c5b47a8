"""Planted bugs: each is the real worker with one thing wrong, and the faults that bring it to light."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from coldstart import effects, events, machine, source
from coldstart.effects import Arm, Effect
from coldstart.events import Event, Timer
from coldstart.lending import GONE
from coldstart.phases.states import Abandoning, State, Transferring
from coldstart.plan import Chunks
from coldstart.ports import Advert, Heard, Standing
from coldstart.source import Source
from coldstart.testing.simulator import Fault, Process
from coldstart.testing.simulator.claims import Claims
from coldstart.testing.simulator.joiner import JoinerHands
from coldstart.testing.simulator.source import SourceHands

JoinerMove = tuple[State, tuple[Effect, ...]]
SourceMove = tuple[Source, tuple[Effect, ...]]


class _Credulous(JoinerHands):
    def verify(self, attempt: int, chunk: int, content: int, expected: int | None) -> None:
        super().verify(attempt, chunk, content, None)


class VerificationSkipped(Process):
    """Every chunk that lands counts as right."""

    joiner_hands = _Credulous


class DollarCursor(Process):
    """After a lost connection it listens from the newest entry on."""

    lost = False

    def read_mail(self) -> None:
        self.lost = self.lost or not self.world.store.reaches(self)
        super().read_mail()

    def listen(self) -> Heard:
        heard = super().listen()
        skipped, self.lost = self.lost, False
        return replace(heard, letters=()) if skipped else heard


class NoEpoch(Process):
    """It goes on from its cursor whatever has become of the store."""

    def listen(self) -> Heard:
        self.cursor = replace(self.cursor, epoch="")
        heard = super().listen()
        return Heard(self.cursor) if heard.renewed else heard


class _Hoarder(Claims):
    slot_seconds = 1e6

    def give_back(
        self,
        source: str,
        transfer: str,
        letter: bytes,
        done: Callable[[Advert | None], None],
        failed: Callable[[str], None],
    ) -> None:
        done(None)


class _HoardingHands(JoinerHands):
    claims_of = _Hoarder


class SlotLeak(Process):
    """Slots are neither given back nor do they end by themselves."""

    joiner_hands = _HoardingHands


class NoPatience(Process):
    """No budget for what is lost on peers."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        after, asked = machine.step(state, event, at)
        journey = replace(after.journey, patience=1e6)
        return replace(after, journey=journey), _without(asked, Timer.PATIENCE)


class NoStallClock(Process):
    """A transfer in which nothing lands is waited for."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        after, asked = machine.step(state, event, at)
        return after, _without(asked, Timer.STALL)


class NoFloor(Process):
    """A transfer in which anything lands is followed to its end."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        after, asked = machine.step(state, event, at)
        if isinstance(after, Transferring):
            after = replace(after, pace=replace(after.pace, behind=0.0))
        return after, asked


class Unforgiven(Process):
    """Doubts about one's own memory are not looked into."""

    @staticmethod
    def source_step(state: Source, event: Event, at: float) -> SourceMove:
        if isinstance(event, events.Advertised):
            event = events.Advertised()
        return (state, ()) if isinstance(event, events.DoubtReceived) else source.step(state, event, at)


class Forgetful(Process):
    """A source that failed is asked again."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        after, asked = machine.step(state, event, at)
        return after, tuple(
            replace(effect, exclude=()) if isinstance(effect, effects.ClaimSource) else effect for effect in asked
        )


class Hasty(Process):
    """An abandoned pull counts as quiet, whatever the transport says."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        quiet = isinstance(event, events.Expired) and event.timer is Timer.QUIET and isinstance(state, Abandoning)
        if quiet:
            event = events.PullEnded(state.journey.attempt, "abandoned")
        elif isinstance(event, events.PullEnded):
            event = replace(event, quiet=True)
        return machine.step(state, event, at)


class Trusting(Process):
    """Grants have no end of their own."""

    @staticmethod
    def source_step(state: Source, event: Event, at: float) -> SourceMove:
        if isinstance(event, events.Expired) and event.timer is Timer.GRANT:
            return state, ()
        if isinstance(event, events.DoneReceived) and event.outcome == GONE:
            return state, ()
        return source.step(state, event, at)


class _Amnesiac(SourceHands):
    def lost(self, standing: Standing) -> bool:
        return False


class NotAfresh(Process):
    """A store that has lost its memory is told nothing anew."""

    source_hands = _Amnesiac

    @staticmethod
    def source_step(state: Source, event: Event, at: float) -> SourceMove:
        return (state, ()) if isinstance(event, events.StoreRenewed) else source.step(state, event, at)


class Boastful(Process):
    """With its first verified chunk it lends all of them."""

    @staticmethod
    def source_step(state: Source, event: Event, at: float) -> SourceMove:
        if isinstance(event, events.ChunksShared):
            event = events.LendingStarted()
        return source.step(state, event, at)


class Insistent(Process):
    """At each word of its source it asks again for what is on its way."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> JoinerMove:
        if isinstance(event, events.SourceProgressed) and isinstance(state, Transferring):
            state = replace(state, pulling=Chunks())
        return machine.step(state, event, at)


class Mutant(NamedTuple):
    """A bug, and the faults that it needs."""

    worker: type[Process]
    faults: tuple[Fault, ...]


MUTANTS = (
    Mutant(VerificationSkipped, (Fault.CORRUPT,)),
    Mutant(DollarCursor, (Fault.OUTAGE, Fault.PARTITION)),
    Mutant(NoEpoch, (Fault.WIPE,)),
    Mutant(SlotLeak, (Fault.FREEZE,)),
    Mutant(NoPatience, (Fault.SLOW, Fault.CRASH)),
    Mutant(NoStallClock, (Fault.VANISH,)),
    Mutant(NoFloor, (Fault.SLOW,)),
    Mutant(Unforgiven, (Fault.CORRUPT,)),
    Mutant(Forgetful, (Fault.CORRUPT,)),
    Mutant(Hasty, (Fault.LATE, Fault.FREEZE)),
    Mutant(Trusting, (Fault.VANISH, Fault.CRASH)),
    Mutant(NotAfresh, (Fault.WIPE, Fault.FAILOVER)),
    Mutant(Boastful, (Fault.SLOW,)),
    Mutant(Insistent, (Fault.SLOW,)),
)


def _without(asked: tuple[Effect, ...], timer: Timer) -> tuple[Effect, ...]:
    return tuple(effect for effect in asked if not (isinstance(effect, Arm) and effect.timer is timer))

