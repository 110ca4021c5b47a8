"""One line of a cold start for vLLM's log."""

from __future__ import annotations

from coldstart import Progress, Report


def arrived(report: Report) -> str:
    """Where the weights came from, how fast, and what proves them."""
    source = f"peer {'+'.join(report.sources)} over {report.route or report.transport}" if report.sources else "storage"
    if report.path == "mixed":
        source += " and from storage"
    proof = f"every byte verified against the {report.against}" if report.verified else "NOT verified"
    detours = f"; detours: {', '.join(report.detours)}" if report.detours else ""
    return (
        f"weights from {source}: {report.bytes_total / 1e6:.1f} MB ({report.bytes_peer / 1e6:.1f} from peers) at "
        f"{report.gbps:.3f} GB/s, {report.seconds:.2f} s, {proof} (shard {report.shard[:8]}){detours}"
    )


def step(progress: Progress) -> str:
    """Where a cold start stands."""
    source = f" from {progress.source}" if progress.source else ""
    return (
        f"{progress.phase.value}{source}, {progress.bytes_verified / 1e6:.1f} of {progress.bytes_total / 1e6:.1f} MB "
        f"verified after {progress.seconds:.2f} s"
    )
