"""What an engine's configuration means for its weights: who holds the same, and what is refused.

Decides from facts alone. Two engines exchange weights only if everything here that may change a byte
of the model format is equal: a fact too many costs a read of storage, one too few costs the truth its
meaning. It must not know vLLM (``engine.py`` collects the facts) nor modules (``survey.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator

import msgspec

from coldstart.ports import Rank

RULES = 1
"""Number of the rules by which carried tensors are chosen and ordered here; part of every identity."""

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Axis(msgspec.Struct, frozen=True):
    """One axis of parallelism: this process's place on it, and how many there are."""

    at: int = 0
    size: int = 1


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process, as far as its weights go.

    Args:
        version: of vLLM. ``model``: the class it makes. ``config``: the model's configuration as JSON.
        dtype: of the weights. ``quantization``: vLLM's name of the method, empty for none.
        cache_dtype: of the key-value cache; some models hold scales for it.
        platform: the kind of device. ``convert``: whether the model was turned into another kind.
        draft: whether this is the draft model of speculative decoding.
        more: whatever else a plugin of vLLM has put into its configuration, as text.
        sleeps, balances, offloads, encoder_only, streams: features that move, drop or fetch weights elsewhere.
    """

    version: str
    model: str
    config: str
    dtype: str
    quantization: str = ""
    cache_dtype: str = ""
    platform: str = "cpu"
    convert: str = ""
    draft: bool = False
    more: str = ""
    tensor: Axis = Axis()
    pipeline: Axis = Axis()
    expert: Axis = Axis()
    data: Axis = Axis()
    context: Axis = Axis()
    sleeps: bool = False
    balances: bool = False
    offloads: bool = False
    encoder_only: bool = False
    streams: bool = False


def refusals(facts: Facts) -> tuple[str, ...]:
    """Why these weights are not cold-started, in words; empty if they may be."""
    return tuple(_refusals(facts))


def _refusals(facts: Facts) -> Iterator[str]:
    if facts.platform not in ("cpu", "cuda"):
        yield f"memory of the platform {facts.platform} cannot be lent"
    if facts.quantization:
        yield f"the model is quantised ({facts.quantization}), and its loaders set more than tensors"
    if facts.sleeps:
        yield "sleep mode takes the memory from under weights that others may read"
    if facts.balances:
        yield "expert load balancing moves experts in place"
    if facts.offloads:
        yield "weights are offloaded, so they do not lie on one device"
    if facts.context.size > 1:
        yield "what prefill context parallelism does to weights is not proven"
    if facts.encoder_only:
        yield "only a part of the checkpoint is loaded (mm-encoder-only)"
    if facts.streams:
        yield "the weights come from an object store"


def rank_of(facts: Facts) -> Rank:
    """The coordinates that weights depend on; replicas of data parallelism count, since experts may be cut by them."""
    return Rank(
        tp=facts.tensor.at,
        tp_size=facts.tensor.size,
        pp=facts.pipeline.at,
        pp_size=facts.pipeline.size,
        ep=facts.expert.at,
        ep_size=facts.expert.size,
        dp=facts.data.at,
        role="draft" if facts.draft else "target",
    )


def identity_of(facts: Facts) -> str:
    """Short text, different wherever a byte of the model format may be."""
    digest = hashlib.blake2b(msgspec.msgpack.encode((RULES, facts)), digest_size=12).hexdigest()
    return f"vllm/{facts.version}/{facts.model}/{facts.dtype}/{digest}"


def other_files(names: Collection[str], indexed: Collection[str] | None) -> str:
    """Why vLLM would read other files of a directory than coldstart's fingerprint covers; empty if it would not.

    Args:
        names: of all files in the directory.
        indexed: those that ``model.safetensors.index.json`` names; None without one.
    """
    stored = sorted(name for name in names if name.endswith(".safetensors"))
    if not stored:
        return "there are no safetensors"
    if any(name.startswith("consolidated") for name in stored):
        return "there are consolidated weights beside or instead of the model's"
    if indexed is None and len(stored) > 1:
        return f"there are {len(stored)} safetensors files and no {INDEX}"
    if indexed is not None and SINGLE in stored and set(indexed) != {SINGLE}:
        return f"there are both {SINGLE} and {INDEX}"
    return ""
