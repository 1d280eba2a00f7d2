#!/usr/bin/env python3
"""Run PyTorch's own tests of bucketing with `bucketeer.torch` in place of Inductor's buckets.

    run_pytorch_tests.py --tests DIR [--only PATTERN] [--baseline] [--json FILE] [--page FILE --of WHAT]

DIR holds PyTorch's `test_aten_comm_compute_reordering.py`, `test_overlap_bucketing_unit.py` and
`test_inductor_collectives.py`, those that are there. Nothing of them is changed. Wherever Inductor is asked to bucket, by
its configuration, from its overlap scheduler or by a call, `BucketeerPass` runs on the same graph with what the
call asks for: kinds, caps, mode. Cases for GPUs run on CPUs: with two ranks over gloo where values are compared, else with the
fake process group that the case makes. `--baseline` leaves Inductor's buckets in, which shows what a case says on CPUs at all.

What `FileCheck` is given is checked twice: as it stands, and with names of operators that Inductor's rewrite makes
replaced by those that ours makes (`NAMES`). A check that does not hold ends no case here, so that values are still compared. A
case passes if everything holds as it stands; what else may come of it is in `Outcome`.

`--page` rewrites the table of a page, between its markers; `--of` says which PyTorch the tests are of.

Exit code: 0 each case passes or is explained, 1 one is not, 2 bad usage.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

import pytorch_tests_explained as explained

# Files, and on how many ranks their cases run.
FILES = {
    "test_aten_comm_compute_reordering": 2,
    "test_overlap_bucketing_unit": 1,
    "test_inductor_collectives": 2,
}

# Text of the files that is read as another: devices, and groups that are stated to be of one rank. Our pass drops the collectives
# of such groups, which leaves nothing to bucket, so that they are taken to be of two, which their process groups are.
READ_AS = {'device="cuda"': 'device="cpu"', "group_size = 1\n": "group_size = 2\n", "world_size=1)": "world_size=2)"}
# Cases whose shapes need a group of one rank: those are read as they stand.
OF_ONE_RANK = (
    "TestOverlapPreservingBucketing.test_can_bucket_with_convert_dtype_as_hiding_nodes",
    "TestOverlapPreservingBucketing.test_deterministic_mode_no_benchmark_error",
    "TestCollectivesInductor.test_all_gather_bucket_bucket_mode_*",
)

# Names of operators in what Inductor's rewrite makes, and what stands in their place in ours.
NAMES = {"%all_gather_into_tensor_out": "%bucketed_all_gather", "all_gather_into_tensor_out": "all_gather_into_tensor", "pre_bucket_all_gather": "cat"}

# A rank that waits longer for another gives up.
PATIENCE = datetime.timedelta(seconds=30)

MARKERS = ("<!-- made by scripts/run_pytorch_tests.py -->", "<!-- end of what it made -->")


class Outcome:
    """What may come of a case."""

    PASSES = "passes"
    NAMES = "passes but for names"
    DIFFERS = "differs"
    FAILS = "fails"
    NOT = "does not apply"
    ORDER = (PASSES, NAMES, DIFFERS, FAILS, NOT)


# In a worker: what is put in the place of Inductor's.


class Checks:
    """Stands in for `torch._C.FileCheck`, and remembers what does not hold."""

    failed: list[str] = []
    failed_by_more_than_names: list[str] = []

    def __init__(self) -> None:
        self._steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any, **kwargs: Any) -> Checks:
            self._steps.append((name, args, kwargs))
            return self

        if name.startswith("check"):
            return step
        raise AttributeError(name)

    def run(self, text: str) -> None:
        for failed, names in ((Checks.failed, {}), (Checks.failed_by_more_than_names, NAMES)):
            error = self._error(text, names)
            if error is not None:
                failed.append(error)

    def _error(self, text: str, names: dict[str, str]) -> str | None:
        from torch._C import FileCheck

        check = FileCheck()
        for name, args, kwargs in self._steps:
            pattern = args[0]
            for theirs, ours in names.items():
                pattern = pattern.replace(theirs, ours)
            check = getattr(check, name)(pattern, *args[1:], **kwargs)
        try:
            check.run(text)
        except RuntimeError as error:
            return str(error).strip()
        return None


def bucket(graph: Any, **options: Any) -> None:
    """Run our pass on a graph, as if the options by which the case asked Inductor were off."""
    import bucketeer.torch
    from bucketeer.torch import _groups
    from torch._inductor import config

    off = {f"bucket_{kind}s_fx": "none" for kind in ("all_gather", "reduce_scatter", "all_reduce")}
    off |= {"reorder_for_compute_comm_overlap": False, "aten_distributed_optimizations.enable_overlap_scheduling": False}
    made = bucketeer.torch.BucketeerPass(strict=True, **options)
    with config.patch(off):
        try:
            made(graph)
        except RuntimeError as error:
            if "operators of the graph state" not in str(error):
                raise
            # Cases that name the default group of two ranks, and state one. Take what the graph states.
            known, _groups.ranks_of = _groups.ranks_of, lambda name: None
            try:
                made(graph)
            finally:
                _groups.ranks_of = known
    graph.lint()


def mode_options(mode: str | None) -> dict[str, str]:
    """What Inductor calls a mode of buckets, as our options."""
    options = {"mode": "coalesced" if mode == "coalesced" else "concat"}
    return {**options, "mixed_dtype": "bytes"} if mode and "multidtype" in mode else options


def caps(of_bucket: Any) -> str:
    """The caps of the first buckets, as Inductor asks for them."""
    from torch._inductor.fx_passes import bucketing

    of_bucket = of_bucket or bucketing.bucket_cap_mb_by_bucket_idx_default
    return ",".join(str(int(of_bucket(index) * 1024 * 1024)) for index in range(8))


def replace_buckets() -> None:
    """Put our pass in the place of all that buckets in Inductor."""
    from torch._inductor.fx_passes import bucketing, fsdp, overlap_manual_scheduling, overlap_preserving_bucketer

    kinds = ("all_gather", "reduce_scatter", "all_reduce")

    def of_kind(kind: str, fsdp_only: bool) -> Any:
        def run(gm: Any, of_bucket: Any = None, mode: Any = None, *, bucket_cap_mb_by_bucket_idx: Any = None, **_: Any) -> None:
            options: dict[str, Any] = {other: "off" for other in kinds} | {kind: caps(of_bucket or bucket_cap_mb_by_bucket_idx)}
            # What earlier versions of the cases give as the option itself.
            asked = str(getattr(_config(), f"bucket_{kind}s_fx"))
            mode = asked if "multidtype" in asked else mode
            if fsdp_only:
                options["fsdp_only"] = "on"
            bucket(gm.graph, policy="adjacent", **options, **mode_options(mode))

        return run

    for kind in kinds:
        setattr(bucketing, f"bucket_{kind}", of_kind(kind, fsdp_only=False))
        if kind != "all_reduce":
            setattr(fsdp, f"bucket_fsdp_{kind}", of_kind(kind, fsdp_only=True))

    def preserving(self: Any) -> None:
        cap = int(self.max_bucket_memory_gb * 1024**3)
        if not self.collective_bucketing:
            return
        if self.bucket_mode == "coalesced":
            # Inductor has this mode for scatters alone.
            bucket(self.graph, all_gather="off", all_reduce="off", reduce_scatter=cap, mode="coalesced")
            bucket(self.graph, all_gather=cap, all_reduce=cap, reduce_scatter="off")
            return
        bucket(self.graph, **{kind: cap for kind in kinds}, **mode_options(self.bucket_mode))

    def manual(self: Any, nodes: Any) -> None:
        bucket(self.graph, **{kind: "none" for kind in kinds})

    overlap_preserving_bucketer.OverlapPreservingBucketer.bucket_collectives = preserving
    overlap_manual_scheduling.ManualOverlapPreservingBucketer.manual_bucket_collectives = manual


def _config() -> Any:
    from torch._inductor import config

    return config


def pretend_devices(rank: int, world: int, store: str) -> None:
    """Let cases that are for GPUs run on CPUs."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_cuda, common_device_type, common_distributed, inductor_utils

    inductor_utils.HAS_GPU = True
    common_cuda.SM80OrLater = True
    common_distributed.requires_accelerator_dist_backend = lambda backends=None: lambda wrapped: wrapped
    common_distributed.at_least_x_gpu = lambda count: True
    common_distributed.DynamoDistributedMultiProcTestCase.backend = lambda self, device: "gloo"
    common_distributed.DynamoDistributedMultiProcTestCase.setUp = lambda self: None
    common_distributed.DynamoDistributedMultiProcTestCase.tearDown = lambda self: None
    groups = iter(range(10**6))

    from contextlib import contextmanager

    @contextmanager
    def ranks(rank: int, world_size: int, *_: Any, **__: Any) -> Any:
        dist.init_process_group("gloo", rank=rank, world_size=world_size, store=dist.FileStore(f"{store}.{next(groups)}", world_size), timeout=PATIENCE)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        try:
            yield
        finally:
            dist.destroy_process_group()

    common_distributed._dynamo_dist_per_rank_init = ranks

    def single(cls: Any) -> None:
        cls.rank, cls.device, cls.device_ids = rank, "cpu", None
        dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(f"{store}.{next(groups)}", world), timeout=PATIENCE)

    common_distributed.DynamoDistributedSingleProcTestCase.setUpClass = classmethod(single)
    common_distributed.DynamoDistributedSingleProcTestCase.tearDownClass = classmethod(lambda cls: dist.destroy_process_group())
    instantiate = common_device_type.instantiate_device_type_tests

    def on_cpu(generic: Any, scope: Any, except_for: Any = None, **_: Any) -> None:
        instantiate(generic, scope, only_for="cpu")

    common_device_type.instantiate_device_type_tests = on_cpu


def load(path: Path, of_one_rank: bool) -> Any:
    """Import a file of tests, read as for CPUs, and as for groups of two ranks if not `of_one_rank`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    text = path.read_text()
    for theirs, ours in list(READ_AS.items())[: 1 if of_one_rank else None]:
        text = text.replace(theirs, ours)
    exec(compile(text, str(path), "exec"), module.__dict__)
    if hasattr(module, "FileCheck"):
        module.FileCheck = Checks
    return module


def cases_of(module: Any) -> dict[str, list[unittest.TestCase]]:
    """The cases of a file by class, each test where it is defined first."""
    found: dict[str, list[unittest.TestCase]] = {}
    for name, cls in vars(module).items():
        if not (isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ in (module.__name__, _internal(cls))):
            continue
        bases = [base for base in cls.__mro__[1:] if base.__name__ in vars(module)]
        tests = [test for test in unittest.TestLoader().getTestCaseNames(cls) if not any(hasattr(base, test) for base in bases)]
        if tests:
            found[name] = [cls(test) for test in tests]
    return found


def _internal(cls: type) -> str:
    """Classes that are made for a device say that they are of that module."""
    return cls.__module__ if cls.__name__.endswith("CPU") else ""


def plain_name(cls: str, test: str) -> str:
    """A case's name without the device that it was made for."""
    return f"{re.sub('CPU$', '', cls)}.{re.sub('_cpu(?=_|$)', '', test)}"


def work(args: argparse.Namespace) -> int:
    """Run the cases of one file as one rank, and write what came of each."""
    pretend_devices(args.rank, args.world, args.store)
    path = Path(args.worker)
    if not args.baseline:
        replace_buckets()
    import torch._inductor.config as config

    config.compile_threads = 1
    config.force_disable_caches = True
    # Estimates by formulas, where Inductor would measure on a GPU.
    config.deterministic = path.stem == "test_overlap_bucketing_unit"
    results: dict[str, dict[str, Any]] = {}
    for cls, cases in cases_of(load(path, args.of_one_rank)).items():
        asked = [case for case in cases if _is_asked(args, path.stem, plain_name(cls, case._testMethodName))]
        for case in cases:
            results[plain_name(cls, case._testMethodName)] = {"skipped": True}
        if not asked:
            continue
        type(asked[0]).setUpClass()
        for case in asked:
            case.rank = args.rank
            print(plain_name(cls, case._testMethodName), flush=True)
            results[plain_name(cls, case._testMethodName)] = run_case(case)
        type(asked[0]).tearDownClass()
    Path(args.out).write_text(json.dumps(results))
    sys.stdout.flush()
    # Groups of gloo may have threads left.
    os._exit(0)


def _is_asked(args: argparse.Namespace, stem: str, name: str) -> bool:
    of_one_rank = any(fnmatch.fnmatch(name, pattern) for pattern in OF_ONE_RANK)
    return fnmatch.fnmatch(name, args.only) and explained.why_not(stem, name) is None and of_one_rank == args.of_one_rank


def run_case(case: Any) -> dict[str, Any]:
    """Run one case, and say what held."""
    import bucketeer.torch
    import torch

    Checks.failed, Checks.failed_by_more_than_names = [], []
    bucketeer.torch.reports(clear=True)
    start, error, where = time.monotonic(), None, None
    torch._dynamo.reset()
    try:
        case.setUp()
        try:
            getattr(case, case._testMethodName)()
        finally:
            case.tearDown()
            case.doCleanups()
    except unittest.SkipTest as skip:
        error = f"skipped: {skip}"
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        where = traceback.format_exc()
    launches = [(report.launches_before, report.launches_after) for report in bucketeer.torch.reports() if report.launches_before]
    return {
        "error": error,
        "trace": where,
        "checks": Checks.failed,
        "more": Checks.failed_by_more_than_names,
        "launches": launches,
        "seconds": time.monotonic() - start,
    }


# Where it starts: runs workers, and tells what came of it.


def run_file(path: Path, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run a file, those cases apart that need a group of one rank."""
    seen = run_ranks(path, args, FILES[path.stem], [])
    alone = run_ranks(path, args, 1, ["--of-one-rank"])
    return {name: result if not result.get("skipped") else alone[name] for name, result in seen.items()}


def run_ranks(path: Path, args: argparse.Namespace, world: int, flags: list[str]) -> dict[str, dict[str, Any]]:
    """Run a file on ranks; what rank 0 saw of each case, or the first rank that saw it fail."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--tests", args.tests, "--worker", str(path), "--only", args.only, "--world", str(world), *flags]
        command += ["--store", f"{folder}/store"] + (["--baseline"] if args.baseline else [])
        workers = []
        for rank in range(world):
            with open(f"{folder}/{rank}.log", "w") as log:
                workers.append(subprocess.Popen([*command, "--rank", str(rank), "--out", f"{folder}/{rank}.json"], stdout=log, stderr=log))
        try:
            for worker in workers:
                worker.wait(timeout=args.timeout)
        except subprocess.TimeoutExpired:
            print(f"{path.name}: not done in {args.timeout:g} s", file=sys.stderr)
        finally:
            for worker in workers:
                worker.kill()
        found = []
        for rank in range(world):
            out = Path(folder, f"{rank}.json")
            if not out.exists():
                raise SystemExit(f"{path.name}: rank {rank} ended early:\n" + Path(folder, f"{rank}.log").read_text()[-4000:])
            found.append(json.loads(out.read_text()))
    return {name: next((one[name] for one in found if one[name].get("error")), result) for name, result in found[0].items()}


def judge(stem: str, name: str, result: dict[str, Any]) -> tuple[str, str]:
    """What came of a case, and why."""
    reason = explained.why_not(stem, name)
    if reason is not None:
        return Outcome.NOT, reason
    if result.get("skipped"):
        return Outcome.NOT, "not asked for"
    launches = ", ".join(f"{before} → {after}" for before, after in _different(result["launches"]))
    told = f"launches {launches}" if launches else "nothing to launch"
    why = explained.WHY.get(f"{stem}::{name}")
    held = "values" if not result["error"] else ""
    if result["error"] is None and not result["checks"]:
        return Outcome.PASSES, "; ".join(part for part in (told, explained.REMARKS.get(f"{stem}::{name}", "")) if part)
    if result["error"] is None and not result["more"]:
        return Outcome.NAMES, told
    # An error that is no assertion is never explained away, nor are values that differ.
    if why is not None and (result["error"] is None or result["error"].startswith("AssertionError: Scalars are not equal")):
        return why[0], f"{told}; {why[1]}"
    first = (result["error"] or result["more"][0]).splitlines()[0]
    return Outcome.FAILS, f"{told}; {held} {first}"


def _different(pairs: list[list[int]]) -> list[tuple[int, int]]:
    """Passes of one graph that did something; the last, if none did."""
    changed = [(before, after) for before, after in pairs if before != after]
    return list(dict.fromkeys(changed)) or [(before, after) for before, after in pairs[-1:]]


def table(outcomes: list[tuple[str, str, str, str]], what: str) -> str:
    """The page part: counts, then a row for each case."""
    lines = [f"Tests of {what}." if what else "", ""]
    lines += ["| outcome | cases |", "|---|---|"]
    lines += [f"| {kind} | {sum(outcome == kind for _, _, outcome, _ in outcomes)} |" for kind in Outcome.ORDER]
    for stem in FILES:
        rows = [row for row in outcomes if row[0] == stem]
        if rows:
            lines += ["", f"### `{stem}.py`", "", "| case | outcome | why |", "|---|---|---|"]
            lines += [f"| `{name}` | {outcome} | {why.replace('|', '/')} |" for _, name, outcome, why in rows]
    return "\n".join(lines).strip()


def rewrite_page(page: Path, part: str) -> None:
    """Put the part between the markers of a page."""
    text = page.read_text()
    start, end = (text.index(marker) for marker in MARKERS)
    page.write_text(f"{text[:start]}{MARKERS[0]}\n\n{part}\n\n{text[end:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", required=True, help="the folder of PyTorch's tests")
    parser.add_argument("--only", default="*", help="run cases whose Class.test matches this pattern")
    parser.add_argument("--baseline", action="store_true", help="leave Inductor's buckets in")
    parser.add_argument("--json", help="write all that was seen here")
    parser.add_argument("--page", help="rewrite the table of this page")
    parser.add_argument("--of", default="", help="which PyTorch the tests are of, for the page")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each file")
    for name in ("--worker", "--store", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--of-one-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    paths = [Path(args.tests, f"{stem}.py") for stem in FILES]
    if not any(path.exists() for path in paths):
        parser.error(f"none of {', '.join(path.name for path in paths)} is in {args.tests}")
    seen = {path.stem: run_file(path, args) for path in paths if path.exists()}
    outcomes = [(stem, name, *judge(stem, name, result)) for stem, results in seen.items() for name, result in results.items()]
    part = table(outcomes, args.of)
    print(part)
    if args.json:
        Path(args.json).write_text(json.dumps(seen, indent=1))
    if args.page:
        rewrite_page(Path(args.page), part)
    return 1 if any(outcome == Outcome.FAILS for _, _, outcome, _ in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
