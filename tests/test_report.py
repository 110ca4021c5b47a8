"""Steps fold into the truth about the path: phases, attempts, origins, progress."""

from __future__ import annotations

import pytest

from coldstart import events
from coldstart.errors import ColdstartError, ColdStartFailed, IntegrityError, SkeletonError, TruthConflict
from coldstart.events import Event
from coldstart.layout import Layout
from coldstart.links.rates import Floors, Moved, Passage
from coldstart.machine import initial, step
from coldstart.phases.journey import Journey
from coldstart.phases.states import Failed, Failure, Phase, State
from coldstart.plan import Limits
from coldstart.ports import Advert, Queue, Skip
from coldstart.recorder import Recorder
from coldstart.report import Attempt, Mark, Report, failure
from coldstart.runner import Entry
from coldstart.testing.memories import layout_of

LAYOUT: Layout = layout_of(1000, 1000, chunk_bytes=512)
"""Four chunks of 512 bytes: 512, 488, 512 and 488 bytes of weights."""

CHUNKS = range(LAYOUT.chunks)
LIMITS = Limits(sources=2)


def advert(worker: str) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, 4, 4, ("tcp",), "127.0.0.1", "cpu")


class Story:
    """Drives the machine through what happens, and the recorder along."""

    def __init__(self, floors: Floors | None = None) -> None:
        self.state: State = initial(LIMITS)
        self.recorder = Recorder("w", "key", "model@key/single", LAYOUT, 0.0, floors)
        self.recorder.built(1.0)
        self.number = 0
        self.tell(1.0, events.Started(LAYOUT.chunks))

    def tell(self, at: float, *happened: Event) -> None:
        for event in happened:
            before = self.state
            self.state, asked = step(before, event, at)
            self.number += 1
            self.recorder(Entry(self.number, at, event, before, self.state, asked))

    @property
    def attempt(self) -> int:
        return self.state.journey.attempt

    @property
    def report(self) -> Report:
        return self.recorder.report()

    def shake(self, at: float, worker: str, transport: str = "tcp") -> None:
        """Claimed and agreed: bytes may come."""
        self.tell(at, events.SourceClaimed(self.attempt, advert(worker), "root"))
        if self.state.journey.tries == 1:
            self.tell(at, events.TruthReceived(self.attempt))
        self.tell(at, events.OfferReceived(self.attempt, transport, b"", 1))

    def chunks(self, at: float, *chunks: int) -> None:
        for chunk in chunks:
            self.tell(at, events.BytesLanded(self.attempt, 512), events.ChunkVerified(self.attempt, chunk))


def peer() -> Story:
    story = Story()
    story.shake(2.0, "a")
    story.chunks(4.0, *CHUNKS)
    story.tell(4.0, events.PullEnded(story.attempt))
    story.tell(5.0, events.CheckPassed(story.attempt))
    return story


def storage(root: str = "") -> Story:
    story = Story()
    story.tell(2.0, events.LoaderElected(1, root))
    story.chunks(6.0, *CHUNKS)
    story.tell(6.0, events.PullEnded(story.attempt))
    if not root:
        story.tell(6.5, events.TruthPublished(story.attempt, "ours"))
    story.tell(7.0, events.CheckPassed(story.attempt))
    return story


def mixed() -> Story:
    story = Story()
    story.shake(2.0, "a")
    story.chunks(3.0, 0, 1)
    story.tell(4.0, events.PullEnded(story.attempt, "closed"))
    story.tell(4.0, events.ClaimFailed(story.attempt, "bus down"))
    story.chunks(7.0, 2, 3)
    story.tell(7.0, events.PullEnded(story.attempt))
    story.tell(7.5, events.CheckPassed(story.attempt))
    return story


# ----------------------------------------------------------------------------------------- the paths


def test_a_start_from_a_peer() -> None:
    report = peer().report
    assert (report.state, report.path, report.verified) == (Phase.SERVE, "peer", True)
    assert (report.sources, report.transport, report.against) == (("a",), "tcp", "published truth")
    assert (report.bytes_total, report.bytes_peer, report.bytes_storage) == (2000, 2000, 0)
    assert report.phases == {"build": 1.0, "discover": 1.0, "handshake": 0.0, "transfer": 2.0, "verify": 1.0}
    assert report.attempts == (Attempt(1, "a", "tcp", 2.0, 2000, "ok"),)
    assert report.gbps == pytest.approx(2000 / 2.0 / 1e9)
    assert (report.seconds, report.root, report.detours, report.error) == (5.0, "root", (), None)


def test_a_start_from_storage_makes_its_own_truth() -> None:
    report = storage().report
    assert (report.path, report.sources, report.transport) == ("storage", (), "storage")
    assert (report.bytes_peer, report.bytes_storage) == (0, 2000)
    assert (report.against, report.root) == ("own storage read", "ours")
    assert report.attempts == (Attempt(2, "storage", "storage", 4.0, 2000, "ok"),)
    assert report.gbps == pytest.approx(2000 / 4.0 / 1e9)
    assert report.seconds == 7.0


def test_a_start_from_storage_that_agrees_with_the_published_truth_says_so() -> None:
    report = storage("root").report
    assert (report.path, report.against, report.root) == ("storage", "published truth", "root")


def test_a_start_from_storage_whose_truth_could_not_be_had_says_so() -> None:
    story = Story()
    story.tell(2.0, events.LoaderElected(1, "root"))
    story.tell(2.0, events.TruthMissed(story.attempt, "bus down"))
    story.chunks(6.0, *CHUNKS)
    story.tell(6.0, events.PullEnded(story.attempt))
    story.tell(6.0, events.TruthUnpublished(story.attempt, "bus down"))
    story.tell(7.0, events.CheckPassed(story.attempt))
    assert story.report.against == "own storage read"
    assert story.report.root == ""


def test_a_mixed_start_counts_each_byte_once_where_it_came_from() -> None:
    report = mixed().report
    assert (report.path, report.sources, report.transport) == ("mixed", ("a",), "tcp")
    assert (report.bytes_peer, report.bytes_storage) == (1000, 1000)
    assert report.detours == ("a: closed", "bus down")
    assert report.attempts == (
        Attempt(1, "a", "tcp", 2.0, 1000, "closed"),
        Attempt(3, "storage", "storage", 3.0, 1000, "ok"),
    )
    assert report.gbps == pytest.approx(1000 / 2.0 / 1e9)


def test_two_sources_are_two_attempts_and_phases_add_up() -> None:
    story = Story()
    story.shake(2.0, "a", "tcp")
    story.chunks(3.0, 0)
    story.tell(3.0, events.PullEnded(story.attempt, "closed"))
    story.shake(4.0, "b", "nccl")
    story.chunks(6.0, 1, 2, 3)
    story.tell(6.0, events.PullEnded(story.attempt))
    story.tell(6.0, events.CheckPassed(story.attempt))
    report = story.report
    assert (report.path, report.sources, report.transport) == ("peer", ("a", "b"), "nccl")
    assert [(a.source, a.transport, a.bytes, a.outcome) for a in report.attempts] == [
        ("a", "tcp", 512, "closed"),
        ("b", "nccl", 1488, "ok"),
    ]
    assert report.phases["transfer"] == 3.0
    assert report.phases["discover"] == 2.0
    assert report.gbps == pytest.approx(2000 / 3.0 / 1e9)


def test_the_link_of_most_bytes_is_told_and_every_floor_that_was_missed() -> None:
    story = Story(Floors(gbps=1, share=0.5))
    for at, worker, passage in (
        (2.0, "a", Passage("a", "tcp", "", Moved(5 << 20, 1.0), 1e9, "transfer", 7.0)),
        (4.0, "b", Passage("b", "nccl", "nvlink", Moved(10**9, 0.5), 8e9, "probe", 0.0)),
    ):
        story.shake(at, worker, passage.transport)
        story.chunks(at + 1, *(CHUNKS if worker == "b" else (0,)))
        reason = "" if worker == "b" else "closed"
        story.tell(at + 1, events.PullEnded(story.attempt, reason, route=passage.route, passage=passage))
    story.tell(6.0, events.CheckPassed(story.attempt))
    report = story.report
    assert (report.link_gbps, report.link_from, report.link_age, report.share) == (8.0, "probe", 0.0, 0.25)
    assert report.warnings == (
        "a over tcp gave 0.00524 GB/s, under the floor of 1 GB/s",
        "a over tcp gave 0.01 of the 1 GB/s that its link has given, under the floor of 0.5",
        "b over nccl (nvlink) gave 0.25 of the 8 GB/s that its link has given, under the floor of 0.5",
    )


def test_a_source_that_gave_nothing_is_an_attempt_but_not_a_source() -> None:
    story = Story()
    story.shake(2.0, "a")
    story.tell(3.0, events.PullEnded(story.attempt, "closed"))
    story.tell(3.0, events.ClaimFailed(story.attempt, "bus down"))
    story.chunks(5.0, *CHUNKS)
    story.tell(5.0, events.PullEnded(story.attempt))
    story.tell(5.0, events.CheckPassed(story.attempt))
    report = story.report
    assert (report.path, report.sources, report.transport) == ("storage", (), "storage")
    assert [(a.source, a.bytes, a.outcome) for a in report.attempts] == [("a", 0, "closed"), ("storage", 2000, "ok")]
    assert report.gbps == pytest.approx(2000 / 2.0 / 1e9)


def test_a_failed_start_says_why_and_is_not_verified() -> None:
    story = Story()
    story.tell(2.0, events.LoaderElected(1))
    story.chunks(3.0, 0)
    story.tell(4.0, events.PullEnded(story.attempt, "disk says no"))
    report = story.report
    assert (report.state, report.verified, report.error) == (Phase.FAILED, False, "disk says no")
    assert report.bytes_storage == 512
    assert report.attempts == (Attempt(2, "storage", "storage", 2.0, 512, "disk says no"),)
    assert report.seconds == 4.0


def test_skipped_workers_are_named_once_with_the_latest_reason() -> None:
    story = Story()
    story.tell(2.0, events.ClaimDeferred(1, "", (Skip("x", "busy"), Skip("y", "layout differs"))))
    story.tell(3.0, events.Expired(events.Timer.RETRY))
    story.tell(3.0, events.LoaderElected(2, "", (Skip("x", "excluded"),)))
    assert story.report.skipped == ("x: excluded", "y: layout differs")


def test_the_report_is_final_once_serving() -> None:
    story = peer()
    before = story.report
    story.tell(100.0, events.DrainRequested())
    story.tell(200.0, events.Drained())
    after = story.report
    assert after.state is Phase.GONE
    assert (after.seconds, after.attempts, after.timeline) == (before.seconds, before.attempts, before.timeline)
    assert after.verified


def test_a_start_that_is_cancelled_is_not_verified() -> None:
    story = Story()
    story.shake(2.0, "a")
    story.chunks(3.0, 0)
    story.tell(4.0, events.DrainRequested())
    report = story.report
    assert (report.state, report.verified) == (Phase.GONE, False)
    assert report.attempts == (Attempt(1, "a", "tcp", 2.0, 512, "cancelled"),)


def test_the_timeline_names_every_phase_when_it_began_and_from_whom() -> None:
    assert mixed().report.timeline == (
        Mark("BUILD", 0.0),
        Mark("DISCOVER", 1.0),
        Mark("HANDSHAKE", 2.0, "a"),
        Mark("TRANSFER", 2.0, "a"),
        Mark("DISCOVER", 4.0),
        Mark("FALLBACK", 4.0),
        Mark("VERIFY", 7.0),
        Mark("SERVE", 7.5),
    )


# --------------------------------------------------------------------------------------- progress


def test_progress_counts_what_landed_and_what_is_verified() -> None:
    story = Story()
    story.shake(2.0, "a")
    story.tell(3.0, events.BytesLanded(story.attempt, 600))
    progress = story.recorder.progress()
    assert (progress.phase, progress.source, progress.attempts) == (Phase.TRANSFER, "a", 1)
    assert (progress.bytes_landed, progress.bytes_verified, progress.bytes_total) == (600, 0, 2000)
    assert progress.rate == pytest.approx(600.0)
    assert progress.seconds == 3.0
    story.chunks(4.0, 0)
    assert story.recorder.progress().bytes_verified == 512


def test_progress_never_exceeds_the_whole_though_bytes_land_twice() -> None:
    story = Story()
    story.shake(2.0, "a")
    story.tell(3.0, events.BytesLanded(story.attempt, 5000))
    assert story.recorder.progress().bytes_landed == 2000


def test_progress_names_the_reason_why_a_path_was_left() -> None:
    story = Story()
    story.tell(2.0, events.ClaimFailed(1, "bus down"))
    progress = story.recorder.progress()
    assert (progress.phase, progress.source, progress.reason) == (Phase.FALLBACK, "storage", "bus down")


def test_a_report_before_anything_happened() -> None:
    report = Recorder("w", "key", "model", LAYOUT, 0.0).report()
    assert (report.state, report.path, report.verified, report.seconds) == (Phase.IDLE, "none", False, 0.0)


# --------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Failure.STORAGE, ColdStartFailed),
        (Failure.CONFLICT, TruthConflict),
        (Failure.CHECK, SkeletonError),
        (Failure.MEMORY, IntegrityError),
    ],
)
def test_each_failure_is_an_error_by_who_must_act(kind: Failure, error: type[ColdstartError]) -> None:
    state = Failed(Journey(LIMITS, detours=("a: closed", "disk says no")), kind, "disk says no")
    raised = failure(Story().report, state)
    assert type(raised) is error
    assert str(raised).startswith("model@key/single: disk says no")


def test_a_failed_start_names_all_paths_that_were_tried() -> None:
    journey = Journey(LIMITS, detours=("a: closed", "b: stalled", "disk says no"))
    state = Failed(journey, Failure.STORAGE, "disk says no")
    assert str(failure(Story().report, state)).endswith("a: closed; b: stalled")


def test_a_start_that_was_drained_before_serving_is_not_verified() -> None:
    """All chunks were right; but neither the self-check nor the publication came to an end."""
    story = Story()
    story.tell(2.0, events.LoaderElected(1))
    story.tell(3.0, *(events.ChunkVerified(2, chunk) for chunk in CHUNKS), events.PullEnded(2))
    story.tell(4.0, events.DrainRequested())
    report = story.recorder.report()
    assert (report.state, report.verified) == (Phase.GONE, False)


def test_why_storage_is_read_as_a_whole() -> None:
    story = storage()
    assert story.report.whole_read == ""
    story.recorder.built(1.0, "weight: bfloat16 here, float32 in the checkpoint")
    assert story.report.whole_read == "weight: bfloat16 here, float32 in the checkpoint"


def test_a_module_that_may_not_be_what_was_meant_is_the_first_warning() -> None:
    story = storage()
    assert story.report.warnings == ()
    story.recorder.built(1.0, notice="bare tensors, since nobody knows the class")
    assert story.report.warnings == ("bare tensors, since nobody knows the class",)


# ---------------------------------------------------------------------------------------- estimates


def weighing() -> Story:
    """A story in which storage is known to give 1 GB/s, and chunks are of 1 GB."""
    story = Story()
    story.state = initial(LIMITS)
    story.tell(1.0, events.Started(LAYOUT.chunks, chunk_bytes=10**9, storage_rate=1e9))
    return story


def test_a_wait_is_told_with_what_it_was_expected_to_take_and_took() -> None:
    story = weighing()
    story.tell(2.0, events.SourceClaimed(1, advert("a"), "root", rate=2e9))
    assert [each.took for each in story.report.estimates] == [None]
    story.tell(2.5, events.TruthReceived(1), events.OfferReceived(1, "tcp", b"", 1))
    story.chunks(4.0, *CHUNKS)
    story.tell(4.0, events.PullEnded(1))
    story.tell(9.0, events.CheckPassed(1))
    (each,) = story.report.estimates
    assert (each.at, each.waiting, each.storage, each.decision, each.took) == (2.0, 2.0, 4.0, "wait", 2.0)
    assert each.basis == ("4 GB missing", "2 GB/s (link)", "storage 1 GB/s, 0 others read it")


def test_a_change_of_mind_is_told_once_and_the_answer_of_the_store_with_it() -> None:
    story = weighing()
    queue = Queue(ahead=3, slots=2, used=2)
    for at in (2.0, 3.0, 3.5):
        story.tell(at, events.ClaimDeferred(1, "", queue=queue, rate=1e9))
    story.tell(6.0, events.ClaimDeferred(1, "", queue=queue, rate=1e9))
    assert [each.decision for each in story.report.estimates] == ["wait", "ask"]
    story.tell(6.1, events.StorageOpened(1, 1))
    story.chunks(14.0, *CHUNKS)
    story.tell(14.0, events.PullEnded(2), events.TruthPublished(2, "root"))
    first, second = story.report.estimates
    assert (first.decision, first.waiting, first.took) == ("wait", 4.0, 12.0)
    assert (second.decision, second.waiting, second.storage, second.took) == ("storage", 20.0, 8.0, 8.0)
    assert story.report.path == "storage"
    assert story.report.detours == ("waiting would take 20 s, storage 8 s",)


def test_minds_that_change_to_and_fro_are_told_in_few_words() -> None:
    story = weighing()
    for number in range(20):
        full = number % 2 == 1
        queue = Queue(ahead=3, slots=2, used=2, readers=9999 if full else 0)
        story.tell(2.0, events.ClaimDeferred(1, "", queue=queue, rate=1e6 if full else 4e9))
    assert [each.decision for each in story.report.estimates] == ["wait", "full"]
