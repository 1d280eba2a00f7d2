"""Modules on their way out of jax, through HLO text, and back.

There are two ways. What a program writes itself (`psum` under `shard_map`) is in the module before XLA partitions it:
`rewrite_written` replaces the module. What XLA's partitioner makes is not: `rewrite_partitioned` takes the text
behind the partitioner, which computes one device's part, and wraps it so that the whole looks from outside as the
module did. In both, the new module takes and gives what the old one did, with its attributes: donation, layouts,
memory kinds.
"""

from __future__ import annotations

from typing import Any

from . import _private
from ._private import ir
from ._rewrite import Rewritten, rewrite

OPCODES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
}
"""By kind: the opcode in HLO text."""

_Attributes = list[dict[str, ir.Attribute]]
"""Of each argument or result: its attributes."""

_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


class Refused(Exception):
    """A module that cannot be rewritten, and why."""


def may_have(module: ir.Module, kinds: list[str]) -> bool:
    """Whether a module may have written collectives of these kinds. Cheap, and never wrong when it says no."""
    code = _private.bytecode(module)
    return any(kind.encode() in code for kind in kinds)


def check(module: ir.Module) -> None:
    """Refuses what does not come back from HLO text as it went in."""
    callbacks: list[str] = []

    def look(op: Any) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if "callback" in target:
                callbacks.append(target)
        elif op.name in ("stablehlo.send", "stablehlo.recv", "stablehlo.infeed", "stablehlo.outfeed"):
            callbacks.append(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if callbacks:
        raise Refused(f"it calls the host ({callbacks[0]}), which text does not carry")
    types = _function_type(_main(module))
    if any("token" in str(type) for type in (*types.inputs, *types.results)):
        raise Refused("it has ordered effects, whose tokens text does not carry")


def rewrite_written(module: ir.Module, options: dict[str, Any]) -> tuple[ir.Module | None, Rewritten]:
    """The module with its own collectives merged; None if nothing is merged."""
    rewritten = _rewrite(_private.hlo_text(module), options)
    if not rewritten.buckets:
        return None, rewritten
    new = _private.from_hlo_text(rewritten.text, module.context)
    with module.context, ir.Location.unknown():
        was, now = _main(module), _main(new)
        if _types(was) != _types(now):
            raise Refused("the rewritten module takes or gives other types than the module did")
        for key in ("arg_attrs", "res_attrs"):
            _take_attributes(now, key, _attributes(was, key), _of_shardy(new, _attributes(now, key)))
        _take_module_attributes(module, new)
        new.operation.verify()
    return new, rewritten


def rewrite_partitioned(
    module: ir.Module, text: str, options: dict[str, Any], inputs: list[str], outputs: list[str]
) -> tuple[ir.Module | None, Rewritten]:
    """The module with `text`, its partitioned form, rewritten and in the place of what it computed; None if nothing is
    merged. `inputs` and `outputs` are the shardings that the partitioner chose."""
    rewritten = _rewrite(text, options)
    if not rewritten.buckets:
        return None, rewritten
    new = _private.from_hlo_text(rewritten.text, module.context)
    with module.context, ir.Location.unknown():
        was, body = _main(module), _main(new)
        _check_shardings(_function_type(was), _function_type(body), inputs, outputs)
        body.attributes["sym_name"] = ir.StringAttr.get(_BODY)
        body.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for key in ("arg_attrs", "res_attrs"):
            if key in body.attributes:
                del body.attributes[key]
        _mark_manual(new)
        main = _wrapper(_function_type(was), _function_type(body), inputs, outputs)
        new.body.append(main)
        for key, shardings in (("arg_attrs", inputs), ("res_attrs", outputs)):
            sharded: _Attributes = [{"mhlo.sharding": ir.StringAttr.get(sharding)} for sharding in shardings]
            _take_attributes(main, key, _attributes(was, key), sharded)
        _take_module_attributes(module, new)
        new.operation.verify()
    return new, rewritten


def aliased(module: ir.Module) -> int:
    """How many arguments of a module are donated to a result by its number."""
    return sum("tf.aliasing_output" in each for each in _attributes(_main(module), "arg_attrs"))


_BODY = "bucketeer_partition"


def _rewrite(text: str, options: dict[str, Any]) -> Rewritten:
    if "constant({...})" in text:
        raise Refused("its text leaves out a large constant")
    return rewrite(text, options)


def _main(module: ir.Module) -> Any:
    for op in module.body.operations:
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op.operation
    raise Refused("it has no function `main`")


def _function_type(function: Any) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _types(function: Any) -> tuple[list[str], list[str]]:
    types = _function_type(function)
    return [str(type) for type in types.inputs], [str(type) for type in types.results]


def _attributes(function: Any, key: str) -> _Attributes:
    """The attributes of each argument or result."""
    types = _function_type(function)
    count = len(types.inputs if key == "arg_attrs" else types.results)
    if key not in function.attributes:
        return [{} for _ in range(count)]
    lists: Any = ir.ArrayAttr(function.attributes[key])
    dicts: list[Any] = [ir.DictAttr(each) for each in lists]
    return [{named.name: named.attr for named in each} for each in dicts]


def _of_shardy(module: ir.Module, attributes: _Attributes) -> _Attributes:
    """Attributes without shardings in the words of XLA's older partitioner, where a module has those of the newer one.

    On the way to HLO text every result gets one as soon as one has, and the module is taken for one of the older."""
    frontend = module.operation.attributes.get("mhlo.frontend_attributes")
    if frontend is None or "xla.sdy.meshes" not in ir.DictAttr(frontend):
        return attributes
    return [{name: value for name, value in each.items() if name != "mhlo.sharding"} for each in attributes]


def _take_attributes(function: Any, key: str, was: _Attributes, shardings: _Attributes) -> None:
    """Gives arguments or results the attributes that they had, with these shardings."""
    merged = []
    for old, new in zip(was, shardings, strict=True):
        kept = {name: value for name, value in old.items() if name not in _SHARDINGS}
        merged.append(ir.DictAttr.get(kept | new))
    function.attributes[key] = ir.ArrayAttr.get(merged)


def _take_module_attributes(module: ir.Module, new: ir.Module) -> None:
    """What a module says of itself is what it said: of its aliases the arguments speak, where they were kept."""
    for name in ("mhlo.input_output_alias", "mhlo.cross_program_prefetches"):
        if name in new.operation.attributes:
            del new.operation.attributes[name]
    for name in ("sym_name", "mhlo.num_partitions", "mhlo.num_replicas"):
        if name in module.operation.attributes:
            new.operation.attributes[name] = module.operation.attributes[name]


def _check_shardings(was: Any, body: Any, inputs: list[str], outputs: list[str]) -> None:
    wanted = len(was.inputs), len(was.results)
    for what, found in (
        ("values in the partitioned module", (len(body.inputs), len(body.results))),
        ("shardings in the compiled module", (len(inputs), len(outputs))),
    ):
        if found != wanted:
            raise Refused(f"{wanted[0]} arguments and {wanted[1]} results have {found[0]} and {found[1]} {what}")


def _mark_manual(module: ir.Module) -> None:
    """Says of all that depends on the device that it is one device's part already, so that no partitioner touches it.
    XLA infers the same of the rest."""
    manual = ir.StringAttr.get("{manual}")
    names = {f"stablehlo.{kind}" for kind in OPCODES} | {"stablehlo.partition_id", "stablehlo.collective_permute"}

    def mark(op: Any) -> ir.WalkResult:
        if op.name in names and len(op.results) == 1:
            op.attributes["mhlo.sharding"] = manual
        return ir.WalkResult.ADVANCE

    module.operation.walk(mark)


def _wrapper(whole: Any, part: Any, inputs: list[str], outputs: list[str]) -> Any:
    """A function `main` over whole values: it cuts its arguments up, calls the body, and puts the results together."""

    def call(name: str, target: str, value: str, sharding: str, types: str) -> str:
        return f'{name} = stablehlo.custom_call @{target}({value}) {{mhlo.sharding = "{sharding}"}} : {types}'

    count = len(whole.results)
    results = ", ".join(map(str, whole.results))
    arguments = ", ".join(f"%arg{at}: {type}" for at, type in enumerate(whole.inputs))
    lines = [f"func.func public @main({arguments}) -> ({results}) {{"]
    for at, (of, to, sharding) in enumerate(zip(whole.inputs, part.inputs, inputs, strict=True)):
        lines.append(call(f"%sharded{at}", "Sharding", f"%arg{at}", sharding, f"({of}) -> {of}"))
        lines.append(call(f"%part{at}", "SPMDFullToShardShape", f"%sharded{at}", "{manual}", f"({of}) -> {to}"))
    parts = ", ".join(f"%part{at}" for at in range(len(inputs)))
    made = f"%made:{count} = " if count else ""
    types = ", ".join(map(str, part.inputs)), ", ".join(map(str, part.results))
    lines.append(f"{made}func.call @{_BODY}({parts}) : ({types[0]}) -> ({types[1]})")
    for at, (of, to, sharding) in enumerate(zip(part.results, whole.results, outputs, strict=True)):
        lines.append(call(f"%manual{at}", "Sharding", f"%made#{at}", "{manual}", f"({of}) -> {of}"))
        lines.append(call(f"%result{at}", "SPMDShardToFullShape", f"%manual{at}", sharding, f"({of}) -> {to}"))
    given = ", ".join(f"%result{at}" for at in range(count))
    lines.append(f"return {given} : {results}" if count else "return")
    declared = f"func.func private @{_BODY}({types[0]}) -> ({types[1]})"
    outer = ir.Module.parse("\n".join(["module {", declared, *lines, "}", "}"]))
    return _main(outer).clone()
