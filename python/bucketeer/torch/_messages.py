"""What is said, and what is raised."""

from __future__ import annotations

import logging

from .._errors import Error

log = logging.getLogger("torch._inductor.bucketeer")


class BucketeerWarning(UserWarning):
    """A graph was left as it was."""


class ConflictError(Error):
    """Inductor's own bucketing or overlap scheduling is on: two passes would decide the same."""


class RanksDifferError(Error):
    """Ranks would not launch the same."""
