"""What the bytes are called: model version, rank coordinates, shard; and what they must be: truth.

Decides which workers hold the same weights. A shard's key changes with anything that changes
the bytes in memory: the checkpoint's content, the skeleton builder and its options, the
requested dtype, the rank. It must not read files (``checkpoint.py`` computes the fingerprint)
nor know how digests are made (``digest.py``). What can happen to a shard is in ``events``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

import msgspec

from coldstart.errors import ConfigError, IntegrityError
from coldstart.layout import Layout
from coldstart.probe import MOST_NUMBERS, Probe

Id = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,96}\Z")]
"""What peers may call things: no separators of paths, keys or URLs."""

_ID = re.compile(r"\A[A-Za-z0-9_.:-]{1,96}\Z")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: for all three, where others wrote them."""

DIGEST_BYTES = 16
"""Bytes per chunk digest."""


def is_id(text: str) -> bool:
    """Whether ``text`` may name a worker, an inbox or a transfer."""
    return _ID.match(text) is not None


class Rank(msgspec.Struct, frozen=True):
    """Coordinates of one rank in its group, and the role of the model it holds."""

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    ep: int = 0
    ep_size: int = 1
    dp: int = 0
    role: Literal["target", "draft"] = "target"

    def __str__(self) -> str:
        named = [
            f"{axis}{at}of{size}"
            for axis, at, size in (
                ("tp", self.tp, self.tp_size),
                ("pp", self.pp, self.pp_size),
                ("ep", self.ep, self.ep_size),
            )
            if size > 1
        ]
        if self.dp:
            named.append(f"dp{self.dp}")
        if self.role == "draft":
            named.append("draft")
        return "-".join(named) or "single"


def checked(rank: Rank) -> Rank:
    """``rank`` as it is.

    Raises:
        ConfigError: it is none, or a coordinate is not one of its axis's.
    """
    if not isinstance(rank, Rank):
        raise ConfigError(f"rank is {rank!r:.80}", advice="give a coldstart.Rank")
    axes = (("tp", rank.tp, rank.tp_size), ("pp", rank.pp, rank.pp_size), ("ep", rank.ep, rank.ep_size))
    for axis, at, size in axes:
        if not 0 <= at < size:
            raise ConfigError(f"rank {axis}={at} of {axis}_size={size} cannot be", advice="ranks are counted from 0")
    if rank.dp < 0:
        raise ConfigError(f"rank dp={rank.dp} cannot be", advice="ranks are counted from 0")
    return rank


class ModelVersion(msgspec.Struct, frozen=True):
    """Identity of a checkpoint and of everything that changes its bytes in memory.

    Args:
        name: for people only (usually the directory's name); not part of the identity.
        checkpoint: fingerprint of the checkpoint's files, hex.
        skeleton: the builder's name and version of its layout rules, ``name/options``.
        dtype: requested dtype, or empty for the checkpoint's own.
        revision: free text by which an operator separates versions on purpose.
    """

    name: str
    checkpoint: str
    skeleton: str
    dtype: str = ""
    revision: str = ""


class Shard(msgspec.Struct, frozen=True):
    """What one rank holds."""

    model: ModelVersion
    rank: Rank = Rank()

    @property
    def key(self) -> str:
        """32 hex digits: equal keys mean interchangeable bytes."""
        identity = (
            self.model.checkpoint,
            self.model.skeleton,
            self.model.dtype,
            self.model.revision,
            msgspec.structs.astuple(self.rank),
        )
        return hashlib.blake2b(msgspec.msgpack.encode(identity), digest_size=16).hexdigest()

    def __str__(self) -> str:
        return f"{self.model.name}@{self.key[:8]}/{self.rank}"


class Truth(msgspec.Struct, frozen=True):
    """The chunk digests of one shard in one layout, published by a worker that read storage.

    ``digests`` is the concatenation of 16-byte digests in chunk order; ``algorithm`` names the
    digest (``digest.py``), so that a change of algorithm can never look like corruption. ``probe`` is
    what the publisher's module computed. It is no part of the root: bytes decide, and two readers of the
    same bytes may differ in the last digits of what they compute.
    """

    shard: str
    layout: Layout
    algorithm: str
    digests: bytes
    probe: Probe | None = None

    def digest(self, chunk: int) -> bytes:
        """The 16-byte digest that chunk ``chunk`` must have."""
        return self.digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    @property
    def root(self) -> str:
        """Hex BLAKE2b-256 over shard, layout, algorithm and digests: one name for all the bytes."""
        body = (self.shard, self.layout.digest, self.algorithm, self.digests)
        return hashlib.blake2b(msgspec.msgpack.encode(body), digest_size=32).hexdigest()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def lineage(layout: Layout, algorithm: str, *, sealed: bool = False) -> str:
    """32 hex digits: equal where layout and digest algorithm are, so that a truth of one means something to another.

    Workers with keys (``sealed``) and without have different ones: neither could believe the other.
    """
    words = (layout.digest, algorithm, *(("sealed",) if sealed else ()))
    return hashlib.blake2b(msgspec.msgpack.encode(words), digest_size=16).hexdigest()


MAX_TRUTH_BYTES = 64 * 1024 * 1024
"""Larger records are refused before decoding (4,608 tensors and 1,000 chunks need under 1 MB)."""


def decode_truth(data: bytes, *, shard: str, root: str = "") -> Truth:
    """A truth record from the bus, checked against the root it was announced under, if it was.

    Raises:
        IntegrityError: too large, malformed, of another shard, or not matching ``root``.
    """
    if len(data) > MAX_TRUTH_BYTES:
        raise IntegrityError(f"truth record of {len(data)} bytes for shard {shard[:8]} is over the limit")
    try:
        truth = msgspec.msgpack.decode(data, type=Truth)
    except UNREADABLE as error:
        raise IntegrityError(f"truth record for shard {shard[:8]} is malformed: {error}") from error
    if truth.shard != shard or (root and truth.root != root):
        raise IntegrityError(f"truth record for shard {shard[:8]} does not match its announced root {root[:12]}")
    if truth.probe is not None and len(truth.probe.numbers) > MOST_NUMBERS:
        raise IntegrityError(f"truth record for shard {shard[:8]} has a probe of {len(truth.probe.numbers)} numbers")
    if truth.layout.chunk_bytes <= 0 or any(nbytes <= 0 for nbytes in truth.layout.storages):
        raise IntegrityError(f"truth record for shard {shard[:8]} has a layout that cannot be")
    if len(truth.digests) != truth.layout.chunks * DIGEST_BYTES:
        raise IntegrityError(f"truth record for shard {shard[:8]} has digests for the wrong number of chunks")
    return truth
