"""Measured times of graphs, as files of a folder."""

from __future__ import annotations

import json
from pathlib import Path

from torch.fx import Graph

from ._graphs import digest_of

SCHEMA = "bucketeer-times-1"


def times_of(folder: Path, graph: Graph) -> bytes | None:
    """Give the times that were measured of this graph, if they were."""
    path = folder / f"{digest_of(graph)}.json"
    if not path.is_file():
        return None
    measured = json.loads(path.read_bytes())
    return json.dumps({"schema": SCHEMA, "ns": measured["ns"]}).encode()
