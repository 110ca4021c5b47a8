"""Every setting: its name, type, unit, range, default, what it decides, and why the default is what it is.

Decides nothing else. A setting is added here, in one place: a field, annotated with its kind (``kinds.py``). Help, the
range check, ``coldstart config``, the template and the page of all settings follow from that. It must not read the
environment or a file; ``loading.py`` does, and ``replica.py`` uses the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from coldstart.config import launch, places
from coldstart.config.kinds import amount, count, gbps, ratio, seconds, text
from coldstart.plan import Limits
from coldstart.scrubbing import Pace
from coldstart.shelves.location import ShelfSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator may decide: each field is an argument, ``COLDSTART_<FIELD>``, or a key of the file.

    ``coldstart config --explain FIELD`` says what a field decides. Values are checked where they are used
    (:func:`coldstart.config.checked`), not when the struct is made.
    """

    redis: Annotated[
        str,
        text(
            "URL of the store: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` or `unix:///PATH`. Empty: the "
            "embedded Valkey of this machine. `none`: no coordination, storage only.",
            "Workers of one machine find each other with nothing set up; those of several need a store that all reach.",
            section="The store and the fleet",
        ),
    ] = ""
    redis_ca: Annotated[
        str,
        text(
            "File of the certificates by which the store is trusted (`rediss://`). Empty: the system's.",
            "Stores that are bought have a certificate that the system trusts; your own mostly has not.",
        ),
    ] = ""
    redis_cert: Annotated[
        str, text("File of our own certificate, where the store asks for one.", "Most stores ask for a password.")
    ] = ""
    redis_cert_key: Annotated[str, text("File of the key of our own certificate.", "It goes with `redis_cert`.")] = ""
    namespace: Annotated[
        str, text("Prefix of all keys, so that fleets can share a store.", "Short, as it is part of every key.")
    ] = "cs"
    keys: Annotated[
        str,
        text(
            "File of the fleet's keys (`coldstart keys new`), read again when it changes: every message and connection "
            "is then authenticated, and workers without the keys exchange nothing with this one. Empty: nothing is "
            "authenticated.",
            "Many stores and networks can be reached by the fleet alone.",
        ),
    ] = ""
    digest: Annotated[
        Literal["csfp1", "blake3", "blake2b"],
        text(
            "`csfp1` finds faults; `blake3` and `blake2b` are keyed (a `digest` line in `keys`) and also stand against "
            "somebody who chooses bytes. Fleets with different ones exchange nothing.",
            "It is computed on a GPU at memory speed, the others on a CPU.",
        ),
    ] = "csfp1"
    directory: Annotated[
        str,
        text(
            "Where the embedded Valkey lives. Empty: the user's runtime directory.",
            "The path of a unix socket has at most 107 bytes, and the runtime directory is the user's alone.",
        ),
    ] = ""
    host: Annotated[
        str,
        text(
            "Address at which peers reach this worker. Empty: the one that routes to the store.",
            "Whoever reaches the store over a network mostly reaches its peers over the same one.",
        ),
    ] = ""
    rack: Annotated[
        str,
        text(
            "What workers with a fast way to each other have in common: a rack, a switch, a zone. Those on one host, "
            "then those of one rack, are sent to each other first.",
            "Nothing on a machine says which rack it is in.",
        ),
    ] = ""
    lease: Annotated[
        float,
        seconds(
            "An advert lives so long without renewal; a dead worker is forgotten after it.",
            "It is renewed three times as often, so that two lost renewals do no harm, and a joiner is sent to a dead "
            "worker for seconds only.",
        ),
    ] = 6.0

    transports: Annotated[
        str,
        text(
            "Comma-separated names, in order of preference. Empty: all that can be used here, the quicker kind of link "
            "first.",
            "What was measured to be quicker is preferred anyhow; a fixed order is for those who know better.",
            section="Transfers",
        ),
    ] = ""
    connections: Annotated[
        int,
        count(
            "Parallel connections of one pull.",
            "Two are half as fast again as one, as measured; more of them take cores from the host.",
            least=1,
            most=64,
        ),
    ] = 2
    io_seconds: Annotated[
        float,
        seconds(
            "A connection that moves nothing for so long is dead.",
            "A joiner gives up sooner, after its `stall`; this frees what a vanished one has left behind.",
        ),
    ] = 10.0
    connect: Annotated[
        float,
        seconds(
            "A transport that connects before the first byte does it within this, or the next source is asked.",
            "The slowest set-up known, the first NCCL communicator of a process, takes 0.4 to 1.2 s.",
        ),
    ] = Limits().connect
    stall: Annotated[
        float,
        seconds(
            "A transfer in which nothing lands for so long is abandoned. What has landed is kept.",
            "A killed NCCL peer raises nothing for as long as one waits, so this clock is what finds it; on a link "
            "above the floor a step lands many times in a second.",
        ),
    ] = Limits().stall

    slots: Annotated[
        int,
        count(
            "How many joiners may pull from this worker at one time.",
            "Two keep the link full while one of them sets up or verifies; more divide it, and each is later a source.",
            least=1,
            most=1024,
            section="Lending",
        ),
    ] = 2
    lend_gbps: Annotated[
        float,
        gbps(
            "Cap on what this worker sends. 0: none.",
            "Lending slows a GPU's own work by 6 to 10 %, as measured; a cap is for links that requests need, too.",
        ),
    ] = 0.0
    drain: Annotated[
        float,
        seconds(
            "Transfers in flight may go on for so long after a drain is asked for. 0: they end at once.",
            "Well below the 30 s that Kubernetes leaves between SIGTERM and SIGKILL; whoever is cut off keeps its "
            "chunks and goes on elsewhere.",
            least=0,
        ),
    ] = Limits().drain
    scrub: Annotated[
        float,
        seconds(
            "A source digests its weights anew, chunk by chunk, so that they are through in so many seconds, and looks "
            "every few seconds whether they are still where they were: what was changed without a word is then lent no "
            "more. 0: never, for hosts that announce every change (`Replica.changing`).",
            "A changed source misleads joiners for minutes at most, and a gigabyte costs 0.7 s of one core per pass.",
            least=0,
        ),
    ] = 300.0
    scrub_share: Annotated[
        float,
        ratio(
            "Most of one core's time that `scrub` takes; large weights on a CPU take longer instead.",
            "Half a percent is less than the noise of what a host does besides.",
            least=0.0001,
        ),
    ] = Pace().share

    patience: Annotated[
        float,
        seconds(
            "All time that one cold start may lose on peers and coordination before storage is read. Time in which "
            "bytes arrive at the floor does not count, nor does following a live loader.",
            "The most that a start is worse than storage alone; a rollout that goes well loses far less.",
            least=0,
            section="How long a start waits",
        ),
    ] = Limits().patience
    answer: Annotated[
        float,
        seconds(
            "A source answers a handshake within this, or the next one is asked.",
            "Sources answer in milliseconds; the rest is for a host that is busy and a store that is slow.",
        ),
    ] = Limits().answer
    sources: Annotated[
        int,
        count(
            "How many sources are tried before storage is read.",
            "Three that fail in a row mostly have a reason in common, which a fourth would share.",
            least=1,
            most=100,
        ),
    ] = Limits().sources
    follow: Annotated[
        float,
        seconds(
            "Loaders that are alive and make progress are followed for so long altogether, then storage is read here "
            "too. Ranks of a group wait for each other as long.",
            "Large models take minutes from slow storage; one loader that hangs for ever must not hang all others.",
            least=0,
        ),
    ] = Limits().follow
    share: Annotated[
        float,
        seconds(
            "A source that already lends to another is taken only after so long in line.",
            "Whoever receives now lends in a moment, over a link that nobody shares yet.",
            least=0,
        ),
    ] = Limits().share
    crowd: Annotated[
        int,
        count(
            "Where so many others stand in line, the stream comes in two parts, from a source each. 0: never.",
            "A few form a short chain anyhow; for many, parts make it as deep as the logarithm of their number.",
            least=0,
            most=64,
        ),
    ] = Limits().crowd
    presence: Annotated[
        float,
        seconds(
            "A rank of a group that is not heard of for so long counts as a no.",
            "Long enough for a process that is started anew to take its place again, and no longer.",
            least=0.1,
        ),
    ] = Limits().presence
    build: Annotated[
        float,
        seconds(
            "Building the skeleton may take so long; then the start fails.",
            "Importing torch and a model's code from a cold network disk takes minutes; a build that hangs must end.",
        ),
    ] = 600.0

    storage_stall: Annotated[
        float,
        seconds(
            "A storage read in which nothing lands for so long has failed.",
            "Network file systems pause for many seconds and go on; there is nothing left to try after storage.",
            section="Storage, or a peer?",
        ),
    ] = Limits().storage_stall
    whole_load: Annotated[
        float,
        seconds(
            "A loader that brings everything at its end, with no progress before, takes at most this.",
            "Loaders of other libraries say nothing on the way, so that only the whole can be timed.",
        ),
    ] = Limits().whole_load
    floor_gbps: Annotated[
        float,
        gbps(
            "A peer slower than this costs patience. 0: any rate will do.",
            "A tenth of a gigabit per second: slower is a fault and no link. Set it to what your storage gives, and a "
            "start is never worse than storage by more than `patience`.",
        ),
    ] = Limits().floor / 1e9
    margin: Annotated[
        float,
        count(
            "Storage is read although there are sources where waiting for one is expected to take so many times as "
            "long. 0: never.",
            "Two joiners share a source's link by default, so a factor of 2 alone is no reason to leave it.",
            least=0,
            most=1000,
        ),
    ] = Limits().margin
    cache: Annotated[
        str,
        text(
            "Where the rates of links and of storage are kept from one process to the next. Empty: the user's cache "
            "directory. `none`: nowhere; links are not probed, and no wait is estimated. Configurations and tokenizers "
            "of checkpoints in object stores are kept there, too.",
            "What one process has measured is worth a week of better choices to the next.",
        ),
    ] = ""

    disk_cache: Annotated[
        str,
        text(
            "Directory in which weights that were read from an object store are kept for the next start on this "
            "machine. Empty: they are not.",
            "A peer or the store is often as quick.",
            section="Object stores",
        ),
    ] = ""
    disk_cache_gb: Annotated[
        float,
        amount(
            "What that directory may take; the least recently used goes first.",
            "A few large models, and far less than a GPU machine's disk.",
        ),
    ] = 100.0
    store_reads: Annotated[
        int,
        count(
            "Ranges of at most 8 MiB that are read from an object store at one time. Each takes 8 MiB of memory "
            "meanwhile.",
            "One connection of such a store gives some 0.1 GB/s, and so many make 1 GB/s or more.",
            least=1,
            most=256,
        ),
    ] = 16

    warn_gbps: Annotated[
        float,
        gbps(
            "A peer that gives less is warned of. 0: no warning.",
            "What is slow depends on the machines.",
            section="Warnings",
        ),
    ] = 0.0
    warn_share: Annotated[
        float,
        ratio(
            "A transfer that reaches less of what its link has given before is warned of. 0: no warning.",
            "What is usual depends on how many share a link.",
        ),
    ] = 0.0

    metrics_port: Annotated[
        int,
        count(
            "Port at which `coldstart worker` shows its metrics to Prometheus, under `/metrics`. 0: none.",
            "A library's host exports them as it does its own.",
            least=0,
            most=65_535,
            section="Metrics",
        ),
    ] = 0
    metrics_host: Annotated[
        str,
        text("Address at which this port is opened.", "Prometheus is on another machine, mostly."),
    ] = "0.0.0.0"

    @property
    def limits(self) -> Limits:
        """What the joiner's machine goes by."""
        return Limits(
            patience=self.patience,
            answer=self.answer,
            connect=self.connect,
            stall=self.stall,
            floor=self.floor_gbps * 1e9,
            sources=self.sources,
            follow=self.follow,
            share=self.share,
            crowd=self.crowd,
            storage_stall=self.storage_stall,
            whole_load=self.whole_load,
            presence=self.presence,
            drain=self.drain,
            margin=self.margin,
        )

    @property
    def transport_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.transports.split(",") if name.strip())

    @property
    def embedded_directory(self) -> Path:
        """The embedded Valkey's directory: one per user, on a path short enough for a socket."""
        return places.expanded(self.directory) if self.directory else places.runtime()

    @property
    def shelves(self) -> ShelfSettings:
        """What reading an object store may take of this machine; it gives up before storage is said to stand still."""
        own = self._own_directory
        return ShelfSettings(
            mirrors=None if own is None else own / "checkpoints",
            cache=places.expanded(self.disk_cache) if self.disk_cache else None,
            cache_bytes=round(self.disk_cache_gb * 1e9),
            reads=self.store_reads,
            io_seconds=self.io_seconds,
            retry_seconds=0.8 * self.storage_stall,
            allow_http=launch.http_is_allowed(),
        )

    @property
    def links_directory(self) -> Path | None:
        """Where link rates are kept; None: nowhere, for a user without a home too."""
        own = self._own_directory
        return None if own is None else own / "links"

    @property
    def _own_directory(self) -> Path | None:
        if self.cache == "none":
            return None
        return places.expanded(self.cache) if self.cache else places.cache()
