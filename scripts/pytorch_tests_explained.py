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
        ("TestBitsetAncestors.*", "tests a helper of Inductor's: sets of ancestors"),
        ("TestForeachGroupsUnit.*", "tests a helper of Inductor's: its kernel that packs"),
        ("TestManualOverlapSchedulingUnit.*", "tests helpers of Inductor's manual bucketer: how it repairs the order of a graph"),
        ("*.test_graphsafe_rng_state_with_insert_overlap_deps", "needs a GPU (states of its generators), with buckets off"),
        ("*.test_no_cycle_from_dtype_convert_timeline_deps", "tests a helper of Inductor's: dependencies beside the graph"),
    ],
    "test_inductor_collectives": [
        ("*bucket*", ""),
        ("*", "does not bucket"),
    ],
}

# By `file::Class.test`: the outcome of a case that does not hold as it stands, and why.
WHY: dict[str, tuple[str, str]] = {}

# By `file::Class.test`: what to know of a case that passes.
REMARKS: dict[str, str] = {}


def why_not(stem: str, name: str) -> str | None:
    """Give why a case does not apply; none if it does."""
    for pattern, reason in _NOT.get(stem, []):
        if fnmatch.fnmatch(name, pattern):
            return reason or None
    return None
