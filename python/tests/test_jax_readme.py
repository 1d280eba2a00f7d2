"""The project's README shows what happens inside JAX."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)


def test_the_readme_shows_what_the_step_prints(fixtures: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    import jax_programs

    import bucketeer.jax

    readme = (fixtures.parent / "README.md").read_text()
    found = re.search(r"```python\n(with bucketeer\.jax\..*?)```\n\n```text\n(.*?)```", readme, re.S)
    assert found is not None
    program = jax_programs.fsdp_partitioned()
    params, batch = program.start()
    bucketeer.jax.clear_reports()
    capsys.readouterr()
    exec(found.group(1), {"bucketeer": bucketeer, "step": program.step, "params": params, "batch": batch})
    without_times = lambda text: re.sub(r"\([0-9.]+ s\)", "(.. s)", text)  # noqa: E731
    assert without_times(capsys.readouterr().out) == without_times(found.group(2))
