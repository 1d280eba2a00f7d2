"""Buckets the collectives of graphs that PyTorch compiles.

```python
import bucketeer.torch

bucketeer.torch.enable(all_gather="500MB", reduce_scatter="500MB")
```
"""

from __future__ import annotations

from . import _versions

_versions.check()

from ._dump import Dump, dump
from ._enable import Enabled, enable
from ._measure import Measured, measure
from ._messages import BucketeerWarning, ConflictError, RanksDifferError
from ._pass import BucketeerPass
from ._reports import Report, reports

__all__ = [
    "BucketeerPass",
    "BucketeerWarning",
    "ConflictError",
    "Dump",
    "Enabled",
    "Measured",
    "RanksDifferError",
    "Report",
    "dump",
    "enable",
    "measure",
    "reports",
]
