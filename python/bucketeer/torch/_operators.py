"""What the targets of FX nodes are called, and what the dispatcher says of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

# Python's names for the modules of builtin functions, as FX prints them.
_MODULES = {"_operator": "operator"}


@lru_cache(maxsize=4096)
def describe(target: Any) -> tuple[str, str | None]:
    """Name a call's target as FX text does, without `torch.ops`, and give its schema if the dispatcher has one.

    The schema ends in ` tags: ` and those of the operator's tags that say what it does beside its result.
    """
    if isinstance(target, OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return f"{namespace}.{name}.{target._overloadname}", _schema(target)
    if isinstance(target, OpOverloadPacket):
        namespace, _, name = target._qualified_op_name.partition("::")
        return f"{namespace}.{name}", None
    if isinstance(target, HigherOrderOperator):
        return f"{target.namespace}.{target.__name__}", None
    module = getattr(target, "__module__", None) or type(target).__module__
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__name__
    # `<lambda>` and `<locals>` are no names.
    return f"{_MODULES.get(module, module)}.{name}".replace("<", "").replace(">", ""), None


def _schema(operator: OpOverload) -> str:
    schema = str(operator._schema)
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return f"{schema} tags: nondeterministic_seeded"
    return schema


def resolve(target: str) -> Any:
    """Find what a new node is to call.

    Raises `LookupError` if this PyTorch does not have it.
    """
    module, _, name = target.rpartition(".")
    if module == "operator":
        import operator

        found = getattr(operator, name, None)
    else:
        found = torch.ops
        for part in target.split("."):
            found = getattr(found, part, None)
            if found is None:
                break
    if found is None:
        raise LookupError(f"PyTorch {torch.__version__} has no operator `{target}`, which the rewritten graph calls")
    return found
