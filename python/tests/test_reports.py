"""Reports are those of the command line, and no field of them is left out."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import bucketeer
from bucketeer import reports
from test_text import SMALL


def command(*words: str | pathlib.Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line as Python has it."""
    line = [sys.executable, "-m", "bucketeer", *map(str, words)]
    return subprocess.run(line, input=stdin, capture_output=True, text=True, check=False)


def is_whole(data: Any, document: Any, at: str) -> None:
    """Asserts that data holds all of a document, and nothing else that says something."""
    if dataclasses.is_dataclass(data):
        names = {field.name.rstrip("_"): field for field in dataclasses.fields(data)}
        assert document.keys() <= names.keys(), f"{at}: {document.keys() - names.keys()}"
        for name, field in names.items():
            value = getattr(data, field.name)
            if name in document:
                is_whole(value, document[name], f"{at}.{name}")
            else:
                assert not value, f"{at}.{name}"
    elif isinstance(data, tuple):
        assert isinstance(document, list) and len(data) == len(document), at
        for index, (part, found) in enumerate(zip(data, document)):
            is_whole(part, found, f"{at}[{index}]")
    elif data is True and document is None:
        # A word that says all by being there.
        assert at.endswith((".folded", ".not_asked")), at
    else:
        assert type(data) is type(document) and data == document, at


def test_a_field_that_is_left_out_is_noticed() -> None:
    is_whole(reports.Change(1, 2), {"before": 1, "after": 2}, "")
    for document in ({"before": 1, "after": 2, "more": 3}, {"before": 1, "after": 3}, {"before": 1}):
        with pytest.raises(AssertionError):
            is_whole(reports.Change(1, 2), document, "")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fx/fsdp_l2_ws8_bf16.backward.txt", {"all_gather": "500MB", "memory": "same"}),
        ("fx/live_dynamic.backward.txt", {}),
        ("fx/tiny_moe_bf16_rsfp32.backward.txt", {"all_to_all": "25MB", "all_gather": "1KB"}),
        ("hlo/shardmap_all.pre_combine.hlo", {"mixed_dtype": "bytes", "policy": "xla"}),
        ("native/every_kind.bkt", {"permute": "1MB", "broadcast": "1MB"}),
    ],
)
def test_a_rewrite_tells_what_the_command_line_tells(fixtures: pathlib.Path, name: str, options: dict[str, Any]) -> None:
    path = fixtures / name
    done = bucketeer.rewrite(path, verify=None, **options)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    ran = command("rewrite", path, "--json", *flags)
    assert ran.returncode == 0 and ran.stdout == done.json, ran.stderr
    is_whole(done.report, json.loads(done.json), "report")
    ran = command("rewrite", path, *flags)
    assert ran.stdout.encode() == done.text
    for line in str(done).splitlines():
        assert line in ran.stderr.splitlines()


def test_every_fate_of_a_collective_has_its_field(fixtures: pathlib.Path) -> None:
    done = [bucketeer.rewrite(path, all_gather="1MB", verify=None) for path in sorted((fixtures / "fx").glob("*.txt"))]
    remarks = [remark for one in done for remark in one.remarks]
    folded = "x = input f32[4]\na = all_reduce(x, sum, G:1); output(wait(a))\n"
    remarks += bucketeer.rewrite(folded).remarks
    fates = [(one.merged is not None, one.alone is not None, one.folded, one.not_asked) for one in remarks]
    assert {sum(fate) for fate in fates} == {1}
    assert {fate.index(True) for fate in fates} == {0, 1, 2, 3}


def test_a_plan_tells_what_the_command_line_tells(fixtures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = fixtures / "plan/llama8b_l4_n8_t2048"
    graph, costs = folder / "graph.txt", folder / "costs.json"
    pipeline = "bucket-all-gather{cap=32MiB}"
    options: dict[str, Any]
    for options in ({"memory": "same"}, {"pipeline": pipeline, "waits": 1, "effort": "low", "memory": "none"}):
        planned = bucketeer.plan(graph, costs=costs, **options)
        flags = [f"--{key}={value}" for key, value in options.items()]
        timeline = planned.timeline
        for form, expected in (("html", timeline.page), ("svg", timeline.svg), ("json", timeline.json)):
            file, out = tmp_path / f"step.{form}", tmp_path / "planned.txt"
            ran = command("plan", graph, "--costs", costs, "--json", "--timeline", file, "-o", out, *flags)
            assert ran.returncode == 0 and ran.stdout == planned.json, ran.stderr
            assert (file.read_text(), out.read_bytes()) == (expected, planned.text)
        is_whole(planned.report, json.loads(planned.json), "report")
        is_whole(timeline.report, json.loads(timeline.json), "timeline")
    assert planned.report.bucketed is not None and len(planned.waits) == 1
    assert planned.timeline.report.bucketed is not None


def test_a_sweep_tells_what_the_command_line_tells(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/rn50_ddp_10gbe16"
    swept = bucketeer.sweep(folder / "graph.txt", costs=folder / "costs.json", effort="low")
    ran = command("plan", folder / "graph.txt", "--costs", folder / "costs.json", "--sweep", "--json", "--effort=low")
    assert ran.returncode == 0 and ran.stdout == swept.json
    is_whole(swept.report, json.loads(swept.json), "report")


STABLE = """\
module @step {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def test_what_is_in_a_graph_is_told_as_by_the_command_line(fixtures: pathlib.Path) -> None:
    texts = [(fixtures / name).read_text() for name in ("fx/live_dynamic.backward.txt", "native/every_kind.bkt")]
    twice = "x = input f32[4]\na = all_reduce(x, sum, G:2)\noutput(a, a)\n"
    barrier = "x = input f32[4]\nb = c10d.barrier.default(x)\noutput(x)\n"
    assert len(bucketeer.inspect(barrier).graphs[0].other_communication) == 1
    for text in (*texts, twice, barrier, STABLE):
        found = bucketeer.inspect(text)
        ran = command("inspect", "-", "--json", stdin=text)
        assert ran.stdout == found.json, ran.stderr
        is_whole(found.report, json.loads(found.json), "report")
        assert command("inspect", "-", stdin=text).stdout.rstrip("\n") == str(found)
    stable = bucketeer.inspect(STABLE).report
    assert stable.graphs == () and stable.collectives[0].kind == "all_reduce"
    drawing = command("inspect", "-", "--svg", stdin=texts[0]).stdout
    assert bucketeer.draw(texts[0]) == drawing


def test_verdicts_are_told_as_by_the_command_line(tmp_path: pathlib.Path) -> None:
    cases: list[dict[str, Any]] = [{}, {"eval": True}, {"eval": True, "shrink": True, "outputs_may_share": True}]
    before = tmp_path / "before.bkt"
    before.write_text(SMALL)
    for text in (SMALL, SMALL.replace("x, sum", "x, max"), bucketeer.rewrite(SMALL, all_reduce="1KiB").text):
        after = tmp_path / "after.bkt"
        after.write_text(text)
        for options in cases:
            found = bucketeer.verify(before, after, **options)
            ran = command("verify", before, after, "--json", *(f"--{key.replace('_', '-')}" for key in options))
            assert ran.stdout == found.json and (ran.returncode == 0) == found.equal
            is_whole(found.report, json.loads(found.json), "report")


def test_ranks_are_told_of_as_by_the_command_line(tmp_path: pathlib.Path) -> None:
    for rank, text in enumerate((SMALL, SMALL.replace("x, sum", "x, max"))):
        (tmp_path / f"rank{rank}.bkt").write_text(text)
    (tmp_path / "groups.json").write_text('{"G": [0, 1]}')
    files = [tmp_path / "rank0.bkt", tmp_path / "rank1.bkt"]
    for graphs in (files, files[:1]):
        found = bucketeer.check_ranks(graphs, groups=tmp_path / "groups.json")
        ran = command("check-ranks", *graphs, "--json", "--groups", tmp_path / "groups.json")
        assert ran.stdout == found.json and (ran.returncode == 0) == found.agree
        is_whole(found.report, json.loads(found.json), "report")
    assert bucketeer.check_ranks(tmp_path / "rank{rank}.bkt", groups={"G": [0, 1]}).agree is False
