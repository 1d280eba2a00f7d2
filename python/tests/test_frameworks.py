"""What is said where a framework is missing. Nothing of it is needed to run this."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module, framework, advice",
    [("bucketeer.torch", "torch", "pip install torch"), ("bucketeer.jax", "jax", "pip install jax==0.10.2")],
)
def test_a_framework_that_is_missing_is_named_with_what_to_install(module: str, framework: str, advice: str) -> None:
    program = f"import sys; sys.modules[{framework!r}] = None\nimport bucketeer\ntry:\n    import {module}\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert framework in done.stdout and advice in done.stdout
