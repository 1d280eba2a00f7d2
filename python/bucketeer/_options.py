"""Keywords as the flags of a command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Union

from . import _native
from ._errors import OptionError

Option = Union[str, int, float, bool, Sequence[Union[str, int]], None]
"""The value of an option: sizes such as `"25MB"` or numbers of bytes, words, or several of them."""

Content = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any], None]
"""What is in a file: its content, as text or as what its JSON holds, or the path where it is."""

FILES = ("groups", "ops", "costs", "times", "own", "profile")
"""Options whose value is a file."""


@lru_cache(maxsize=None)
def known(command: str) -> dict[str, str]:
    """The options of a command by keyword, each with what follows it."""
    return {name.replace("-", "_"): takes for name, takes in _native.options(command)}


def flags(command: str, given: Mapping[str, object]) -> tuple[list[str], list[tuple[str, bytes]]]:
    """The words of the command line for these keywords, and the content of files that they name."""
    words: list[str] = []
    files: list[tuple[str, bytes]] = []
    for keyword, value in given.items():
        if value is None:
            continue
        name = keyword.rstrip("_")
        if name == "hints":
            words += hints(value)
        elif name not in known(command):
            raise unknown(command, keyword)
        elif name in FILES:
            words.append(flag(name, file(name, value, files)))
        else:
            words += option(command, name, value)
    return words, files


def flag(name: str, value: str) -> str:
    """An option with a value, which may begin as options do."""
    return f"--{name.replace('_', '-')}={value}"


def option(command: str, name: str, value: object) -> list[str]:
    """The words for an option that is no file."""
    takes = known(command)[name]
    if takes == "nothing":
        if not isinstance(value, bool):
            raise OptionError(f"{name}: expected True or False, found {value!r}")
        return [f"--{name.replace('_', '-')}"] if value else []
    if takes == "switch" and isinstance(value, bool):
        return [flag(name, "on" if value else "off")]
    parts: list[object] = [value]
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        parts = list(value)
    if not parts or any(isinstance(part, bool) or not isinstance(part, (str, int, float)) for part in parts):
        raise OptionError(f"{name}: expected a word, a number or several of them, found {value!r}")
    shown = [str(int(part)) if isinstance(part, float) and part.is_integer() else str(part) for part in parts]
    return [flag(name, part) for part in shown] if takes == "list" else [flag(name, ",".join(shown))]


def hints(value: object) -> list[str]:
    """The words for likely values of symbols."""
    if not isinstance(value, Mapping):
        raise OptionError(f"hints: expected a dictionary from symbols to numbers, found {value!r}")
    return [flag("hint", f"{symbol}={number}") for symbol, number in value.items()]


def file(name: str, value: object, files: list[tuple[str, bytes]]) -> str:
    """What an option that names a file gets: a path, or a name under which the content is put beside."""
    if name == "profile" and isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping):
        import json

        try:
            value = json.dumps(value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"{name}: {error}") from None
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise OptionError(f"{name}: expected text, a dictionary or a path, found {value!r}")
    label = f"<{name}>"
    files.append((label, bytes(value)))
    return label


def unknown(command: str, keyword: str) -> OptionError:
    """That there is no such option, and which one may have been meant."""
    import difflib

    near = difflib.get_close_matches(keyword, [*known(command), "hints"], n=1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    return OptionError(f"{command.replace('-', '_')} has no option `{keyword}`{meant}")
