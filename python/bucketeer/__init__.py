"""Merges the collectives of distributed training graphs into buckets, and says why."""

from ._native import version as __version__

__all__ = ["__version__"]
