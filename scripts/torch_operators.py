#!/usr/bin/env python3
"""Write the two tables of operators that Bucketeer reads, from PyTorch's own schemas.

    torch_operators.py [--check]

  src/check/schemas/torch.txt    for the checker: each schema as PyTorch prints it,
                                 a tab, and the operator's tags.
  src/ir/operators/torch.tsv     for the passes: one line an overload, four columns.

The two are made apart: the first is the text of the schema, the second comes from
the schema's objects (arguments, returns, alias marks), so that a fault of reading in
one is seen against the other. Columns of the second, separated by tabs:

  name      namespace.base.overload
  args      `NAME` holds no tensor, `NAME:` may hold some; `=a` is in alias set a,
            `!a` is in it and written; `*NAME` is keyword-only. Inside of lists
            PyTorch does not name the set: a bare `=` or `!`. `*` as a set is any.
  returns   `-` a tensor of its own, `.` no tensor, `=a` or `!a` in alias set a
  flags     random                 draws random numbers
            maybe                  may write or alias what its schema does not say
            inplace_view           changes the shape or strides of its argument
            data_dependent         the shape of its result depends on values
            script                 only TorchScript calls this overload

Operators are those registered once torch and its parts for distributed training,
Inductor and quantization are imported. --check writes nothing and ends with 1 if
a file differs from what PyTorch says now.
"""
import argparse
import importlib
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
RAW = ROOT / "src/check/schemas/torch.txt"
TABLE = ROOT / "src/ir/operators/torch.tsv"

MODULES = [
    "torch.distributed",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed._symmetric_memory",
    "torch._inductor.fx_passes.bucketing",
    "torch._inductor.inductor_prims",
    "torch._prims.rng_prims",
    "torch.ao.quantization.fx._decomposed",
]

# Kinds of types that hold no tensor. Whatever is not named here may hold one.
PLAIN = {
    "IntType", "BoolType", "FloatType", "NumberType", "StringType", "ComplexType",
    "DeviceObjType", "GeneratorType", "SymBoolType", "SymIntType", "QSchemeType",
    "StreamObjType", "NoneType", "AnyEnumType",
}
PLAIN_CLASSES = {
    "__torch__.torch.classes.c10d.ProcessGroup",
    "__torch__.torch.classes.c10d.ReduceOp",
    "__torch__.torch.classes.cuda.Stream",
    "__torch__.torch.classes.dist_rpc.WorkerInfo",
    "__torch__.torch.classes.profiler._RecordFunction",
}

FLAGS = {
    "nondeterministic_seeded": "random",
    "maybe_aliasing_or_mutating": "maybe",
    "inplace_view": "inplace_view",
    "data_dependent_output": "data_dependent",
    "dynamic_output_shape": "data_dependent",
}


def holds_tensor(ty):
    kind = ty.kind()
    if kind in PLAIN:
        return False
    if kind == "ClassType":
        return str(ty) not in PLAIN_CLASSES
    if kind in ("ListType", "OptionalType"):
        return holds_tensor(ty.getElementType())
    if kind == "TupleType":
        return any(map(holds_tensor, ty.elements()))
    if kind == "DictType":
        return holds_tensor(ty.getKeyType()) or holds_tensor(ty.getValueType())
    return True


def mark(info):
    if info is None:
        return ""
    names = "|".join(sorted(name.split("::")[-1] for name in info.before_set))
    return ("!" if info.is_write else "=") + names


def argument(arg):
    text = ("*" if arg.kwarg_only else "") + arg.name
    return f"{text}:{mark(arg.alias_info)}" if holds_tensor(arg.type) else text


def result(ret):
    return (mark(ret.alias_info) or "-") if holds_tensor(ret.type) else "."


def tags_of(schema):
    _, _, tags = torch._C._get_operation_overload(schema.name, schema.overload_name)
    return sorted(str(tag).split(".")[-1] for tag in tags)


def name_of(schema):
    return schema.name.replace("::", ".") + "." + (schema.overload_name or "default")


def row(schema, tags):
    flags = {FLAGS[tag] for tag in tags if tag in FLAGS}
    overload = "." + schema.overload_name if schema.overload_name else ""
    if not torch._C._dispatch_has_kernel(schema.name + overload):
        flags.add("script")
    flags = sorted(flags)
    args = " ".join(map(argument, schema.arguments))
    returns = " ".join(map(result, schema.returns))
    return "\t".join([name_of(schema), args, returns, " ".join(flags)])


def tables():
    for module in MODULES:
        importlib.import_module(module)
    raw, rows = [], []
    for schema in torch._C._jit_get_all_schemas():
        tags = tags_of(schema)
        raw.append(f"{schema}\t{' '.join(tags)}")
        rows.append(row(schema, tags))
    return {RAW: sorted(raw), TABLE: sorted(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = 0
    for path, lines in tables().items():
        text = "\n".join(lines) + "\n"
        same = path.exists() and path.read_text() == text
        stale += not same
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        state = "as it was" if same else "differs" if check else "written"
        print(f"{path.relative_to(ROOT)}: {len(lines)} overloads, PyTorch {torch.__version__}, {state}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
