"""Functions on text, on graphs that PyTorch and JAX wrote."""

import json
import pathlib
import warnings
from xml.etree import ElementTree

import pytest

import bucketeer

SMALL = """\
x = input f32[4]; y = input f32[4]
a = all_reduce(x, sum, G:2); b = all_reduce(y, sum, G:2)
output(wait(a), wait(b))
"""

UNGROUPED = SMALL.replace("G:2", "G")


def test_a_graph_is_rewritten_proven_and_told_of(fx: str) -> None:
    done = bucketeer.rewrite(fx, all_gather="500MB")
    assert isinstance(done.text, str) and done.text != fx
    (graph,) = done.graphs
    (gathers,) = [row for row in graph.collectives if row.kind == "all_gather"]
    assert (gathers.before.count, gathers.after.count) == (20, len(done.buckets)) == (20, 3)
    merged = [remark for remark in done.remarks if remark.merged is not None]
    assert len(merged) == sum(len(bucket.members) for bucket in done.buckets) == 20
    assert graph.proof.verdict == "equal" and done.proven
    assert str(done).startswith("graph `GraphModule`: 663 nodes before") and "proven equal" in str(done)
    assert bucketeer.verify(fx, done.text, outputs_may_share=True)


def test_what_is_given_says_what_comes_back(fixtures: pathlib.Path, fx: str) -> None:
    path = fixtures / "fx/fsdp_l2_ws8_bf16.backward.txt"
    as_text, as_bytes, as_file = (bucketeer.rewrite(given) for given in (fx, fx.encode(), path))
    assert type(as_text.text) is str and type(as_bytes.text) is bytes and type(as_file.text) is bytes
    assert as_text.text.encode() == as_bytes.text == as_file.text
    assert as_text.report == as_bytes.report == as_file.report
    with pytest.raises(TypeError, match="not int"):
        bucketeer.rewrite(3)  # type: ignore[call-overload]


def test_a_program_of_torch_export_is_rewritten_as_bytes(fixtures: pathlib.Path) -> None:
    path = fixtures / "export/tiny.pt2"
    of_file, of_bytes = bucketeer.rewrite(path), bucketeer.rewrite(path.read_bytes())
    assert of_file.text == of_bytes.text and of_file.text[:2] == b"PK" and of_file.json == of_bytes.json
    assert bucketeer.inspect(of_file.text).report.input_format == "export"
    as_json = bucketeer.rewrite(SMALL, to="json", all_reduce="1KiB")
    assert json.loads(as_json.text)["format"] == "bucketeer-graph"


def test_a_module_of_xla_is_rewritten_with_caps_as_text_numbers_and_lists(hlo: str) -> None:
    as_text = bucketeer.rewrite(hlo, all_reduce="12KiB")
    as_number = bucketeer.rewrite(hlo, all_reduce=12 << 10)
    as_list = bucketeer.rewrite(hlo, all_reduce=["12KiB", 12 << 10])
    assert as_text.text == as_number.text == as_list.text == bucketeer.rewrite(hlo, all_reduce=12 * 1024.0).text != hlo
    assert as_text.text.startswith("HloModule") and len(as_text.buckets) > 0
    assert bucketeer.rewrite(hlo, all_reduce=["4KiB", "12KiB"]).text != as_text.text


def test_a_step_is_planned_with_costs_of_a_file_or_as_they_are(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/llama8b_l4_n8_t2048"
    text = (folder / "graph.txt").read_text()
    costs = json.loads((folder / "costs.json").read_text())
    planned = bucketeer.plan(text, costs=costs, effort="low")
    assert planned.text == bucketeer.plan(text, costs=folder / "costs.json", effort="low").text != text
    report = planned.report
    assert report.planned is not None and report.planned.makespan_ns < report.as_written.makespan_ns
    assert planned.waits[0].stalled_ns >= planned.waits[1].stalled_ns > 0
    assert any("proven equal" in line for line in planned.said)
    assert "as it came" in str(planned) and "planned" in str(planned)
    own = bucketeer.plan(text, costs=costs, own=folder / "own.json", memory="none")
    assert own.text not in (text, planned.text)
    by_profile = bucketeer.plan(text, profile="h100", effort="low", memory="same")
    assert by_profile.report.cap_bytes == by_profile.report.as_written.peak_bytes


def test_a_sweep_has_a_run_for_each_cap(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/rn50_ddp_10gbe16"
    swept = bucketeer.sweep(folder / "graph.txt", costs=folder / "costs.json", effort="low")
    assert swept.report.caps[-1].cap_bytes is None and len(swept.report.caps) > 3
    caps = [row.cap_bytes for row in swept.report.memory]
    assert caps == sorted(caps) and len(caps) > 3
    assert str(swept).startswith("graph `")


def test_a_file_is_inspected_and_drawn(fixtures: pathlib.Path, hlo: str) -> None:
    found = bucketeer.inspect(fixtures / "fx/tiny_ddp_bf16_arfp32.backward.txt")
    (graph,) = found.graphs
    assert {one.kind for one in graph.collectives} == {"all_reduce"} and graph.errors == ()
    assert f"{len(graph.collectives)} collective" in str(found)
    for form, begins in (("svg", "<svg"), ("lanes", "<svg"), ("dot", "digraph")):
        assert bucketeer.draw(hlo, form=form).startswith(begins), form
    assert bucketeer.draw(hlo, all_reduce="12KiB") != bucketeer.draw(hlo, all_reduce="off")
    with pytest.raises(bucketeer.OptionError, match="svg, lanes, dot"):
        bucketeer.draw(hlo, form="png")


def test_graphs_that_differ_are_told_apart() -> None:
    same = bucketeer.verify(SMALL, SMALL)
    other = bucketeer.verify(SMALL, SMALL.replace("x, sum", "x, max"))
    assert same and same.equal and "equal" in str(same)
    assert not other and not other.equal and other.report.graphs[0].proof.verdict == "different"
    ran = bucketeer.verify(SMALL, SMALL, eval=True, seed=3)
    assert ran.report.graphs[0].evaluation is not None and ran.report.graphs[0].evaluation.verdict == "equal"


def test_ranks_that_launch_in_another_order_do_not_agree() -> None:
    groups = {"G": [0, 1]}
    turned = SMALL.replace("y = input f32[4]", "y = input f32[8]")
    turned = turned.replace("a = all_reduce(x, sum, G:2); b = all_reduce(y, sum, G:2)", "b = all_reduce(y, sum, G:2); a = all_reduce(x, sum, G:2)")
    straight = SMALL.replace("y = input f32[4]", "y = input f32[8]")
    assert bucketeer.check_ranks([straight, straight], groups=groups)
    found = bucketeer.check_ranks([straight, turned], groups=groups)
    assert not found and not found.agree and found.report.graphs[0].faults != ()
    assert bucketeer.check_ranks(straight, groups=groups).agree


def test_groups_are_given_as_data_as_text_and_as_a_file(tmp_path: pathlib.Path) -> None:
    groups = {"G": [[0, 1]]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    for given in (groups, json.dumps(groups), json.dumps(groups).encode(), tmp_path / "groups.json"):
        assert bucketeer.inspect(UNGROUPED, groups=given).graphs[0].groups[0].members == ((0, 1),), given
    assert bucketeer.inspect(UNGROUPED).graphs[0].groups[0].members == ()


def test_hints_and_operators_are_given() -> None:
    text = SMALL.replace("f32[4]", "f32[s0]")
    assert bucketeer.inspect(text).graphs[0].collectives[0].bytes is None
    assert bucketeer.inspect(text, hints={"s0": 16}).graphs[0].collectives[0].bytes == 64
    assert bucketeer.rewrite(SMALL, ops="mylib::f(Tensor x) -> Tensor", all_reduce="1KiB").proven


def test_no_temporary_file_is_left_or_made(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert bucketeer.rewrite(SMALL, groups={"G": [[0, 1]]}, all_reduce="1KiB").buckets != ()
    assert list(tmp_path.iterdir()) == []


def test_what_is_said_is_kept_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    done = bucketeer.rewrite(SMALL, all_reduce="1KiB", explain=True, only=["a", "nothing_*"])
    assert any("matches `nothing_*`" in line for line in done.said)
    assert any("collective by collective" in line for line in done.said)
    quiet = bucketeer.rewrite(SMALL, all_reduce="1KiB", explain=True, quiet=True)
    assert quiet.said == ()
    assert capfd.readouterr() == ("", "")


def test_a_part_that_is_at_fault_is_warned_of(fx: str) -> None:
    with pytest.warns(bucketeer.InputWarning, match="expected") as warned:
        done = bucketeer.rewrite(fx + "\n" + fx.replace(" = torch.ops.", " = = torch.ops.", 1))
    assert len(done.graphs) == 1 and len(warned) == 1
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(bucketeer.rewrite(fx).graphs) == 1


def test_results_show_themselves_in_notebooks(fixtures: pathlib.Path) -> None:
    done = bucketeer.rewrite(SMALL, all_reduce="1KiB")
    assert done._repr_html_().startswith("<svg") and "1 collective, 1 bucket" in done._repr_html_()
    assert bucketeer.inspect(SMALL)._repr_html_().startswith("<pre>graph `graph`")
    assert done.summary not in repr(done) and "Rewritten(text=" in repr(done)


def test_a_plan_shows_itself_as_a_picture_without_scripts_that_names_each_launch(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/rn50_ddp_10gbe16"
    planned = bucketeer.plan(folder / "graph.txt", costs=folder / "costs.json", effort="low")
    picture = planned._repr_html_()
    assert picture == planned.timeline.svg == planned.timeline._repr_html_() and "<script" not in picture
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    told = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    launches = [span for span in planned.timeline.spans if span.message is not None]
    assert planned.report.planned is not None and len(launches) == planned.report.planned.launches > 1
    for span in launches:
        assert any(title.startswith(f"comm {span.node}\n") for title in told), span.node


def test_a_timeline_says_what_runs_when_and_adds_up_to_the_report(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/llama8b_l4_n8_t2048"
    planned = bucketeer.plan(folder / "graph.txt", costs=folder / "costs.json", effort="low")
    assert planned.report.planned is not None and planned.timeline.report.planned is not None
    for spans, run in (
        (planned.timeline.report.as_written, planned.report.as_written),
        (planned.timeline.spans, planned.report.planned),
    ):
        assert max(span.end_ns for span in spans) == run.makespan_ns
        lengths: dict[str, int] = {}
        for span in spans:
            lengths[span.doing] = lengths.get(span.doing, 0) + span.end_ns - span.start_ns
            assert (span.group is None) == (span.message is None) == (span.doing != "comm")
            assert (span.awaits != ()) == (span.doing == "wait")
        assert (lengths["compute"], lengths["comm"]) == (run.compute_ns, run.message_ns)
        messages = [span.message for span in spans if span.message is not None]
        assert lengths.get("wait", 0) == sum(message.stalled_ns for message in messages)
        assert all(message.hidden_ns <= span.end_ns - span.start_ns for span in spans for message in [span.message] if message)
    assert planned.timeline.report.bucketed is None


def test_large_graphs_are_shown_as_a_table() -> None:
    lines = [f"x{n} = input f32[4]; a{n} = all_reduce(x{n}, sum, G:2)" for n in range(300)]
    waits = ", ".join(f"wait(a{n})" for n in range(300))
    done = bucketeer.rewrite("\n".join([*lines, f"output({waits})"]), all_reduce="1KiB")
    assert done._repr_html_() == f"<pre>{done.summary.rstrip()}</pre>"
