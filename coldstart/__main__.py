"""``coldstart`` and ``python -m coldstart``: the way into the command line (``cli/main.py``).

Decides only that Ctrl-C ends it without a traceback from the first moment on, while its modules are still imported.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and exit with its code."""
    try:
        from coldstart.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
