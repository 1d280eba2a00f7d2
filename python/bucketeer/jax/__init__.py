"""Merges the collectives of what jax compiles.

```python
import bucketeer.jax

with bucketeer.jax.bucketing(all_gather="500MB", all_reduce="25MB"):
    params, loss = step(params, batch)  # Compiled here, so its collectives are merged.

for report in bucketeer.jax.reports():
    print(report.module, report.before, report.after)
```

Needs jax 0.10.2. `docs/jax.md` says what happens, and what is refused.
"""

from ._private import UnsupportedJax  # First: it says what is missing. # isort: split
from ._compile import BucketingError, BucketingWarning
from ._context import bucketing
from ._report import Report, clear_reports, reports

__all__ = [
    "BucketingError",
    "BucketingWarning",
    "Report",
    "UnsupportedJax",
    "bucketing",
    "clear_reports",
    "reports",
]
