"""Holds rewritten HLO text against XLA: parses it, and runs it before and after on eight CPU devices.

    python scripts/check_with_jax.py BEFORE AFTER [BEFORE AFTER ...]

Needs jax and jaxlib 0.10.2. Every module must be accepted by XLA's parser. Those that convert to StableHLO (it has no word
for a permute of several tensors, nor for what a finished module holds) are compiled and run on the same random inputs,
other ones on each device, and the results must be equal bit for bit. Exit code 0 if all is well, else 1.
"""

import os
import re
import sys

# Without excess precision, a sum in bf16 is what it is wherever its operands come from.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_allow_excess_precision=false"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _hlo, _jax, xla_client

jax.config.update("jax_enable_x64", True)
DEVICES = 8


def parse(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text, _hlo.hlo_module_from_text(text)


def as_replicas(text):
    """The module with replicas in the place of partitions. XLA's layout assignment for CPUs fails on collectives that have a
    channel and several operands, since its own pipeline makes them only later."""
    text = re.sub(r", (channel_id=\d+|use_global_device_ids=true|sharding=\{[^{}]*\})", "", text)
    text = re.sub(r", (num_partitions|replica_count)=\d+", "", text).replace(" partition-id()", " replica-id()")
    return re.sub(r"^(HloModule [^,\n]*)", rf"\1, replica_count={DEVICES}", text, count=1, flags=re.M)


def random_input(shape, rng):
    dtype = shape.numpy_dtype()
    sizes = shape.dimensions()
    if dtype == np.bool_:
        return rng.integers(0, 2, sizes).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 4, sizes).astype(dtype)
    return rng.standard_normal(sizes).astype(dtype)


def inputs_of(module):
    shapes = _hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape().parameter_shapes()
    rng = np.random.default_rng(0)
    return [[random_input(shape, rng) for _ in range(DEVICES)] for shape in shapes]


def run(text, inputs):
    """Results by output and device."""
    module = _hlo.hlo_module_from_text(as_replicas(text))
    client = jax.devices("cpu")[0].client
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = DEVICES, 1
    build.device_assignment = _jax.DeviceAssignment.create(np.arange(DEVICES).reshape(DEVICES, 1))
    stablehlo = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    devices = _jax.DeviceList(tuple(jax.devices("cpu")[:DEVICES]))
    executable = client.compile_and_load(stablehlo, devices, options)
    mesh = Mesh(np.array(jax.devices("cpu")[:DEVICES]), ("d",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    arrays = []
    for values in inputs:
        shards = [jax.device_put(value, device) for value, device in zip(values, jax.devices("cpu"))]
        arrays.append(jax.make_array_from_single_device_arrays(values[0].shape, everywhere, shards))
    results = executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [[np.asarray(value) for value in values] for values in results]


def same_bits(left, right):
    def bits(results):
        return [[(value.tobytes(), value.dtype, value.shape) for value in values] for values in results]

    return bits(left) == bits(right)


def check(before, after):
    """What happened, and whether that is well."""
    source, module = parse(before)
    result, _ = parse(after)
    if " fusion(" in source:
        return "parsed; XLA does not take fusions in again", True
    try:
        inputs = inputs_of(module)
        expected = run(source, inputs)
        if not same_bits(expected, run(source, inputs)):
            return "parsed; the source gives other results each time", True
    except Exception as error:  # What XLA does not run before says nothing of the rewrite.
        return "parsed; XLA does not run the source: " + str(error).split("\n")[0][:120], True
    try:
        found = run(result, inputs)
    except Exception as error:
        message = str(error).split("\n")[0][:200]
        unsaid = "requires a single operand" in message
        return ("parsed; StableHLO cannot say it: " if unsaid else "does not run: ") + message, unsaid
    same = same_bits(expected, found)
    return ("equal on %d devices" % DEVICES if same else "DIFFERENT RESULTS"), same


def main(paths):
    if not paths or len(paths) % 2:
        print(__doc__)
        return 1
    wrong = 0
    for before, after in zip(paths[::2], paths[1::2]):
        try:
            what, well = check(before, after)
        except Exception as error:
            what, well = "refused by XLA's parser: " + str(error)[:400], False
        wrong += not well
        print(f"{'ok' if well else 'WRONG':5} {after}: {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
