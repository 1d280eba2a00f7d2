"""Training under torch.compile, on ranks that are processes: with buckets, no bit is another."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

HERE = pathlib.Path(__file__).resolve().parent

# Launches of a step, by kind, without and with: each kind becomes one, but for exchanges, which are not asked for, and what has to
# wait for another. Of a norm and of an attention's projections, tensor parallelism gathers and scatters along the way.
GATHERS_AND_SCATTERS = {
    "simple_fsdp": (18, 1, 18, 1),
    "moe": (10, 1, 10, 1),
    "dynamic_batch": (12, 1, 12, 1),
    "custom_operator": (12, 1, 12, 1),
    "tensor_parallel": (8, 8, 12, 8),
}


@cache
def trained(world: int, models: tuple[str, ...], options: str = "{}") -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "training.ranks", str(world), *models, "--options", options]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=1200, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["model"]: one for one in found}


ALL = ("simple_fsdp", "hsdp", "tensor_parallel", "moe", "dynamic_batch", "custom_operator")
WORLDS = [2, pytest.param(4, marks=pytest.mark.long)]


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world} ranks")
def of(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """What came of a model on so many ranks. All are trained at once, by the first test that asks."""
    return lambda model: trained(request.param, ALL)[model]


@pytest.mark.parametrize("model", ALL)
def test_losses_gradients_and_parameters_are_the_same_bit_for_bit(of: Callable[[str], dict[str, Any]], model: str) -> None:
    seen = of(model)
    assert seen["differences"] == []
    # It learns, so that there is something to be the same.
    assert len(set(seen["losses"])) == len(seen["losses"]) == 3
    assert seen["proofs"] and set(seen["proofs"]) == {"equal"}


@pytest.mark.parametrize("model", GATHERS_AND_SCATTERS)
def test_gathers_and_scatters_of_a_step_are_fewer(of: Callable[[str], dict[str, Any]], model: str) -> None:
    gathers, gathers_left, scatters, scatters_left = GATHERS_AND_SCATTERS[model]
    launches = of(model)["launches"]
    assert launches["without"] == {"all_gather": gathers, "reduce_scatter": scatters}
    assert launches["with"] == {"all_gather": gathers_left, "reduce_scatter": scatters_left}


def test_gradients_of_copies_of_shards_are_scattered_once_and_reduced_once(of: Callable[[str], dict[str, Any]]) -> None:
    seen = of("hsdp")
    # On two ranks a shard is the whole.
    sharded = {"all_gather": 12, "reduce_scatter": 12} if seen["world"] == 4 else {}
    assert seen["launches"]["without"] == {"all_reduce": 12, **sharded}
    assert seen["launches"]["with"] == {kind: 1 for kind in ["all_reduce", *sharded]}


@pytest.mark.parametrize("model", ALL)
def test_the_second_run_finds_its_graphs_in_inductors_cache(of: Callable[[str], dict[str, Any]], model: str) -> None:
    seen = of(model)
    assert seen["cache"] == {"fxgraph_cache_hit": 2}
    assert seen["compiled again"] == []


def test_a_planned_step_computes_the_same() -> None:
    seen = trained(2, ("simple_fsdp",), json.dumps({"profile": "h100", "effort": "low"}))["simple_fsdp"]
    assert seen["differences"] == []
    assert sum(seen["launches"]["with"].values()) < sum(seen["launches"]["without"].values()) == 36
    assert seen["cache"] == {"fxgraph_cache_hit": 2}
