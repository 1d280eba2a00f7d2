"""Which PyTorch this is tested with."""

from __future__ import annotations

import warnings

TESTED = "2.15"
OLDEST = (2, 6)


def check() -> None:
    """Import torch, and warn of a version that nothing was tested with."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"bucketeer.torch needs PyTorch, tested with {TESTED}: pip install torch (found none: {error})") from error
    parts = torch.__version__.split("+")[0].split(".")
    try:
        found = (int(parts[0]), int(parts[1]))
    except (IndexError, ValueError):
        found = (0, 0)
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(f"bucketeer.torch needs PyTorch {oldest} or later, tested with {TESTED}; this is {torch.__version__}")
    if ".".join(parts[:2]) != TESTED:
        warnings.warn(f"bucketeer.torch is tested with PyTorch {TESTED}; this is {torch.__version__}", stacklevel=3)
