"""Ranks compare what they would launch before anything runs."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

HERE = pathlib.Path(__file__).resolve().parent


def ranks(case: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-m", "agreeing.ranks", case]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda one: one["rank"])


def test_ranks_with_the_same_options_agree() -> None:
    assert ranks("same") == [{"rank": 0, "launches": 1}, {"rank": 1, "launches": 1}]


def test_ranks_with_other_caps_are_named_with_the_first_launch_that_differs() -> None:
    first, second = ranks("caps")
    assert "rank 1 would not launch what rank 0 does: in group `0`, launch 1 of rank 0 is all_gather of float32[24]" in first["raised"]
    assert "that of rank 1 is all_gather of float32[2, 4]" in first["raised"]
    assert "rank 0 would not launch what rank 1 does" in second["raised"]
    # Both graphs are as they were.
    assert first["launches"] == second["launches"] == 3


def test_a_rank_that_compiles_nothing_is_named_after_the_time() -> None:
    first, second = ranks("missing")
    assert "within 5 s nothing came from rank 1" in first["raised"]
    assert second == {"rank": 1}


def test_a_rank_that_cannot_rewrite_its_graph_keeps_the_others_from_it() -> None:
    first, second = ranks("failing")
    assert "rank 1 could not rewrite it, so that no rank may: ConflictError" in first["raised"]
    assert "bucket_all_gathers_fx" in second["raised"]
    assert first["launches"] == second["launches"] == 3
