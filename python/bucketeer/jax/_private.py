"""Everything of jax and jaxlib that has no public name, and the versions it was tested with.

Nothing else in this package may import a private name. A jax that lacks one of them is refused when this module is
imported, by the name that it lacks; a jax of another version that has all of them is tried, with a warning.
"""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

JAX_VERSION = "0.10.2"
"""The version of jax that this was tested with."""

JAXLIB_VERSION = "0.10.2"
"""The version of jaxlib that this was tested with."""


class UnsupportedJax(ImportError):
    """The jax that is installed lacks what this package needs."""


try:
    import jax
    import jaxlib
except ImportError as error:
    raise ImportError(f"bucketeer.jax needs jax: pip install jax=={JAX_VERSION}") from error

NAMES = {
    "jax": ["make_user_context"],
    "jax.extend.mlir": ["hlo_to_stablehlo"],
    "jax._src.compiler": ["backend_compile_and_load", "compile_or_get_cached", "_cache_write"],
    "jax._src.cache_key": ["custom_hook"],
    "jax._src.interpreters.mlir": ["module_to_bytecode"],
    "jaxlib._hlo": ["HloPrintOptions", "hlo_module_from_text"],
    "jaxlib._jax": ["CompileOnlyPyClient", "mlir"],
    "jaxlib._jax.mlir": ["mlir_module_to_xla_computation"],
    "jaxlib.xla_client": ["CompileOptions", "HloSharding"],
    "jaxlib.mlir.ir": ["Module", "StringAttr", "ArrayAttr", "DictAttr", "Location"],
}
"""By module: the names that this package takes from it, private or not."""


def check_versions(jax_version: str, jaxlib_version: str) -> None:
    """Warns of versions other than those that this was tested with."""
    if (jax_version, jaxlib_version) != (JAX_VERSION, JAXLIB_VERSION):
        warnings.warn(
            f"bucketeer.jax was tested with jax {JAX_VERSION} and jaxlib {JAXLIB_VERSION}, "
            f"and is tried with jax {jax_version} and jaxlib {jaxlib_version}",
            stacklevel=2,
        )


def _find(module: str) -> Any:
    """A module, or what lies in one under a dotted name."""
    try:
        return importlib.import_module(module)
    except ImportError:
        parent, _, name = module.rpartition(".")
        found = getattr(_find(parent), name, None) if parent else None
        if found is None:
            raise
        return found


def check_names() -> None:
    """Raises `UnsupportedJax` for the first name that is missing."""
    for module, names in NAMES.items():
        try:
            found = _find(module)
        except ImportError:
            raise _lacks(module) from None
        for name in names:
            if not hasattr(found, name):
                raise _lacks(f"{module}.{name}")


def _lacks(name: str) -> UnsupportedJax:
    return UnsupportedJax(
        f"bucketeer.jax needs jax {JAX_VERSION} and jaxlib {JAXLIB_VERSION}: "
        f"jax {jax.__version__} and jaxlib {_jaxlib_version} have no `{name}`"
    )


_jaxlib_version: str = jaxlib.__version__  # type: ignore[attr-defined]

check_versions(jax.__version__, _jaxlib_version)
check_names()

from jax._src import cache_key as _cache_key  # noqa: E402
from jax._src import compiler as _compiler  # noqa: E402
from jax._src.interpreters import mlir as _mlir  # noqa: E402
from jax.extend.mlir import hlo_to_stablehlo as _hlo_to_stablehlo  # noqa: E402
from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined]  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

__all__ = ["UnsupportedJax", "context", "install", "ir"]

context: Any = jax.make_user_context(None)  # type: ignore[no-untyped-call]
"""The options of the thread, or None. Part of the key of all of jax's caches in memory."""


def is_compile_only(backend: Any) -> bool:
    """Whether a backend has no devices to run on."""
    return isinstance(backend, _jax.CompileOnlyPyClient)


def bytecode(module: ir.Module) -> bytes:
    """A module as bytes."""
    return _mlir.module_to_bytecode(module)


def hlo_text(module: ir.Module) -> str:
    """A module as HLO text, with all of its constants."""
    computation = _jax.mlir.mlir_module_to_xla_computation(bytecode(module), False, False)
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return str(computation.get_hlo_module().to_string(options))


def from_hlo_text(text: str, context: ir.Context) -> ir.Module:
    """HLO text as a module of StableHLO. XLA checks the text."""
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    with context:
        return ir.Module.parse(_hlo_to_stablehlo(proto))


def sharding_text(sharding: Any) -> str:
    """A sharding that an executable gives, as `mhlo.sharding` has it."""
    return str(xla_client.HloSharding.from_proto(sharding))


def alias_text(executable: Any) -> str:
    """Which inputs an executable takes for its results: `{0}: (1, {}, may-alias)` and so on; empty if none."""
    header = str(executable.hlo_modules()[0].to_string()).split("\n", 1)[0]
    _, found, rest = header.partition("input_output_alias={")
    if not found:
        return ""
    depth = 1
    for at, char in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if not depth:
            return rest[:at].strip()
    raise ValueError("the header of the compiled module has no end of `input_output_alias`")


_lock = threading.Lock()
_installed = False
_current = threading.local()


def install(compile: Callable[..., Any], key: Callable[[Any], str], hit: Callable[[str], None]) -> None:
    """Puts this package between jax and XLA, once for the process. Where `context` is None, jax does as before.

    `compile(call, options, backend, module, devices, compile_options, callbacks)` compiles where the context has
    `options`, with jax's own `call`, and says whether the result may be kept in the persistent cache; `key(options)` is
    added to the key of that cache; `hit(name)` is told of modules for several devices that come from it.
    """
    global _installed
    with _lock:
        if not _installed:
            _install(compile, key, hit)
            _installed = True


def _install(compile: Callable[..., Any], key: Callable[[Any], str], hit: Callable[[str], None]) -> None:
    jax_compile = _compiler.backend_compile_and_load
    jax_cached = _compiler.compile_or_get_cached
    jax_write = _compiler._cache_write
    jax_hook = _cache_key.custom_hook

    @functools.wraps(jax_compile)
    def backend_compile_and_load(
        backend: Any, module: ir.Module, executable_devices: Any, options: Any, host_callbacks: Any
    ) -> Any:
        call = functools.partial(jax_compile, backend)
        asked = context.value
        if asked is None:
            return call(module, executable_devices, options, host_callbacks)
        _current.compiled = True
        executable, _current.keep = compile(call, asked, backend, module, executable_devices, options, host_callbacks)
        return executable

    @functools.wraps(jax_cached)
    def compile_or_get_cached(backend: Any, computation: ir.Module, devices: Any, *args: Any, **kwargs: Any) -> Any:
        _current.compiled, _current.keep = False, True
        executable = jax_cached(backend, computation, devices, *args, **kwargs)
        if context.value is not None and not _current.compiled and devices.size > 1:
            hit(module_name(computation))
        return executable

    @functools.wraps(jax_write)
    def cache_write(*args: Any, **kwargs: Any) -> None:
        if getattr(_current, "keep", True):
            jax_write(*args, **kwargs)

    @functools.wraps(jax_hook)
    def custom_hook() -> str:
        asked = context.value
        of_others: str = jax_hook()
        return of_others if asked is None else of_others + key(asked)

    _compiler.backend_compile_and_load = backend_compile_and_load
    _compiler.compile_or_get_cached = compile_or_get_cached
    _compiler._cache_write = cache_write
    _cache_key.custom_hook = custom_hook


def module_name(module: ir.Module) -> str:
    """A module's name, such as `jit_step`."""
    return ir.StringAttr(module.operation.attributes["sym_name"]).value
