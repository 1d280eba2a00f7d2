"""Turning it on."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from ._pass import BucketeerPass, refuse_conflicts
from ._private import passes_of, set_for_other_threads

if TYPE_CHECKING:
    from typing_extensions import Self

_HOOK = "post_grad_custom_post_pass"


class _Hook(CustomGraphPass):
    """What Inductor is told. Threads keep what they have read, so that it is turned off here."""

    def __init__(self, made: CustomGraphPass, covered: list[_Hook]) -> None:
        self.inner: CustomGraphPass | None = made
        # Those that were enabled before, the last of them last.
        self.covered = covered

    def turn_off(self) -> None:
        self.inner = None

    def __call__(self, graph: Graph) -> None:
        if self.inner is not None:
            self.inner(graph)

    def uuid(self) -> Any:
        return "bucketeer-off" if self.inner is None else self.inner.uuid()

    def __deepcopy__(self, memo: Any) -> _Hook:
        """Inductor copies what is the default; that would be on for ever."""
        return self


class Hooked:
    """A pass runs on each graph that Inductor compiles, in all threads, until `disable()` or the end of a `with` block.

    Passes that are set are kept, and run first. Of those that are enabled only the last runs, until it is disabled. In threads that have
    passes of their own set, these alone run.
    """

    def __init__(self, made: CustomGraphPass) -> None:
        from torch._inductor import config

        before = passes_of(getattr(config, _HOOK))
        hooks = [one for one in before if isinstance(one, _Hook)]
        self._hook = _Hook(made, [every for one in hooks for every in (*one.covered, one)])
        _set([one for one in before if not isinstance(one, _Hook)], [self._hook])
        self._undo = set_for_other_threads(_HOOK, self._hook)

    def disable(self) -> None:
        """Turn it off, in all threads: passes that were set before, or since, stay."""
        from torch._inductor import config

        self._hook.turn_off()
        # The last of those that are still on.
        under = [one for one in self._hook.covered if one.inner is not None][-1:]
        self._undo(under[0] if under else None)
        now = passes_of(getattr(config, _HOOK))
        if self._hook in now:
            _set([one for one in now if one is not self._hook], under)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disable()


def _set(others: list[Any], hooks: list[_Hook]) -> None:
    """Set passes in this thread: none, one or several, as Inductor takes them."""
    from torch._inductor import config

    every = [*others, *hooks]
    setattr(config, _HOOK, every if len(every) > 1 else every[0] if every else None)


class Enabled(Hooked):
    """Bucketeer is on until `disable()`, or until the end of a `with` block."""


def enable(
    *,
    all_gather: str | int | None = None,
    reduce_scatter: str | int | None = None,
    all_reduce: str | int | None = None,
    policy: str | None = None,
    memory: str | int | None = None,
    mode: str | None = None,
    profile: Any = None,
    times: Any = None,
    verify: bool = True,
    check_ranks: bool = False,
    strict: bool = False,
    timeout_s: float = 300.0,
    **options: Any,
) -> Enabled:
    """Bucket the collectives of every graph that `torch.compile` compiles with Inductor from here on.

    `all_gather`, `reduce_scatter` and `all_reduce` are caps, in bytes or as `"500MB"`, `"25MiB"`, `"off"`; where none is given,
    all three are bucketed at the defaults. `policy` is `"greedy"` (default), `"adjacent"` (what Inductor's own pass merges) or
    `"xla"`. `memory` caps the bytes alive at once, as `"+5%"` or `"80GB"`. With a `profile`, such as `"h100"` or a file of
    `bucketeer calibrate`, launches and waits are placed so that they hide behind computation; `times` is a folder of `measure`.
    Other keyword arguments are flags of `bucketeer rewrite`, or of `bucketeer plan` with a profile: `mode="concat"` is
    `--mode concat`; `hints={"s33": 64}` states the value of a symbolic size, which is taken as unknown otherwise.

    `verify` proves each result; one that is not proven is not used. `check_ranks` compares the launches of all ranks before
    anything runs, waiting `timeout_s` seconds for one another, and takes graphs out of Inductor's cache; any failure is an error
    then. Without it, if a graph cannot be rewritten it stays as it is, and a
    `BucketeerWarning` says why; `strict` raises instead.

    Passes that are set already are kept and run first. The result is a context manager; `disable()` turns it off.

    Raises `bucketeer.OptionError` for options that make no sense, and `ConflictError` where Inductor's own bucketing or overlap
    scheduling is on.
    """
    caps = {"all_gather": all_gather, "reduce_scatter": reduce_scatter, "all_reduce": all_reduce}
    given = {**caps, "policy": policy, "memory": memory, "mode": mode, "profile": profile, "times": times, **options}
    made = BucketeerPass(verify=verify, check_ranks=check_ranks, strict=strict, timeout_s=timeout_s, **given)
    refuse_conflicts()
    return Enabled(made)
