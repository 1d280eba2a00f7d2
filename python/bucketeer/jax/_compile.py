"""What happens where jax hands a module to XLA."""

from __future__ import annotations

import copy
import dataclasses
import glob
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax

from . import _modules, _private, _report
from ._modules import OPCODES, Refused
from ._options import Options
from ._report import Report
from ._rewrite import Rewritten


class BucketingWarning(UserWarning):
    """A module was compiled as it was."""


class BucketingError(RuntimeError):
    """A module cannot be rewritten, and `strict=True` was asked for."""


def compile(
    call: Callable[..., Any],
    options: Options,
    backend: Any,
    module: Any,
    devices: Any,
    compile_options: Any,
    callbacks: Any,
) -> tuple[Any, bool]:
    """Compiles a module with its collectives merged, and says whether the result is one to keep.

    If anything fails, the module is compiled as it was, and a warning says why; with `strict`, it is an error.
    """
    job = _Job(call, options, backend, module, devices, compile_options, callbacks)
    try:
        return job.run(), True
    except Exception as error:
        if job.is_users(error):
            raise
        name, why = _private.module_name(module), str(error).strip() or type(error).__name__
        if options.strict:
            raise BucketingError(f"{name}: {why}") from error
        # The stack above is jax's; where the warning comes from says nothing to the user.
        warnings.warn(f"bucketeer: {name} is compiled as it was: {why}", BucketingWarning, stacklevel=2)
        _report.add(Report(name, "failed", {}, {}, (why,), job.seconds()))
        return job.as_it_was(), False


def hit(name: str) -> None:
    """Keeps in mind that a module came from the persistent cache."""
    _report.add(Report(name, "cached", {}, {}))


@dataclasses.dataclass
class _Job:
    """A module, and how jax would have compiled it."""

    call: Callable[..., Any]
    options: Options
    backend: Any
    module: Any
    devices: Any
    compile_options: Any
    callbacks: Any
    start: float = dataclasses.field(default_factory=time.monotonic)
    first: Any = None
    """What jax would have made, where it was made on the way."""
    users_error: Exception | None = None

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def as_it_was(self) -> Any:
        """What jax would have made."""
        if self.first is None:
            try:
                self.first = self.call(self.module, self.devices, self.compile_options, self.callbacks)
            except Exception as error:
                self.users_error = error
                raise
        return self.first

    def is_users(self, error: Exception) -> bool:
        """Whether an error is of the module as it was, and so not ours to mend."""
        return error is self.users_error

    def run(self) -> Any:
        partitions = self.compile_options.num_partitions
        kinds = self.options.kinds()
        has_written = self.options.path != "partitioned" and _modules.may_have(self.module, kinds)
        may_be_partitioned = self.options.path != "written" and partitions > 1
        if not has_written and not may_be_partitioned:
            return self.as_it_was()
        self.check()
        wanted = self.options.rewrite_options()
        merged, written = _modules.rewrite_written(self.module, wanted) if has_written else (None, None)
        module = merged or self.module
        spent = self.seconds()
        if not may_be_partitioned:
            executable = self.as_it_was() if merged is None else self.call_merged(merged)
            return self.report(executable, written, None, spent)
        executable, text = self.compile_with_text(module, self.without_combiners() if merged else self.compile_options)
        if merged is None:
            self.first = executable
        else:
            self.check_donation(executable)
        # What the program wrote has been looked at; only what the partitioner added is left.
        if written and not _has_more(text, written, self.options):
            return self.report(executable, written, None, spent)
        shardings = [list(map(_private.sharding_text, found or [])) for found in _shardings(executable)]
        new, partitioned = _modules.rewrite_partitioned(self.module, text, wanted, *shardings)
        spent = self.seconds()
        if new is not None:
            options = self.without_combiners()
            # The wrapper is written in the words of XLA's older partitioner.
            options.executable_build_options.use_shardy_partitioner = False
            made = self.call(new, self.devices, options, self.callbacks)
            _check_same(executable, made)
            executable = made
        return self.report(executable, written, partitioned, spent)

    def check(self) -> None:
        """Refuses what this path cannot do, before any work."""
        if jax.process_count() > 1:
            raise Refused("programs of several processes are not rewritten")
        if _private.is_compile_only(self.backend):
            raise Refused("it is compiled for devices that are not there")
        if self.callbacks:
            raise Refused("it calls the host, which text does not carry")
        _modules.check(self.module)

    def without_combiners(self) -> Any:
        """The compile options, with XLA's own combiners off for what is bucketed: they would merge buckets again."""
        options = copy.deepcopy(self.compile_options)
        passes = [f"{of}{OPCODES[kind]}-combiner" for kind in self.options.kinds() for of in ("", "cpu-", "gpu-")]
        name = "xla_disable_hlo_passes"
        overrides = list(options.env_option_overrides or [])
        asked = [value for key, value in overrides if key == name]
        rest = [(key, value) for key, value in overrides if key != name]
        options.env_option_overrides = [*rest, (name, ",".join([*asked, *passes]))]
        return options

    def compile_with_text(self, module: Any, compile_options: Any) -> tuple[Any, str]:
        """Compiles, and gives the text behind the partitioner as well."""
        options = copy.deepcopy(compile_options)
        with tempfile.TemporaryDirectory(prefix="bucketeer") as folder:
            options.env_option_overrides = [
                *(options.env_option_overrides or []),
                ("xla_dump_to", folder),
                ("xla_dump_hlo_as_text", True),
                ("xla_dump_hlo_pass_re", "spmd-partitioning"),
                ("xla_dump_large_constants", True),
                ("xla_dump_hlo_module_re", ".*"),
            ]
            executable = self.call(module, self.devices, options, self.callbacks)
            found = glob.glob(os.path.join(folder, "*after_spmd-partitioning*.txt"))
            if len(found) != 1:
                raise Refused(f"XLA wrote {len(found)} texts behind its partitioner, not one")
            with open(found[0], encoding="utf-8") as file:
                return executable, file.read()

    def call_merged(self, module: Any) -> Any:
        """Compiles a module whose written collectives are merged."""
        executable = self.call(module, self.devices, self.without_combiners(), self.callbacks)
        self.check_donation(executable)
        return executable

    def check_donation(self, executable: Any) -> None:
        """Refuses a result that does not take over the buffers that the module gave it by name."""
        found = _private.alias_text(executable).count("{}, ")
        wanted = _modules.aliased(self.module)
        if found < wanted:
            raise Refused(f"{wanted} arguments are donated to results, but of the rewritten module {found}")

    def report(self, executable: Any, written: Rewritten | None, partitioned: Rewritten | None, spent: float) -> Any:
        """Keeps a report, and hands the executable on."""
        before, after = _counts(written, partitioned)
        merged = [("written", written), ("partitioned", partitioned)]
        paths = [path for path, rewritten in merged if rewritten and rewritten.buckets]
        path = "both" if len(paths) == 2 else "".join(paths) or "none"
        last = partitioned or written
        remarks = last.remarks if last else ()
        _report.add(Report(_private.module_name(self.module), path, before, after, remarks, spent))
        return executable


def _counts(written: Rewritten | None, partitioned: Rewritten | None) -> tuple[dict[str, int], dict[str, int]]:
    """Collectives before and after. What is partitioned has the written collectives in it, as they were merged."""
    if not (written and partitioned):
        only = written or partitioned
        return (dict(only.before), dict(only.after)) if only else ({}, {})
    before = dict(partitioned.before)
    for kind, count in written.before.items():
        before[kind] = before.get(kind, 0) + count - written.after.get(kind, 0)
    return before, dict(partitioned.after)


def _has_more(text: str, written: Rewritten, options: Options) -> bool:
    """Whether a partitioned text has collectives that the program did not write."""
    return any(text.count(f" {OPCODES[kind]}(") > written.after.get(kind, 0) for kind in options.kinds())


def _shardings(executable: Any) -> tuple[Any, Any]:
    return executable.get_parameter_shardings(), executable.get_output_shardings()


def _check_same(first: Any, made: Any) -> None:
    """Refuses an executable that takes or gives its values otherwise than the first did."""
    looks = {
        "shardings": lambda one: [list(map(_private.sharding_text, found or [])) for found in _shardings(one)],
        "layouts": lambda one: [
            list(map(str, one.get_parameter_layouts())),
            list(map(str, one.get_output_layouts())),
        ],
        "memory kinds": lambda one: one.get_output_memory_kinds(),
        "donated buffers": _private.alias_text,
    }
    for what, look in looks.items():
        was, now = look(first), look(made)
        if was != now:
            raise Refused(f"the rewritten module has other {what}: {now}, not {was}")
