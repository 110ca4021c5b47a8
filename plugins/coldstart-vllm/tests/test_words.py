"""The line in vLLM's log says where the weights came from, whatever the path."""

from __future__ import annotations

import pytest
from coldstart_vllm.words import arrived

from coldstart import Phase, Report


def report(path: str, sources: tuple[str, ...], **more: object) -> Report:
    values: dict[str, object] = {
        "worker": "w", "shard": "0123456789", "model": "m", "state": Phase.SERVE, "path": path, "verified": True,
        "against": "published truth", "sources": sources, "transport": "tcp" if sources else "", "route": "",
        "bytes_total": 3_400_000, "bytes_peer": 1_000_000, "bytes_storage": 0, "gbps": 0.5, "link_gbps": 0.0,
        "link_from": "none", "link_age": 0.0, "share": 0.0, "seconds": 2.0, "phases": {}, "attempts": (),
        "timeline": (), "detours": (), "skipped": (), "warnings": (), "root": "",
    }  # fmt: skip
    return Report(**{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "sources", "words"),
    [
        ("storage", (), "weights from storage: 3.4 MB"),
        ("peer", ("a",), "weights from peer a over tcp: 3.4 MB (1.0 from peers) at 0.500 GB/s, 2.00 s, every byte"),
        ("peer", ("a", "b"), "weights from peer a+b over tcp:"),
        ("mixed", ("a",), "weights from peer a over tcp and from storage:"),
    ],
)
def test_the_path(path: str, sources: tuple[str, ...], words: str) -> None:
    assert words in arrived(report(path, sources))


def test_what_proves_it_and_why_it_took_another_way() -> None:
    line = arrived(report("mixed", ("a",), detours=("a: closed",), route="rdma"))
    assert "verified against the published truth (shard 01234567); detours: a: closed" in line
    assert "over rdma" in line
    assert "NOT verified" in arrived(report("storage", (), verified=False))
