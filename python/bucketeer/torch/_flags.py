"""What a user asks for, as the flags of the command line, which check it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import __version__, _native

# Files whose content decides, and not their names.
_FILES = ("costs", "own", "times")


@dataclass(frozen=True)
class Flags:
    """What to do to a graph."""

    words: tuple[str, ...]
    """The flags of `rewrite`, or of `plan` where `plans` says so."""
    plans: bool
    """Whether launches and waits are placed by the costs of a profile."""
    verify: bool
    """Whether a result that is not proven is refused."""

    @classmethod
    def of(cls, options: Mapping[str, Any], *, verify: bool) -> Flags:
        """Turn keyword arguments into flags: `all_gather="500MB"` is `--all-gather 500MB`. None is left out."""
        given = {name: value for name, value in options.items() if value is not None}
        plans = any(name in given for name in ("profile", "costs", "own"))
        words: list[str] = []
        for name, value in given.items():
            flag = "--" + name.replace("_", "-")
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if item is True:
                    words.append(flag)
                elif item is not False:
                    words.append(f"{flag}={os.fspath(item) if isinstance(item, os.PathLike) else item}")
        return cls(tuple(words), plans, verify)

    def files(self) -> list[Path]:
        """Give the files that the flags name."""
        named = (word.partition("=") for word in self.words)
        return [Path(value) for flag, _, value in named if value and (flag[2:] in _FILES or (flag == "--profile" and Path(value).is_file()))]


@cache
def build() -> str:
    """Identify this build: the version, and what the package's own files hold."""
    digest = hashlib.sha256(__version__.encode())
    package = Path(__file__).parent
    for path in [Path(_native.__file__), *sorted(package.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
