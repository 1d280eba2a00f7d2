"""What a user asks for, as the flags of the command line, which check it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import _native, _options

# With one of these, launches and waits are placed by what they cost.
_PLANS = ("profile", "costs", "own")


@dataclass(frozen=True)
class Flags:
    """What to do to a graph."""

    words: tuple[str, ...]
    """The words of `rewrite`, or of `plan` where `plans` says so."""
    files: tuple[tuple[str, bytes], ...]
    """What is in the files that words name."""
    plans: bool
    """Whether launches and waits are placed by the costs of a profile."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *, verify: bool) -> Flags:
        """Turn keywords into flags: `all_gather="500MB"` is `--all-gather=500MB`. None is left out, files are read now.

        Raises `bucketeer.OptionError` if the command line would not take them.
        """
        options = {name: _content(name, value) for name, value in given.items() if value is not None}
        plans = any(name in options for name in _PLANS)
        # A plan is always proven.
        words, files = _options.flags("plan" if plans else "rewrite", options if plans else {**options, "verify": verify})
        _native.check_flags(words, files, plans)
        return cls(tuple(words), tuple(files), plans)


def _content(name: str, value: Any) -> Any:
    """Read a file that an option names: it may have changed when a graph is compiled."""
    is_file = isinstance(value, os.PathLike) or (name == "profile" and isinstance(value, str) and Path(value).is_file())
    return Path(value).read_bytes() if is_file and name in _options.FILES else value


@cache
def build() -> str:
    """Identify this build: what the package's own files hold."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in [Path(_native.__file__), *sorted(package.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
