"""Merges the collectives of distributed training graphs into buckets, and says why.

Functions take a graph as text or bytes, or the path of its file, and give back values; nothing is printed.
"""

from __future__ import annotations

from ._errors import Error, InputError, InputWarning, OptionError, RefusedError

TYPE_CHECKING = False
"""What type checkers take for true. The module that has it takes longer to import than this package."""

if TYPE_CHECKING:
    from . import reports as reports
    from ._native import version as __version__
    from ._text import (
        Checked,
        Inspected,
        Plan,
        Rewritten,
        Sweep,
        Verified,
        check_ranks,
        draw,
        inspect,
        plan,
        rewrite,
        sweep,
        verify,
    )

__all__ = [
    "Checked",
    "Error",
    "InputError",
    "InputWarning",
    "Inspected",
    "OptionError",
    "Plan",
    "RefusedError",
    "Rewritten",
    "Sweep",
    "Verified",
    "__version__",
    "check_ranks",
    "draw",
    "inspect",
    "plan",
    "reports",
    "rewrite",
    "sweep",
    "verify",
]


# Type checkers would take every name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads what is asked for when it is first asked for, so that the import of the package takes no time."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found: object
        if name == "__version__":
            found = import_module("._native", __name__).version
        elif name == "reports":
            found = import_module(".reports", __name__)
        else:
            found = getattr(import_module("._text", __name__), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
