"""`bucketing`, which switches merging on."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from . import _compile, _private
from ._options import PATHS, Options
from ._rewrite import rewrite

_Function = TypeVar("_Function", bound=Callable[..., Any])

_EMPTY = "HloModule options\n\nENTRY main {\n  ROOT x = f32[] parameter(0)\n}\n"


class bucketing:
    """Merges the collectives of every module that jax compiles inside of it, in the thread that entered it.

    A context manager, and a decorator of functions that call what is compiled. A cap is the most bytes of a bucket:
    `"500MB"`, `"25MiB"`, a number of bytes, a list such as `"1MiB,25MiB"`, `"none"` or `"off"`. If no kind is given,
    gathers and scatters are bucketed up to 256 MiB and all-reduces up to 25 MiB; if one is given, only those given.

    What was compiled outside is compiled again inside, and the other way round: the options are part of the keys of
    jax's caches. Of nested contexts the innermost holds.

    Args:
        all_gather, reduce_scatter, all_reduce, all_to_all: caps.
        policy: which collectives are tried with which: `"greedy"`, `"adjacent"` or `"xla"`.
        memory: the most bytes that may be alive at once, such as `"80GB"` or `"+5%"`.
        mode: `"concat"`, the only one that can go back into XLA.
        verify: whether a module is only taken once it is proven that it computes what it did.
        path: `"written"` merges what programs write themselves, `"partitioned"` what XLA's partitioner makes; `"auto"`
            does what a module needs.
        strict: whether a module that cannot be rewritten is an error. Otherwise it is compiled as it was, with a
            warning.
    """

    def __init__(
        self,
        *,
        all_gather: str | int | None = None,
        reduce_scatter: str | int | None = None,
        all_reduce: str | int | None = None,
        all_to_all: str | int | None = None,
        policy: str | None = None,
        memory: str | int | None = None,
        mode: str | None = None,
        verify: bool = True,
        path: str = "auto",
        strict: bool = False,
    ) -> None:
        if mode not in (None, "concat"):
            raise ValueError(f"mode {mode!r} cannot go back into XLA: its partitioner takes no tuples; use 'concat'")
        if path not in PATHS:
            raise ValueError(f"path {path!r} is not one of {', '.join(map(repr, PATHS))}")
        self._options = Options(
            all_gather, reduce_scatter, all_reduce, all_to_all, policy, memory, bool(verify), path, bool(strict)
        )
        # Caps and policies that cannot be are said here, not as a warning of each module.
        rewrite(_EMPTY, self._options.rewrite_options())
        self._entered = threading.local()

    def __enter__(self) -> bucketing:
        _private.install(_compile.compile, Options.cache_key, _compile.hit)
        entered = _private.context(self._options)
        entered.__enter__()
        self._stack().append(entered)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack().pop().__exit__(*exception)

    def __call__(self, function: _Function) -> _Function:
        """The function, which runs inside of the context whenever it is called."""
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError("bucketing decorates functions that return, not coroutines or generators")

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                warnings.warn(
                    f"{getattr(function, '__name__', function)} is being traced: bucketing acts where jax compiles, "
                    "so decorate the function that jax.jit returns, not the one that it is given",
                    _compile.BucketingWarning,
                    stacklevel=2,
                )
            with self:
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def _stack(self) -> list[Any]:
        """What this thread entered, for one context may be entered again inside of itself."""
        stack: list[Any] | None = getattr(self._entered, "stack", None)
        if stack is None:
            stack = self._entered.stack = []
        return stack
