"""The project's README shows what happens inside torch.compile."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples/torch_step.py"


def without_times(text: str) -> str:
    return re.sub(r"in [0-9.]+ s", "in .. s", text)


def test_the_readme_shows_what_the_example_prints(fixtures: pathlib.Path) -> None:
    readme = (fixtures.parent / "README.md").read_text()
    found = re.search(r"```python\n(with bucketeer\.torch\..*?)```\n\n```text\n(.*?)```", readme, re.S)
    assert found is not None
    lines = [line.strip() for line in textwrap.dedent(EXAMPLE.read_text()).splitlines()]
    assert all(line.strip() in lines for line in found.group(1).splitlines())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    printed = "".join(f"{line}\n" for line in done.stdout.splitlines() if not line.startswith(("USDT", "ERROR")))
    assert without_times(printed) == without_times(found.group(2))
