"""The README shows what happens."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re

import pytest


def test_the_readme_shows_what_is_printed(fixtures: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.S)
    assert found is not None
    monkeypatch.chdir(fixtures.parent)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found.group(1), {})
    assert printed.getvalue() == found.group(2)
