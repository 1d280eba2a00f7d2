"""The seam to the library: text in, text out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """What a rewrite made of a text."""

    text: str
    before: dict[str, int]
    after: dict[str, int]
    buckets: int
    remarks: tuple[str, ...]


def rewrite(text: str, options: dict[str, Any]) -> Rewritten:
    """Merges the collectives of HLO text, in one buffer each, with groups as lists."""
    # TODO: call `bucketeer.rewrite` once it is there; this starts the program instead.
    words = [f"--verify={'on' if options['verify'] else 'off'}"]
    for name, value in options.items():
        if name != "verify":
            words.append(f"--{name.replace('_', '-')}={value}")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.hlo")
        command = [os.environ.get("BUCKETEER", "bucketeer"), "rewrite", "-", "--mode", "concat"]
        command += ["--groups-as", "lists", "-q", "--json", "-o", out, *words]
        ran = subprocess.run(command, input=text, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip())
        with open(out, encoding="utf-8") as file:
            return of_report(file.read(), json.loads(ran.stdout))


def of_report(text: str, document: dict[str, Any]) -> Rewritten:
    """A text with what its report says."""
    (graph,) = document["graphs"]
    before, after = {}, {}
    for row in graph["collectives"]:
        for counts, side in ((before, "before"), (after, "after")):
            counts[row["kind"]] = counts.get(row["kind"], 0) + row[side]["count"]
    alone = [
        f"{remark['name']} is left alone: {remark['alone']['because']}"
        for remark in graph["remarks"]
        if "alone" in remark
    ]
    return Rewritten(text, before, after, len(graph["buckets"]), tuple(alone))
