"""What was done, for each module."""

from __future__ import annotations

import dataclasses
import threading


@dataclasses.dataclass(frozen=True)
class Report:
    """What was done with a module that jax compiled inside of `bucketing`."""

    module: str
    """Its name, such as `jit_step`."""
    path: str
    """How its collectives were merged: `written`, those of the program before XLA partitions it; `partitioned`, those
    of the partitioned module; `both`; `none`, nothing to merge; `failed`, compiled as it was; `cached`, taken from the
    persistent compilation cache as it was compiled before."""
    before: dict[str, int]
    """Collectives by kind, as the program or the partitioner made them."""
    after: dict[str, int]
    """Collectives by kind, as they are compiled."""
    remarks: tuple[str, ...] = ()
    """Why collectives were left alone, and why a module failed."""
    seconds: float = 0.0
    """What the rewrite cost. The last compilation is not in it; one that was made to see the partitioned module is."""

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count} -> {self.after.get(kind, 0)}" for kind, count in sorted(self.before.items()))
        words = [f"{self.module}: {self.path}", kinds, *(self.remarks if self.path == "failed" else ())]
        return f"{', '.join(filter(None, words))} ({self.seconds:.2f} s)"


_lock = threading.Lock()
_reports: list[Report] = []


def reports() -> list[Report]:
    """What was done, in the order in which modules were compiled, by all threads. Modules of a single device without
    collectives are not in it."""
    with _lock:
        return list(_reports)


def clear_reports() -> None:
    """Forgets all reports."""
    with _lock:
        _reports.clear()


def add(report: Report) -> None:
    """Keeps a report."""
    with _lock:
        _reports.append(report)
