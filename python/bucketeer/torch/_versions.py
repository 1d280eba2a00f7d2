"""Which PyTorch this is tested with."""

from __future__ import annotations

import warnings

TESTED = "2.15"


def check() -> None:
    """Import torch, and warn of a version that nothing was tested with."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"bucketeer.torch needs PyTorch, tested with {TESTED}: pip install torch (found none: {error})") from error
    try:
        # Before, a hook took one pass, and those that a user has set could not be kept.
        from torch._inductor.custom_graph_pass import get_custom_graph_passes  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"bucketeer.torch needs a PyTorch whose hooks take lists of passes, tested with {TESTED}; this is {torch.__version__}"
        ) from error
    parts = torch.__version__.split("+")[0].split(".")
    if ".".join(parts[:2]) != TESTED:
        warnings.warn(f"bucketeer.torch is tested with PyTorch {TESTED}; this is {torch.__version__}", stacklevel=3)
