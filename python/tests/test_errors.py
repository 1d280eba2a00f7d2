"""What is raised, and what it says."""

import pathlib
import pickle
from typing import Any

import pytest

import bucketeer
from test_text import SMALL


def test_a_fault_of_the_graph_has_its_place(fx: str) -> None:
    lines = fx.split("\n")
    at = next(number for number, line in enumerate(lines) if " = torch.ops.aten.mm.default(" in line)
    lines[at] = lines[at].replace("mm.default(", "mm.default(((", 1)
    with pytest.raises(bucketeer.InputError, match="expected") as raised:
        bucketeer.rewrite("\n".join(lines))
    error = raised.value
    assert (error.line, error.file) == (at + 1, None)
    assert error.source_line is not None and error.source_line.strip()[:20] in lines[at]
    assert error.column is not None and f"<graph>:{at + 1}:{error.column}" in str(error)
    # Where a bracket should have been closed.
    assert lines[at][error.column - 1] == ";"


def test_a_fault_of_a_file_names_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wrong.bkt"
    path.write_text("x = input f32[4]\ny = nothing at all\n")
    with pytest.raises(bucketeer.InputError) as raised:
        bucketeer.inspect(path)
    error = raised.value
    assert (error.file, error.line, error.source_line) == (str(path), 2, "y = nothing at all")
    with pytest.raises(bucketeer.Error, match="cannot read") as missing:
        bucketeer.inspect(tmp_path / "missing.txt")
    assert not isinstance(missing.value, (bucketeer.InputError, bucketeer.OptionError))


def test_faults_of_files_that_go_with_a_graph_are_of_the_input() -> None:
    for groups in ("{", {"G": "all"}, {"G": [[0, 1, 2]]}):
        with pytest.raises(bucketeer.InputError, match="<groups>"):
            bucketeer.rewrite(SMALL, groups=groups)
    with pytest.raises(bucketeer.InputError, match="<costs>"):
        bucketeer.plan(SMALL, costs={"schema": "another"})


def given(keyword: str, value: Any) -> dict[str, Any]:
    return {keyword: value}


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    for function, keyword, nearest in (
        (bucketeer.rewrite, "all_gathr", "all_gather"),
        (bucketeer.plan, "wait", "waits"),
        (bucketeer.inspect, "group_s", "groups"),
        (bucketeer.check_ranks, "hint_s", "hint"),
    ):
        with pytest.raises(bucketeer.OptionError, match=f"no option `{keyword}`; did you mean `{nearest}"):
            function(SMALL, **given(keyword, "1"))
    with pytest.raises(bucketeer.OptionError, match="no option `zzzzzz`$"):
        bucketeer.rewrite(SMALL, zzzzzz=1)


@pytest.mark.parametrize("option", ["out", "json", "dry_run", "color", "timeline"])
def test_options_that_say_where_results_go_are_no_keywords(option: str) -> None:
    with pytest.raises(bucketeer.OptionError, match=f"no option `{option}`"):
        bucketeer.rewrite(SMALL, **given(option, "x"))


def test_values_that_make_no_sense_are_refused_by_name() -> None:
    options: dict[str, Any]
    for options, said in (
        ({"all_gather": "1 apple"}, "--all-gather `1 apple`"),
        ({"all_gather": True}, "all_gather: expected a word"),
        ({"all_gather": {}}, "all_gather: expected a word"),
        ({"mode": "sideways"}, "sideways"),
        ({"keep_schedule": "yes"}, "keep_schedule: expected True or False"),
        ({"hints": {"s0": -1}}, "--hint `s0=-1`"),
        ({"hints": "s0=1"}, "hints: expected a dictionary"),
        ({"groups": 3}, "groups: expected text"),
        ({"groups": {"G": {1}}}, "groups: .* not JSON serializable"),
        ({"pipeline": "no-such-pass"}, "no-such-pass"),
        ({"pipeline": "dedupe-waits", "all_gather": "1MB"}, "cannot be used with"),
    ):
        with pytest.raises(bucketeer.OptionError, match=said):
            bucketeer.rewrite(SMALL, **options)
    for name in ("sweep", "as_written"):
        with pytest.raises(bucketeer.OptionError, match=f"{name} makes no graph"):
            bucketeer.plan(SMALL, **given(name, True))
    with pytest.raises(bucketeer.OptionError, match="found neither a file nor a machine"):
        bucketeer.plan(SMALL, profile="no-such-machine")


def test_what_a_form_has_no_words_for_is_refused(fx: str) -> None:
    with pytest.raises(bucketeer.OptionError, match="--permute"):
        bucketeer.rewrite(fx, permute="1MB")


def test_a_check_that_cannot_decide_is_refused() -> None:
    with pytest.raises(bucketeer.RefusedError, match="group `G`: its members are not known"):
        bucketeer.check_ranks([SMALL.replace("b = all_reduce(y, sum, G:2)", "b = all_reduce(y, sum, H:2)")] * 3)


def test_a_plan_that_cannot_be_proven_is_refused_or_told(fixtures: pathlib.Path) -> None:
    # A call that nothing describes may write to what is gathered.
    text = (fixtures / "fx/tiny_ddp_bf16_arfp32.backward.txt").read_text()
    told = bucketeer.rewrite(text, verify=None)
    assert told.proven == (told.graphs[0].proof.verdict == "equal")
    unproven = bucketeer.rewrite(text, verify=False)
    assert unproven.graphs[0].proof.verdict == "not_tried" and not unproven.proven
    assert unproven.text == told.text


def test_errors_are_of_one_family_and_go_between_processes() -> None:
    for kind in (bucketeer.InputError, bucketeer.OptionError, bucketeer.RefusedError):
        assert issubclass(kind, bucketeer.Error)
    assert issubclass(bucketeer.OptionError, ValueError) and issubclass(bucketeer.InputWarning, UserWarning)
    with pytest.raises(bucketeer.InputError) as raised:
        bucketeer.inspect("x = input f32[4]\ny = nothing\n")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert type(copy) is bucketeer.InputError and str(copy) == str(raised.value)
    assert (copy.line, copy.column, copy.source_line) == (2, raised.value.column, "y = nothing")
