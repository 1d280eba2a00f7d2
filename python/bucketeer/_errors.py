"""What is raised, and what is warned of."""

from __future__ import annotations


class Error(Exception):
    """What bucketeer raises: a file that cannot be read, a fault of bucketeer itself, or one of the kinds below."""


class InputError(Error):
    """The graph, or a file that goes with it, is at fault. The message shows the place, if there is one."""

    file: str | None
    """The file in which the fault stands, if it is known."""
    line: int | None
    """Its line, from 1."""
    column: int | None
    """Its column in characters, from 1."""
    source_line: str | None
    """The line itself, or the part of it around the column."""

    def __init__(
        self,
        message: str,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        source_line: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file, self.line, self.column, self.source_line = file, line, column, source_line

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.file, self.line, self.column, self.source_line)


class OptionError(Error, ValueError):
    """Options make no sense, or are not to be had of this graph."""


class RefusedError(Error):
    """A result is not proven, or a check cannot decide."""


class InputWarning(UserWarning):
    """A part of the input is at fault, and was left out."""
