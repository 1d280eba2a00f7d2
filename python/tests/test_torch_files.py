"""What bucketeer writes of a step of PyTorch: its graphs, for use elsewhere, and what its calls take."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketeer
import bucketeer.torch as plugin

RANKS = 8


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    """Rank 3 of eight, without the others: no cluster is needed to see what a step is."""
    dist.init_process_group("fake", rank=3, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@torch.library.custom_op("files::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    """An operator of the user's own."""
    return x.clone()


noted.register_fake(lambda x: torch.empty_like(x))
noted.register_autograd(lambda context, gradient: gradient)


class Model(nn.Module):
    """Four layers whose weights are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = nn.ParameterList([torch.randn(1, RANKS) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for shard in self.shards:
            x = noted(x @ collectives.all_gather_tensor_autograd(shard, 0, dist.group.WORLD)).relu()
        return x


def test_a_dump_is_all_that_the_command_line_needs(tmp_path: pathlib.Path) -> None:
    model = Model()
    model.shards[1].grad = kept = torch.ones(1, RANKS)
    dump = plugin.dump(model, torch.randn(5, RANKS), tmp_path / "step")
    assert model.shards[0].grad is None and model.shards[1].grad is kept and kept.eq(1).all()
    forward, backward = dump.graphs
    assert (forward.name, backward.name) == ("0.forward.txt", "1.backward.txt")
    assert json.loads(dump.groups.read_text()) == {"0": [list(range(RANKS))]}
    assert "files::noted(Tensor x) -> Tensor" in dump.operators.read_text()
    for path, kind in ((forward, "all_gather"), (backward, "reduce_scatter")):
        done = bucketeer.rewrite(path, groups=dump.groups, ops=dump.operators)
        (graph,) = done.graphs
        assert graph.proof.verdict == "equal" and graph.proof.assumptions == (), path
        (row,) = [row for row in graph.collectives if row.kind == kind]
        assert (row.before.count, row.group_size) == (4, RANKS) and row.after.count < 4
    assert dump.notes == ()


def test_a_dump_says_hints_and_where_collectives_may_be(tmp_path: pathlib.Path) -> None:
    x = torch.randn(5, 4, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    dump = plugin.dump(lambda x: x * 2, {"x": x}, tmp_path)
    assert len(dump.graphs) == 2
    assert any("SimpleFSDP" in note and "python_reducer" in note for note in dump.notes)
    assert any("was 5: --hint s" in note for note in dump.notes)
    with pytest.raises(bucketeer.Error, match="nothing was compiled"):
        plugin.dump(lambda: 3, (), tmp_path)


def test_measured_times_are_those_of_the_calls_of_the_step_and_the_planner_reads_them(tmp_path: pathlib.Path) -> None:
    model = Model()
    step = torch.compile(model)
    x = torch.randn(64, RANKS)
    measured = plugin.measure(lambda: step(x).sum().backward(), tmp_path, steps=3)
    assert measured.failed == () and measured.calls > 3 and len(measured.files) == 2
    times = {name: took for path in measured.files for name, took in json.loads(path.read_text())["ns"].items()}
    products = {name: took for name, took in times.items() if name.startswith("mm")}
    assert len(products) >= 8 and all(took > 1000 for took in products.values())
    assert not any("gather" in name or "wait" in name for name in times)
    with plugin.enable(profile="h100", times=tmp_path, effort="low", strict=True):
        plugin.reports(clear=True)
        torch._dynamo.reset()
        step(x).sum().backward()
    reports = plugin.reports()
    assert len(reports) == 2 and not any("no times of this graph" in said for report in reports for said in report.said)
    computed = sum(report.details.as_written.compute_ns for report in reports)
    assert computed >= sum(products.values())
