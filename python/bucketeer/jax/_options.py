"""What a user asks for."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .. import __version__

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""The kinds of collectives that can be bucketed here."""

DEFAULT_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
"""The kinds that are bucketed where none is named."""

XLA_CAP_BYTES = 30 * 2**20 + 7
"""The cap of XLA's combiners on GPUs."""

PATHS = ("auto", "written", "partitioned")
"""The values of the option `path`."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `bucketing`, as plain values. Equal options compile to equal executables."""

    all_gather: str | int | None = None
    reduce_scatter: str | int | None = None
    all_reduce: str | int | None = None
    all_to_all: str | int | None = None
    policy: str | None = None
    memory: str | int | None = None
    verify: bool = True
    path: str = "auto"
    strict: bool = False

    def rewrite_options(self) -> dict[str, Any]:
        """The options that the rewrite is called with."""
        given = {name: getattr(self, name) for name in (*KINDS, "policy", "memory")}
        if self.policy == "xla" and not any(given[kind] for kind in KINDS):
            # By itself, this policy asks for permutes as well, which cannot be merged here.
            given |= dict.fromkeys(DEFAULT_KINDS, XLA_CAP_BYTES)
        return {name: value for name, value in given.items() if value is not None} | {"verify": self.verify}

    def kinds(self) -> list[str]:
        """The kinds that are bucketed."""
        named = [kind for kind in KINDS if getattr(self, kind) is not None]
        return [kind for kind in named or DEFAULT_KINDS if getattr(self, kind) != "off"]

    def cache_key(self) -> str:
        """What the key of a compiled module has to say of this package."""
        fields = dataclasses.asdict(self)
        del fields["strict"]  # Changes what is raised, not what is compiled.
        return f"bucketeer {__version__} {json.dumps(fields, sort_keys=True)}"
