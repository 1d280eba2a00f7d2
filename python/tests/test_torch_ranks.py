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
    assert "rank 1 would not launch what rank 0 does: in group `0`, launch 1 of rank 0 is all_gather of float32[2, 4], float32[2, 4]" in first["raised"]
    assert "that of rank 1 is all_gather of float32[2, 4]" in first["raised"]
    assert "rank 0 would not launch what rank 1 does" in second["raised"]
    # Both graphs are as they were.
    assert first["launches"] == second["launches"] == 3


def test_a_rank_that_compiles_nothing_is_named_after_the_time() -> None:
    first, second = ranks("missing")
    assert "within 5 s nothing came from rank 1" in first["raised"]
    assert second == {"rank": 1}


@pytest.mark.parametrize("case, reason", [("failing", "bucket_all_gathers_fx"), ("editing", "none left")])
def test_a_rank_that_cannot_rewrite_its_graph_keeps_the_others_from_it(case: str, reason: str) -> None:
    first, second = ranks(case)
    assert "rank 1 could not rewrite it, so that no rank may: " in first["raised"] and reason in first["raised"]
    assert reason in second["raised"]
    assert first["launches"] == second["launches"] == 3


def test_what_is_merged_has_to_be_the_same_and_not_only_as_large() -> None:
    first, second = ranks("order of members")
    assert "all_gather of float32[3, 4], float32[2, 4], float32[2, 4]" in first["raised"]
    assert "all_gather of float32[2, 4], float32[3, 4], float32[2, 4]" in second["raised"]


def test_groups_of_the_same_ranks_are_told_apart() -> None:
    first, second = ranks("two groups")
    assert "nothing came from rank 1" in first["raised"] and "nothing came from rank 0" in second["raised"]
    assert first["launches"] == second["launches"] == 3


def test_ranks_may_exchange_as_many_rows_as_they_like() -> None:
    assert ranks("exchange") == [{"rank": 0, "launches": 1}, {"rank": 1, "launches": 1}]


def test_graphs_that_launch_nothing_do_not_count() -> None:
    assert ranks("more graphs of its own") == [{"rank": 0, "launches": 1}, {"rank": 1, "launches": 1}]


def test_all_ranks_that_are_connected_hear_of_one_that_differs() -> None:
    said = ranks("a neighbour's neighbour")
    assert len(said) == 4 and all("raised" in one and one["launches"] == 3 for one in said)
    assert "does not rewrite it, so that no rank may" in said[3]["raised"]
