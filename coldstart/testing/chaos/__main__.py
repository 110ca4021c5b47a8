"""``python -m coldstart.testing.chaos SEED``: play one storm and tell it step by step."""

from __future__ import annotations

import sys

from coldstart.testing.chaos import storm


def main() -> int:
    """The exit status: whether a promise was broken."""
    outcome = storm(int(sys.argv[1]), journal=True)
    sys.stdout.write(f"{outcome}\ntrace {outcome.trace_hash}, {outcome.steps} steps\n")
    sys.stdout.write(f"{outcome.paths}, {outcome.faults}\n")
    return bool(outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
