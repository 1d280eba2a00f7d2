"""Why some of PyTorch's tests do not apply to `bucketeer.torch`, and why others come out differently.

For `run_pytorch_tests.py`, which runs all others. Each reason was found by reading the case, or by looking at what came of it.
"""

from __future__ import annotations

import fnmatch

# By file, patterns of `Class.test` and why such cases do not apply. The first that matches counts; an
# empty reason says that the case applies.
_NOT: dict[str, list[tuple[str, str]]] = {
    "test_aten_comm_compute_reordering": [
        ("TestComputeCommReorderingMultiProc.*", "tests Inductor's overlap scheduler, with buckets off"),
        ("*.test_collective_benchmarking_with_real_pg", "tests the estimator: it times collectives on GPUs, with buckets off"),
        ("*.test_make_graph_view_*", "tests Inductor's view of a graph by modules; nothing is bucketed"),
        ("*_no_bucket", "a plan of Inductor's manual scheduler without buckets"),
        (
            "TestManualOverlapBucketing.*",
            "says by module which collectives travel together, and asserts the names of Inductor's nodes; our plans by module are files "
            "(`--own`), not calls",
        ),
    ],
    "test_overlap_bucketing_unit": [
        ("TestCrossPGOverlap.*", "tests Inductor's overlap scheduler, with buckets off"),
        ("TestFusibleNodeOverlap.*", "tests Inductor's overlap scheduler, with buckets off"),
        ("TestOverlapSchedulingNoMemoryLimit.*", "tests Inductor's overlap scheduler, with buckets off"),
        ("TestCoalescedCollectiveOverlap.*", "tests how Inductor's overlap scheduler sees coalesced collectives, with buckets off"),
        ("TestProfileGuidedEstimat*", "tests the estimator"),
        ("TestNodeRuntimeEstimationUnit.*", "tests the estimator"),
        ("*.test_saturation_model", "tests the estimator"),
        ("*.test_assume_bucketed_latency_exceeds_exposed_time", "tests the scheduler's estimates, with buckets off"),
        ("TestBitsetAncestors.*", "tests a helper of Inductor's: sets of ancestors"),
        ("TestForeachGroupsUnit.*", "tests a helper of Inductor's: its kernel that packs"),
        ("TestManualOverlapSchedulingUnit.*", "tests helpers of Inductor's manual bucketer: how it repairs the order of a graph"),
        ("*.test_graphsafe_rng_state_with_insert_overlap_deps", "needs a GPU (states of its generators), with buckets off"),
        ("*.test_no_cycle_from_dtype_convert_timeline_deps", "tests a helper of Inductor's: dependencies beside the graph"),
    ],
    "test_inductor_collectives": [
        (
            "*.test_reorder_peak_memory_bucketed*",
            "tests how Inductor's scheduler reorders for memory, and asserts its statistics; the stored version names helpers that 2.15 lacks",
        ),
        ("*bucket*", ""),
        ("*", "does not bucket"),
    ],
}

_HIDES = (
    "the case wants them apart so that each hides behind its own matmul. Neither needs the other's result, so that one launch is right; "
    "without a profile our pass merges for fewer launches, with one (`profile=`) a plan decides"
)
_BASELINE = "Values are equal. Inductor's own buckets fail the same check here (`--baseline`)"
_ONE_RANK = "the group has one rank: our pass drops its collectives, which change nothing"
_MIXED = "2.15 mixes dtypes only in mode `custom_ops_multidtype`, which the case leaves to the default; our `mixed_dtype=\"bytes\"` does"

# By `file::Class.test`: the outcome of a case that does not hold as it stands, and why.
WHY: dict[str, tuple[str, str]] = {
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_bucketing_split_for_overlap": (
        "differs",
        f"1 gather, 2 expected: {_HIDES}. {_BASELINE}",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_no_bucketing_when_collective_depends_on_hiding_node": (
        "differs",
        f"1 gather, 2 expected: {_HIDES}. {_BASELINE}",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_no_bucketing_with_dependent_hiding_nodes": (
        "differs",
        f"1 gather, 2 expected: {_HIDES}. {_BASELINE}",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_bucketing_wait_sink": (
        "differs",
        f"1 gather as expected, but its wait is not below both matmuls: without a profile our pass moves no waits. {_BASELINE}",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_bucketing_split_for_overlap_blocking_deps_inductor": (
        "does not apply",
        "asserts the text of dependencies that Inductor adds (`control_deps`). Values are equal",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_multidtype_bucketing": (
        "differs",
        f"2 gathers, one for each dtype, 1 expected: {_MIXED}. {_BASELINE}",
    ),
    "test_aten_comm_compute_reordering::TestComputeCommReorderingBucketing.test_bucketing_with_convert_dtype": (
        "differs",
        f"2 gathers, one for each dtype, 1 expected, and casts stay: {_MIXED}. {_BASELINE}",
    ),
    "test_overlap_bucketing_unit::TestOverlapPreservingBucketing.test_can_bucket_with_convert_dtype_as_hiding_nodes": ("differs", _ONE_RANK),
    "test_overlap_bucketing_unit::TestOverlapPreservingBucketing.test_cant_bucket_ag_with_rs_hiding_interval_between_final_mm_hidden_True": (
        "differs",
        f"1 gather, 2 expected: {_HIDES}",
    ),
    "test_overlap_bucketing_unit::TestOverlapPreservingBucketing.test_cant_bucket_nested_hiding_intervals": (
        "differs",
        f"1 gather, 2 expected: {_HIDES}",
    ),
    "test_overlap_bucketing_unit::TestPreBucketingCleanup.test_deduplicates_parametrization_waits": (
        "passes but for names",
        "asserts that no `all_gather_into_tensor` is left, for Inductor's is `all_gather_into_tensor_out`; ours is one `all_gather_into_tensor`",
    ),
    "test_inductor_collectives::TestCollectivesInductor.test_all_gather_bucket_bucket_mode_all": ("differs", f"{_ONE_RANK}. Values are equal"),
    "test_inductor_collectives::TestCollectivesInductor.test_all_gather_bucket_bucket_mode_all_custom_ops": (
        "differs",
        f"{_ONE_RANK}. Values are equal",
    ),
}

# By `file::Class.test`: what to know of a case that passes.
REMARKS: dict[str, str] = {}


def why_not(stem: str, name: str) -> str | None:
    """Give why a case does not apply; none if it does."""
    for pattern, reason in _NOT.get(stem, []):
        if fnmatch.fnmatch(name, pattern):
            return reason or None
    return None
