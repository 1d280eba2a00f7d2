"""`bucketeer.jax` on eight devices of the CPU: the same bits, fewer collectives, and nothing of jax lost."""

# Programs of jax are functions of whatever it traces them with.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

jax = pytest.importorskip("jax", reason="needs jax: pip install jax==0.10.2")

import jax.numpy as jnp  # noqa: E402
import jax_programs as programs  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jaxlib.xla_client import CompileOptions  # noqa: E402

import bucketeer.jax  # noqa: E402
from bucketeer.jax import _compile, _modules, _private  # noqa: E402
from bucketeer.jax._options import Options  # noqa: E402

OPCODES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

# XLA merges all-reduces itself, later: without, the compiled text shows what went in.
NO_COMBINERS = {"xla_disable_hlo_passes": "all-reduce-combiner,cpu-all-reduce-combiner"}

STEPS = {
    "data parallel, partitioned": (programs.data_parallel_partitioned, "partitioned"),
    "data parallel, written": (programs.data_parallel_written, "written"),
    "fsdp, partitioned": (programs.fsdp_partitioned, "partitioned"),
    "fsdp, written": (programs.fsdp_written, "written"),
    "pipeline": (programs.pipeline, "written"),
    "tensor parallel": (programs.tensor_parallel, "partitioned"),
    "both": (programs.both, "both"),
}


@pytest.fixture(autouse=True)
def _no_reports_of_others():
    bucketeer.jax.clear_reports()
    yield
    assert _private.context.value is None


def count(compiled) -> dict[str, int]:
    text = compiled.as_text()
    found = {opcode: len(re.findall(rf" {opcode}(?:-start)?\(", text)) for opcode in OPCODES}
    return {opcode: number for opcode, number in found.items() if number}


def donated(compiled) -> list[str]:
    """Which results lie where which arguments did."""
    return re.findall(r"\{\d*\}: \(\d+, \{\}, \w+-alias\)", compiled.as_text().split("\n", 1)[0])


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def train(program, steps=3):
    """The bits of parameters and losses of some steps, and how the results lie."""
    params, batch = program.start()
    losses = []
    for _ in range(steps):
        given = params
        params, loss = program.step(params, batch)
        losses.append(loss)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given)), "donated buffers are still there"
    return bits((params, losses)), [leaf.sharding for leaf in jax.tree.leaves((params, losses))]


def reports_of(name):
    return [report for report in bucketeer.jax.reports() if report.module == name]


def run_python(code, *, folder=None, **variables):
    """What a program of its own says."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, *sys.path])
    environment = os.environ | {"PYTHONPATH": path} | variables
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("name", STEPS)
def test_training_gives_the_same_bits_with_fewer_collectives(name):
    make, path = STEPS[name]
    expected, placed = train(make())
    plain = make(compiler_options=NO_COMBINERS)
    without = count(plain.step.lower(*plain.start()).compile())
    with bucketeer.jax.bucketing(strict=True):
        program = make()
        found, now_placed = train(program)
        assert found == expected
        for then, now in zip(placed, now_placed, strict=True):
            assert then.is_equivalent_to(now, 2) or then == now
        report = bucketeer.jax.reports()[-1]
        compiled = count(program.step.lower(*program.start()).compile())
    assert report.path == path
    assert sum(report.after.values()) < sum(report.before.values())
    assert sum(compiled.values()) < sum(without.values())
    print(f"\n{name}: {report.before} -> {report.after}, compiled {without} -> {compiled}")


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned])
def test_donated_buffers_are_still_donated(make):
    program = make()
    expected = donated(program.step.lower(*program.start()).compile())
    with bucketeer.jax.bucketing(strict=True):
        program = make()
        assert donated(program.step.lower(*program.start()).compile()) == expected
        params, batch = program.start()
        program.step(params, batch)
    assert len(expected) == len(jax.tree.leaves(params)) == sum(leaf.is_deleted() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned])
def test_buffers_donated_to_a_stated_sharding_are_still_donated(make):
    mesh = programs.mesh(data=8)
    spec = P("data") if make is programs.fsdp_partitioned else P()
    shardings = (NamedSharding(mesh, spec), NamedSharding(mesh, P()))
    expected, _ = train(make(out_shardings=shardings))
    with bucketeer.jax.bucketing(strict=True):
        program = make(out_shardings=shardings)
        assert "tf.aliasing_output" in program.step.lower(*program.start()).as_text()
        assert train(program)[0] == expected
    assert sum(bucketeer.jax.reports()[-1].after.values()) < sum(bucketeer.jax.reports()[-1].before.values())


def test_what_was_compiled_outside_is_compiled_again_inside_and_the_other_way_round():
    program = programs.data_parallel_partitioned()
    outside = lambda: count(program.step.lower(*program.start()).compile(compiler_options=NO_COMBINERS))  # noqa: E731
    plain = outside()
    train(program, steps=1)
    assert bucketeer.jax.reports() == []
    bucketing = bucketeer.jax.bucketing(strict=True)
    with bucketing:
        train(program, steps=1)
        assert len(reports_of("jit_step")) == 1
        train(program, steps=1)
        assert len(reports_of("jit_step")) == 1, "compiled twice"
        assert outside()["all-reduce"] < plain["all-reduce"]
    assert outside() == plain
    train(program, steps=1)
    assert len(reports_of("jit_step")) == 2


def test_what_was_lowered_outside_may_be_compiled_inside():
    program = programs.data_parallel_written()
    lowered = program.step.lower(*program.start())
    plain = count(lowered.compile(compiler_options=NO_COMBINERS))
    with bucketeer.jax.bucketing(strict=True):
        assert count(lowered.compile(compiler_options=NO_COMBINERS))["all-reduce"] == 1 < plain["all-reduce"]
    assert count(lowered.compile(compiler_options=NO_COMBINERS)) == plain


def test_other_options_compile_again():
    program = programs.data_parallel_written()
    with bucketeer.jax.bucketing(all_reduce="1KiB", strict=True):
        train(program, steps=1)
    with bucketeer.jax.bucketing(all_reduce="25MiB", strict=True):
        train(program, steps=1)
    few, one = (report.after["all_reduce"] for report in bucketeer.jax.reports())
    assert few > one == 1


def test_the_innermost_context_holds():
    make = programs.data_parallel_written
    with bucketeer.jax.bucketing(all_reduce="25MiB", strict=True) as outer:
        with bucketeer.jax.bucketing(all_reduce="off", all_gather="off"):
            train(make(), steps=1)
        assert sum(report.after == report.before for report in bucketeer.jax.reports()) == len(bucketeer.jax.reports())
        with outer:
            train(make(), steps=1)
        train(make(), steps=1)
    merged = [report for report in bucketeer.jax.reports() if report.after != report.before]
    assert len(merged) == 2


def test_exceptions_leave_nothing_behind():
    with pytest.raises(KeyError), bucketeer.jax.bucketing():
        raise KeyError("of the user")
    assert _private.context.value is None
    train(programs.data_parallel_written(), steps=1)
    assert bucketeer.jax.reports() == []


def test_threads_do_not_share_a_context():
    found, barrier = {}, threading.Barrier(4)

    def work(at):
        program = programs.data_parallel_partitioned(compiler_options=NO_COMBINERS)
        barrier.wait()
        if at % 2:
            with bucketeer.jax.bucketing(strict=True):
                found[at] = count(program.step.lower(*program.start()).compile())["all-reduce"]
        else:
            found[at] = count(program.step.lower(*program.start()).compile())["all-reduce"]

    threads = [threading.Thread(target=work, args=[at]) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1] == found[3] < found[0] == found[2]


def test_one_context_is_entered_by_several_threads_at_once():
    bucketing, barrier, seen = bucketeer.jax.bucketing(), threading.Barrier(2), []

    def work():
        with bucketing:
            barrier.wait()
            seen.append(_private.context.value)
            barrier.wait()
        seen.append(_private.context.value)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value is None for value in seen) == [False, False, True, True]


def test_a_decorated_function_compiles_inside():
    program = programs.data_parallel_written()

    @bucketeer.jax.bucketing(strict=True)
    def once(params, batch):
        """Its words."""
        return program.step(params, batch)

    once(*program.start())
    assert once.__doc__ == "Its words." and once.__name__ == "once"
    assert bucketeer.jax.reports()[-1].path == "written"
    decorated = bucketeer.jax.bucketing(all_reduce="1KiB", strict=True)(program.step)
    decorated(*program.start())
    assert len(bucketeer.jax.reports()) == 2


def test_a_decorated_function_inside_of_jit_says_that_it_does_nothing():
    inner = bucketeer.jax.bucketing()(lambda x: x + 1)
    with pytest.warns(bucketeer.jax.BucketingWarning, match="decorate the function that jax.jit returns"):
        jax.jit(inner)(1.0)


def test_coroutines_and_generators_are_not_decorated():
    async def coroutine():
        pass

    def generator():
        yield

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="not coroutines or generators"):
            bucketeer.jax.bucketing()(function)


def test_options_that_cannot_be_are_refused_at_once():
    with pytest.raises(Exception, match="lots"):
        bucketeer.jax.bucketing(all_gather="lots")
    with pytest.raises(ValueError, match="'coalesced' cannot go back"):
        bucketeer.jax.bucketing(mode="coalesced")
    with pytest.raises(ValueError, match="'sideways'"):
        bucketeer.jax.bucketing(path="sideways")


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned])
def test_a_rewrite_that_fails_leaves_the_module_as_it_was(make, monkeypatch):
    expected, _ = train(make())

    def broken(text, options):
        raise RuntimeError("no luck today")

    bucketing, strict = bucketeer.jax.bucketing(), bucketeer.jax.bucketing(strict=True)
    monkeypatch.setattr(_modules, "rewrite", broken)
    with bucketing, pytest.warns(bucketeer.jax.BucketingWarning, match="is compiled as it was: no luck today"):
        assert train(make())[0] == expected
    (report,) = bucketeer.jax.reports()
    assert report.path == "failed" and report.remarks == ("no luck today",)
    with strict, pytest.raises(bucketeer.jax.BucketingError, match="no luck today"):
        train(make())


def test_an_executable_that_gives_results_elsewhere_is_not_taken(monkeypatch):
    wrapper = _modules._wrapper

    def wrong(whole, part, inputs, outputs):
        return wrapper(whole, part, inputs, ["{replicated}"] * len(outputs))

    expected, placed = train(programs.fsdp_partitioned())
    take = _modules._take_attributes

    def replicated(function, key, was, shardings):
        if key == "res_attrs":
            shardings = [{"mhlo.sharding": _private.ir.StringAttr.get("{replicated}")} for _ in shardings]
        take(function, key, was, shardings)

    monkeypatch.setattr(_modules, "_wrapper", wrong)
    monkeypatch.setattr(_modules, "_take_attributes", replicated)
    with bucketeer.jax.bucketing(), pytest.warns(bucketeer.jax.BucketingWarning):
        found, now_placed = train(programs.fsdp_partitioned())
    assert (found, now_placed) == (expected, placed)


@pytest.mark.parametrize("make", [programs.data_parallel_partitioned, programs.fsdp_partitioned, programs.fsdp_written])
def test_a_permuted_mesh_keeps_its_order(make):
    order = [3, 1, 0, 2, 7, 5, 6, 4]
    mesh = Mesh(np.array(jax.devices())[order], ("data",))
    expected, placed = train(make(mesh))
    with bucketeer.jax.bucketing(strict=True):
        found, now_placed = train(make(mesh))
    assert found == expected
    for then, now in zip(placed, now_placed, strict=True):
        assert [device.id for device in then._device_assignment] == [device.id for device in now._device_assignment]
    assert sum(bucketeer.jax.reports()[-1].after.values()) < sum(bucketeer.jax.reports()[-1].before.values())


def test_a_permuted_mesh_of_two_axes_keeps_its_groups():
    order = [3, 1, 0, 2, 7, 5, 6, 4]
    mesh = Mesh(np.array(jax.devices())[order].reshape(4, 2), ("data", "model"))
    expected, _ = train(programs.tensor_parallel(mesh))
    with bucketeer.jax.bucketing(strict=True):
        assert train(programs.tensor_parallel(mesh))[0] == expected


def test_compile_options_of_the_user_are_kept():
    job = _compile._Job(lambda: None, Options(all_reduce="1MiB"), None, None, None, CompileOptions(), [])
    job.compile_options.env_option_overrides = [("xla_a", "1"), ("xla_disable_hlo_passes", "mine")]
    now = dict(job.without_combiners().env_option_overrides)
    assert now["xla_a"] == "1"
    assert now["xla_disable_hlo_passes"].split(",")[:2] == ["mine", "all-reduce-combiner"]
    assert dict(job.compile_options.env_option_overrides)["xla_disable_hlo_passes"] == "mine"


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned])
def test_an_option_that_xla_does_not_know_is_still_an_error(make):
    program = make()
    with bucketeer.jax.bucketing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="xla_no_such_option"):
            program.step.lower(*program.start()).compile(compiler_options={"xla_no_such_option": True})


@pytest.mark.parametrize("path", ["written", "partitioned"])
def test_layouts_are_kept(path):
    from jax.experimental.layout import Format, Layout

    mesh = programs.mesh(data=8)
    turned = Format(Layout((1, 0)), NamedSharding(mesh, P("data")))

    def body(a, b, x):
        return jax.lax.psum(x * a.sum(), "data"), jax.lax.psum(x + b.sum(), "data"), a + b

    def partitioned(a, b, x):
        return (x * a.sum()).sum(0), (x + b.sum()).sum(0), a + b

    written = jax.shard_map(
        body, mesh=mesh, in_specs=(P("data"),) * 3, out_specs=(P(), P(), P("data")), check_vma=False
    )
    function = written if path == "written" else partitioned
    make = lambda: jax.jit(function, in_shardings=(turned, turned, None), out_shardings=(None, None, turned))  # noqa: E731
    given = [jax.device_put(programs.random(16, 8, seed=at), turned) for at in range(2)]
    given.append(programs.put(programs.random(16, 8, seed=9), mesh, "data"))
    expected = make()(*given)
    with bucketeer.jax.bucketing(strict=True):
        found = make()(*given)
    assert bits(found) == bits(expected)
    assert found[2].format == expected[2].format
    assert found[2].format.layout.major_to_minor == (1, 0)
    (report,) = bucketeer.jax.reports()
    assert report.path == path and report.after["all_reduce"] < report.before["all_reduce"]


def test_large_constants_are_not_left_out():
    mesh = programs.mesh(data=8)
    table = programs.random(64, 64)

    def partitioned(x):
        return (x @ table).sum(0), (x * 2 @ table.T).sum(0)

    body = lambda x: tuple(jax.lax.psum(one, "data") for one in partitioned(x))  # noqa: E731
    written = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    x = programs.put(programs.random(16, 64), mesh, "data")
    for function in (partitioned, written):
        expected = bits(jax.jit(function)(x))
        with bucketeer.jax.bucketing(strict=True):
            assert bits(jax.jit(function)(x)) == expected
        report = bucketeer.jax.reports()[-1]
        assert report.after["all_reduce"] == 1 < report.before["all_reduce"]


def test_collectives_in_loops_and_branches_are_merged():
    mesh = programs.mesh(data=8)

    def body(a, b):
        def turn(carry, _):
            a, b = carry
            both = jax.lax.psum(a, "data"), jax.lax.psum(b * 2, "data")
            kept = jax.lax.cond(both[0].sum() > 0, lambda: jnp.sort(both[0]), lambda: both[0])
            return (jnp.tanh(kept), jnp.tanh(both[1])), both[0].sum()

        return jax.lax.scan(turn, (a, b), None, length=3)

    def step():
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P()), check_vma=False))

    given = [programs.put(programs.random(64, seed=at), mesh, "data") for at in range(2)]
    expected = bits(step()(*given))
    for path in ("written", "partitioned"):
        with bucketeer.jax.bucketing(strict=True, path=path):
            assert bits(step()(*given)) == expected
        report = bucketeer.jax.reports()[-1]
        assert report.path == path and report.after["all_reduce"] < report.before["all_reduce"]


def test_random_numbers_and_what_depends_on_the_device_stay_what_they_are():
    mesh = programs.mesh(data=8)

    def function(key, x):
        noise = jax.random.normal(key, x.shape)
        noise = jax.lax.with_sharding_constraint(noise, NamedSharding(mesh, P("data")))
        dropped = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, noise)
        return dropped.sum(0), (noise * x).sum(0), jnp.sort(dropped, axis=1)

    x = programs.put(programs.random(32, 16), mesh, "data")
    expected = bits(jax.jit(function)(jax.random.key(3), x))
    with bucketeer.jax.bucketing(strict=True):
        assert bits(jax.jit(function)(jax.random.key(3), x)) == expected


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_other_dtypes_have_the_same_bits(dtype):
    mesh = programs.mesh(data=8)
    body = lambda a, b: (jax.lax.psum(a, "data"), jax.lax.psum(b, "data"), jax.lax.pmax(a, "data"))  # noqa: E731
    function = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    given = [programs.put((programs.random(16, 8, seed=at) * 9).astype(dtype), mesh, "data") for at in range(2)]
    expected = bits(jax.jit(function)(*given))
    with bucketeer.jax.bucketing(strict=True):
        assert bits(jax.jit(function)(*given)) == expected


def test_pmap_is_rewritten():
    function = lambda: jax.pmap(lambda a, b: (jax.lax.psum(a, "i"), jax.lax.psum(b * 2, "i")), axis_name="i")  # noqa: E731
    given = programs.random(8, 5), programs.random(8, 7)
    expected = bits(function()(*given))
    with bucketeer.jax.bucketing(strict=True):
        assert bits(function()(*given)) == expected
    report = bucketeer.jax.reports()[-1]
    assert report.path == "written" and report.after == {"all_reduce": 1}


def test_compiled_ahead_of_time():
    program = programs.fsdp_partitioned()
    expected, _ = train(program)
    with bucketeer.jax.bucketing(strict=True):
        compiled = program.step.lower(*program.start()).compile()
    params, batch = program.start()
    losses = []
    for _ in range(3):
        params, loss = compiled(params, batch)
        losses.append(loss)
    assert bits((params, losses)) == expected


def test_a_module_that_calls_the_host_is_compiled_as_it_was():
    mesh = programs.mesh(data=8)
    heard: list[object] = []

    def function(x):
        jax.debug.callback(heard.append, x.sum())
        return (x * 2).sum(0), (x + 1).sum(0)

    x = programs.put(programs.random(16, 8), mesh, "data")
    with bucketeer.jax.bucketing(), pytest.warns(bucketeer.jax.BucketingWarning, match="calls the host"):
        jax.block_until_ready(jax.jit(function)(x))
        jax.effects_barrier()
    assert len(heard) == 1


def test_modules_without_collectives_are_left_in_peace():
    with bucketeer.jax.bucketing(strict=True):
        assert jax.jit(lambda x: x + 1)(1.0) == 2
        mesh = programs.mesh(data=8)
        jax.jit(lambda x: x * 2)(programs.put(programs.random(16), mesh, "data"))
    assert [report.path for report in bucketeer.jax.reports()] == ["none"]


def test_reports_say_what_was_left_alone_and_why():
    with bucketeer.jax.bucketing(all_reduce="600", strict=True):
        train(programs.data_parallel_written(), steps=1)
    (report,) = bucketeer.jax.reports()
    assert report.module.startswith("jit_") and report.seconds > 0
    assert any("is left alone" in remark for remark in report.remarks)


def test_a_report_is_a_line():
    report = bucketeer.jax.Report("jit_f", "written", {"permute": 2, "all_reduce": 9}, {"permute": 2}, ("x",), 0.125)
    assert str(report) == "jit_f: written, all_reduce 9 -> 0, permute 2 -> 2 (0.12 s)"
    assert str(bucketeer.jax.Report("jit_f", "failed", {}, {}, ("no luck",))) == "jit_f: failed, no luck (0.00 s)"


@pytest.mark.parametrize("make", [programs.data_parallel_partitioned, programs.fsdp_partitioned])
def test_half_precision_has_the_same_bits_where_xla_may_not_keep_more(make):
    options = {"xla_allow_excess_precision": False}
    start = make().start

    def step():
        def low(params, batch):
            params = jax.tree.map(lambda param: param.astype(jnp.bfloat16), params)
            loss, gradients = jax.value_and_grad(programs.forward)(params, batch.astype(jnp.bfloat16))
            return programs.update(params, gradients), loss

        return jax.jit(low, compiler_options=options)

    expected = bits(step()(*start()))
    with bucketeer.jax.bucketing(strict=True):
        assert bits(step()(*start())) == expected
    report = bucketeer.jax.reports()[-1]
    assert sum(report.after.values()) < sum(report.before.values())


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned])
def test_a_mesh_of_some_devices_is_as_good(make):
    mesh = Mesh(np.array(jax.devices())[[6, 2, 5, 1]], ("data",))
    expected, placed = train(make(mesh))
    with bucketeer.jax.bucketing(strict=True):
        assert train(make(mesh)) == (expected, placed)
    assert sum(bucketeer.jax.reports()[-1].after.values()) < sum(bucketeer.jax.reports()[-1].before.values())


def test_a_shard_map_over_one_of_two_axes_is_rewritten():
    mesh = programs.mesh(data=4, model=2)

    def body(a, b):
        return jax.lax.psum(a @ b, "data"), jax.lax.psum((a * 2) @ b, "data")

    def step():
        specs = {"in_specs": (P("data"), P()), "out_specs": P(), "axis_names": {"data"}}
        return jax.jit(jax.shard_map(body, mesh=mesh, check_vma=False, **specs))

    given = (
        programs.put(programs.random(16, 8), mesh, "data", "model"),
        programs.put(programs.random(8, 8), mesh, "model"),
    )
    expected = bits(step()(*given))
    with bucketeer.jax.bucketing(strict=True):
        assert bits(step()(*given)) == expected
    report = bucketeer.jax.reports()[-1]
    assert report.after["all_reduce"] < report.before["all_reduce"]


@pytest.mark.parametrize("make", [programs.data_parallel_written, programs.fsdp_partitioned, programs.both])
def test_xlas_older_partitioner_is_as_good(make):
    newer = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        expected, _ = train(make())
        with bucketeer.jax.bucketing(strict=True):
            assert train(make())[0] == expected
    finally:
        jax.config.update("jax_use_shardy_partitioner", newer)
    assert sum(bucketeer.jax.reports()[-1].after.values()) < sum(bucketeer.jax.reports()[-1].before.values())


def test_results_in_other_memory_stay_there():
    mesh = programs.mesh(data=8)
    host = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    step = lambda: jax.jit(lambda x: (x.sum(0), (x * 2).sum(0), x + 1), out_shardings=(None, None, host))  # noqa: E731
    x = programs.put(programs.random(16, 8), mesh, "data")
    expected = step()(x)
    with bucketeer.jax.bucketing(strict=True):
        found = step()(x)
    assert bits(found) == bits(expected)
    assert [leaf.sharding for leaf in found] == [leaf.sharding for leaf in expected]
    assert bucketeer.jax.reports()[-1].after == {"all_reduce": 1}


@pytest.mark.parametrize(
    "options",
    [{"policy": "xla"}, {"policy": "adjacent"}, {"memory": "+5%"}, {"all_gather": "500MB"}, {"verify": False}],
)
def test_options_reach_the_rewrite(options):
    expected, _ = train(programs.fsdp_partitioned())
    with bucketeer.jax.bucketing(strict=True, **options):
        assert train(programs.fsdp_partitioned())[0] == expected
    report = bucketeer.jax.reports()[-1]
    assert report.after["all_gather"] < report.before["all_gather"]
    only_gathers = "all_gather" in options
    assert (report.after["all_reduce"] == report.before["all_reduce"]) == only_gathers


def test_programs_of_several_processes_are_compiled_as_they_were(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with bucketeer.jax.bucketing(), pytest.warns(bucketeer.jax.BucketingWarning, match="several processes"):
        train(programs.data_parallel_written(), steps=1)


CACHED = """
    import jax, sys, bucketeer.jax, jax_programs
    jax.config.update("jax_compilation_cache_dir", {folder!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
    program = jax_programs.{make}()
    params, batch = program.start()
    hits.clear()
    {before}
    with {context}:
        params, loss = program.step(params, batch)
        params, loss = program.step(params, batch)
    print(len(hits), [report.path for report in bucketeer.jax.reports()], float(loss).hex())
"""


@pytest.mark.parametrize("make", ["data_parallel_written", "fsdp_partitioned"])
def test_the_compilation_cache_keeps_what_was_merged_by_version_and_options(make, tmp_path):
    def run(options=None, version=None):
        context = "__import__('contextlib').nullcontext()" if options is None else f"bucketeer.jax.bucketing({options})"
        before = f"bucketeer.jax._options.__version__ = {version!r}" if version else ""
        code = CACHED.format(folder=str(tmp_path), make=make, context=context, before=before)
        hits, rest = run_python(code).split(" ", 1)
        path, loss = rest.rsplit(" ", 1)
        return int(hits), path, loss

    path = "written" if make.endswith("written") else "partitioned"
    plain = run()
    assert plain[:2] == (0, "[]")
    assert run() == (1, "[]", plain[2])
    assert run("strict=True") == (0, f"['{path}']", plain[2])
    assert run("strict=True") == (1, "['cached']", plain[2])
    assert run() == (1, "[]", plain[2])
    # Other caps and other versions are other entries; what is raised is not part of one.
    assert run("all_reduce='1KiB', all_gather='1KiB'")[0] == 0
    assert run("all_reduce='1KiB', all_gather='1KiB', strict=True")[0] == 1
    assert run("strict=True", version="99.0") == (0, f"['{path}']", plain[2])


def test_what_failed_is_not_kept_in_the_compilation_cache(tmp_path):
    # Neither text nor options make sense to it, which is said once the context is there.
    broken = "c = bucketeer.jax.bucketing(); bucketeer.jax._modules.rewrite = None"
    for before, context, path in (
        (broken, "c", "failed"),
        ("", "bucketeer.jax.bucketing()", "written"),
        ("", "bucketeer.jax.bucketing()", "cached"),
    ):
        code = CACHED.format(folder=str(tmp_path), make="data_parallel_written", context=context, before=before)
        assert f"['{path}']" in run_python(code)


def test_other_versions_are_tried_with_a_warning_that_names_both():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _private.check_versions(_private.JAX_VERSION, _private.JAXLIB_VERSION)
    with pytest.warns(
        UserWarning, match="tested with jax 0.10.2 and jaxlib 0.10.2, and is tried with jax 0.11.0 and jaxlib 0.10.9"
    ):
        _private.check_versions("0.11.0", "0.10.9")


@pytest.mark.parametrize(
    "module, name", [(module, name) for module in _private.NAMES for name in _private.NAMES[module]]
)
def test_a_missing_name_is_refused_by_name_with_the_version_that_has_it(module, name, monkeypatch):
    monkeypatch.delattr(_private._find(module), name)
    with pytest.raises(bucketeer.jax.UnsupportedJax, match=re.escape("needs jax 0.10.2 and jaxlib 0.10.2")) as raised:
        _private.check_names()
    assert f"`{module}.{name}`" in str(raised.value)


def test_a_missing_name_is_found_when_the_package_is_imported():
    code = """
        import jax._src.cache_key
        del jax._src.cache_key.custom_hook
        try:
            import bucketeer.jax
        except ImportError as error:
            print(type(error).__name__, error)
    """
    assert run_python(code).startswith("UnsupportedJax bucketeer.jax needs jax 0.10.2")


def test_without_jax_the_import_says_what_to_install():
    code = """
        import sys
        sys.modules["jax"] = None
        import bucketeer
        try:
            import bucketeer.jax
        except ImportError as error:
            print(error)
    """
    assert run_python(code) == "bucketeer.jax needs jax: pip install jax==0.10.2"


def test_without_a_context_nothing_of_jax_is_touched():
    code = """
        import jax._src.compiler as compiler
        before = compiler.backend_compile_and_load
        import bucketeer.jax
        print(compiler.backend_compile_and_load is before)
    """
    assert run_python(code) == "True"
