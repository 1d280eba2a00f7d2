"""`python -m bucketeer`: the command line."""

from __future__ import annotations

import signal
import sys

from ._native import main as run


def main() -> int:
    """Runs the command line on the arguments of this process; its exit code."""
    # Python notes an interrupt and acts on it later, and no Python runs before the command is done.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run(["bucketeer", *sys.argv[1:]], [sys.executable, "-m", "bucketeer"])


if __name__ == "__main__":
    sys.exit(main())
