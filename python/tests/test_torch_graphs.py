"""Live graphs of PyTorch: read, rewritten, edited in place. Nothing is compiled, and no rank but this one is there."""

from __future__ import annotations

import json
import logging
import operator
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch._inductor import config
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketeer
import bucketeer.torch as plugin
from bucketeer import _native
from bucketeer.torch import _fake, _groups, _operators, _pass

RANKS = 8


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    """Rank 0 of eight, without the others."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def no_reports() -> None:
    plugin.reports(clear=True)


def gather(shard: torch.Tensor) -> torch.Tensor:
    return collectives.all_gather_tensor(shard, 0, dist.group.WORLD)


def several(*shards: torch.Tensor) -> list[torch.Tensor]:
    """A gather for each shard, each read once."""
    return [torch.relu(gather(shard) * 2) for shard in shards]


def trace(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_fx(function, tracing_mode=mode)(*inputs)


def shards(count: int = 3) -> list[torch.Tensor]:
    return [torch.randn(2 + number, 4) for number in range(count)]


def targets(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def count(module: GraphModule, word: str) -> int:
    return sum(word in target for target in targets(module))


def state(module: GraphModule) -> list[Any]:
    """All that a graph is: nodes in order, with what they call, their arguments and what they hold."""
    return [(node, node.op, node.target, node.args, node.kwargs, dict(node.meta)) for node in module.graph.nodes]


def test_gathers_become_one_and_nodes_that_stay_keep_all_that_they_have() -> None:
    module = trace(several, *shards())
    before = {node.name: (node, dict(node.meta)) for node in module.graph.nodes}
    plugin.BucketeerPass(strict=True)(module.graph)
    module.graph.lint()
    assert count(module, "all_gather_into_tensor") == 1
    (report,) = plugin.reports()
    assert (report.outcome, report.launches_before, report.launches_after) == ("rewritten", 3, 1)
    assert report.details is not None and report.details.proof.verdict == "equal"
    kept = [node for node in module.graph.nodes if node.name in before and node.op != "call_function" or "relu" in node.name]
    assert len(kept) == 3 + 3 + 1
    assert all(before[node.name][0] is node and before[node.name][1] == node.meta for node in kept)


class Gathers(torch.fx.Interpreter):
    """Runs a graph with gathers of eight ranks: what rank r sends is what this one does, plus r."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "all_gather_into_tensor" in str(target):
            return torch.cat([args[0] + rank for rank in range(args[1])])
        return args[0] if "wait_tensor" in str(target) else super().call_function(target, args, kwargs)


def test_the_rewritten_graph_computes_what_it_did() -> None:
    inputs = shards(5)
    module = trace(several, *inputs)
    before = Gathers(module).run(*inputs)
    plugin.BucketeerPass(strict=True)(module.graph)
    assert count(module, "all_gather_into_tensor") == 1
    for one, other in zip(before, Gathers(module).run(*inputs), strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_new_nodes_get_the_fake_values_that_running_them_gives(mode: str) -> None:
    def both(*inputs: torch.Tensor) -> list[torch.Tensor]:
        scattered = [collectives.reduce_scatter_tensor(part, "sum", 0, dist.group.WORLD) for part in inputs]
        reduced = [collectives.all_reduce(part, "sum", dist.group.WORLD) for part in inputs]
        return [*several(*inputs), *scattered, *reduced]

    # Scatters of symbolic sizes are not proven.
    scatters = "none" if mode == "fake" else "off"
    module = trace(both, *[torch.randn(RANKS * (1 + number), 4) for number in range(3)], mode=mode)
    before = set(module.graph.nodes)
    plugin.BucketeerPass(all_gather="none", reduce_scatter=scatters, all_reduce="none", strict=True)(module.graph)
    new = [node for node in module.graph.nodes if node not in before]
    assert len(new) > 15
    fake = _fake.fake_mode(module.graph)
    storages: dict[int, int] = {}
    for node in new:
        value = lambda item: item.meta["val"] if isinstance(item, torch.fx.Node) else item  # noqa: E731
        args, kwargs = torch.fx.node.map_aggregate(node.args, value), torch.fx.node.map_aggregate(node.kwargs, value)
        with fake:
            expected = node.target(*args, **kwargs)
        found = node.meta["val"]
        assert type(found) is type(expected), node
        for one, other in zip(found, expected) if isinstance(found, (list, tuple)) else [(found, expected)]:
            if not isinstance(one, torch.Tensor):
                assert str(one) == str(other)
                continue
            assert (one.shape, one.stride(), one.dtype, one.device) == (other.shape, other.stride(), other.dtype, other.device), node
            assert one.storage_offset() == other.storage_offset(), node
            # A view shares the storage of its operand, as running it says.
            operands = [item for item in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
            shares = lambda of: any(of.untyped_storage()._cdata == item.untyped_storage()._cdata for item in operands)  # noqa: E731
            assert shares(one) == shares(other), node
            storages[id(one)] = one.untyped_storage()._cdata
    assert len(storages) > 10


def test_a_graph_that_cannot_be_edited_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = trace(several, *shards())
    before = state(module)
    made = 0

    def fails(*_: Any) -> None:
        nonlocal made
        made += 1
        if made == 7:
            raise RuntimeError("out of luck")

    monkeypatch.setattr(_fake.FakeValues, "give", fails)
    with pytest.warns(plugin.BucketeerWarning, match="left as it was: RuntimeError: out of luck"):
        plugin.BucketeerPass()(module.graph)
    assert state(module) == before
    assert plugin.reports()[0].outcome == "left"
    made = 0
    with pytest.raises(RuntimeError, match="out of luck"):
        plugin.BucketeerPass(strict=True)(module.graph)
    assert state(module) == before
    module.graph.lint()


@pytest.mark.parametrize("at", [0, 3, 9])
def test_what_a_failing_hook_leaves_of_a_new_node_is_taken_back(at: int) -> None:
    module = trace(several, *shards())
    before, readers = state(module), [list(node.users) for node in module.graph.nodes]
    made: list[torch.fx.Node] = []

    def fails(node: torch.fx.Node) -> None:
        made.append(node)
        if len(made) > at:
            raise RuntimeError("a hook of somebody's")

    module._register_create_node_hook(fails)
    module._register_erase_node_hook(fails)
    with pytest.warns(plugin.BucketeerWarning, match="a hook of somebody's"):
        plugin.BucketeerPass()(module.graph)
    assert state(module) == before
    assert [list(node.users) for node in module.graph.nodes] == readers
    module.graph.lint()


def test_a_hook_that_fails_when_nodes_go_is_said_of_a_graph_that_is_rewritten() -> None:
    module = trace(several, *shards())

    def fails(node: torch.fx.Node) -> None:
        raise RuntimeError("a hook of somebody's")

    module._register_erase_node_hook(fails)
    plugin.BucketeerPass()(module.graph)
    (report,) = plugin.reports()
    assert (report.outcome, report.launches_before, report.launches_after) == ("rewritten", 3, 1)
    assert any("a hook of somebody's" in said for said in report.said)
    assert count(module, "all_gather_into_tensor") == 1


def test_a_plan_of_what_needs_none_is_a_plan_all_the_same() -> None:
    module = trace(several, *shards(1))
    plugin.BucketeerPass(profile="h100", effort="low", strict=True)(module.graph)
    (report,) = plugin.reports()
    assert report.outcome == "unchanged" and report.details.planned.launches == 1


def test_a_graph_is_whole_though_taking_out_a_node_fails() -> None:
    module = trace(several, *shards())

    def fails(node: torch.fx.Node) -> None:
        if "all_gather" in str(node.target):
            raise KeyboardInterrupt

    module._register_erase_node_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        plugin.BucketeerPass()(module.graph)
    module.graph.lint()
    assert count(module, "all_gather_into_tensor") == 1


def test_an_operator_that_this_pytorch_lacks_is_named_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = trace(several, *shards())
    before = state(module)

    aten = torch.ops.aten

    class Lacking:
        def __getattr__(self, name: str) -> Any:
            if name == "split_with_sizes":
                raise AttributeError(name)
            return getattr(aten, name)

    monkeypatch.setattr(torch.ops, "aten", Lacking())
    with pytest.raises(LookupError, match=r"aten\.split_with_sizes\.default"):
        plugin.BucketeerPass(strict=True)(module.graph)
    monkeypatch.undo()
    assert state(module) == before


def test_symbolic_sizes_have_the_hints_of_their_symbols() -> None:
    module = trace(several, *shards(), mode="symbolic")
    live = _native.read_live(module.graph, "graph", _operators.describe, _groups.ranks_of, _fake.hints_of(module.graph))
    hints = dict(live.hints())
    assert {2, 3, 4} == set(hints.values()) and set(hints) == set(live.symbols())
    # By these hints the three gathers take 256 + 384 + 512 bytes. A rank that is asked whether others agree counts with them.
    for cap, left in ((1152, 1), (1151, 2)):
        module = trace(several, *shards(), mode="symbolic")
        plugin.BucketeerPass(all_gather=cap, strict=True, hints=hints)(module.graph)
        module.graph.lint()
        assert count(module, "all_gather_into_tensor") == left


def test_what_a_rank_has_seen_of_a_size_decides_nothing_that_others_do_not_hear_of() -> None:
    module = trace(several, *shards(), mode="symbolic")
    plugin.BucketeerPass(all_gather=1152, strict=True)(module.graph)
    assert count(module, "all_gather_into_tensor") == 3
    (report,) = plugin.reports()
    assert any("are taken as unknown" in said and "check_ranks=True" in said for said in report.said)
    # Without a cap no size is asked for.
    module = trace(several, *shards(), mode="symbolic")
    plugin.BucketeerPass(all_gather="none", strict=True)(module.graph)
    assert count(module, "all_gather_into_tensor") == 1


def test_arguments_of_any_kind_go_over_and_stay_what_they_are() -> None:
    def function(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        made = torch.full((2, 3), float("-inf"), dtype=torch.bfloat16, device="cpu")
        filled = torch.zeros(4, dtype=torch.complex64, layout=torch.strided) + 2j
        picked = torch.ops.aten.index.Tensor(x, [None, torch.tensor([0, 1])])
        return [made, filled, picked, x.to(memory_format=torch.contiguous_format), x[..., ::2], x.sum(dtype=torch.float64), *several(*rest)]

    module = trace(function, torch.randn(2, 4), *shards())
    wanted = {node.name: (node.target, node.args, node.kwargs) for node in module.graph.nodes if "gather" not in str(node.target)}
    plugin.BucketeerPass(strict=True)(module.graph)
    assert count(module, "all_gather_into_tensor") == 1
    for name in ("full", "zeros", "index", "slice_1", "sum_1"):
        (node,) = [node for node in module.graph.nodes if node.name == name]
        assert (node.target, node.args, node.kwargs) == wanted[name]


@torch.library.custom_op("graphs::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, by: float) -> None:
    """An operator of the user's own that writes to what it is given."""
    x.mul_(by)


def test_schemas_come_from_the_dispatcher_so_that_a_write_between_keeps_its_place() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = gather(a)
        scale_(b, 2.0)
        second = gather(b)
        scale_(a, 3.0)
        return first, second

    module = torch.fx.Graph()
    a, b = module.placeholder("a"), module.placeholder("b")
    with FakeTensorMode() as mode:
        for node in (a, b):
            node.meta["val"] = mode.from_tensor(torch.randn(4, 4))
    launch = lambda of: module.call_function(torch.ops._c10d_functional.all_gather_into_tensor.default, (of, RANKS, "0"))  # noqa: E731
    wait = lambda of: module.call_function(torch.ops._c10d_functional.wait_tensor.default, (of,))  # noqa: E731
    first = wait(launch(a))
    module.call_function(torch.ops.graphs.scale_.default, (b, 2.0))
    second = wait(launch(b))
    module.call_function(torch.ops.graphs.scale_.default, (a, 3.0))
    module.output((first, second))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in module.nodes:
            if node.op == "call_function" and "c10d" in str(node.target):
                node.meta["val"] = a.meta["val"].new_empty((RANKS * 4, 4) if "gather" in str(node.target) else (RANKS * 4, 4))
    live = _native.read_live(module, "graph", _operators.describe, _groups.ranks_of, lambda symbol: None)
    assert any(schema.startswith("graphs::scale_(Tensor(a") and "!" in schema for schema in live.declared)
    graph = GraphModule(torch.nn.Module(), module)
    plugin.BucketeerPass(strict=True)(graph.graph)
    names = targets(graph)
    writes = [at for at, name in enumerate(names) if "scale_" in name]
    merged = [at for at, name in enumerate(names) if "all_gather_into_tensor" in name]
    # Both are sent after b was written, and before a is.
    assert len(merged) == 1 and writes[0] < merged[0] < writes[1], names


def test_schemas_of_pytorch_itself_are_known_and_not_declared_again() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for name in ("aten.add.Tensor", "aten.add_.Tensor", "aten.view.default", "aten.dropout.default", "aten.bernoulli.default"):
        packet, overload = name.rsplit(".", 1)
        target = getattr(operator.attrgetter(packet)(torch.ops), overload)
        graph.call_function(target, (x,))
    graph.output(x)
    live = _native.read_live(graph, "graph", _operators.describe, _groups.ranks_of, lambda symbol: None)
    assert live.count == 7 and live.declared == []


def test_a_group_that_c10d_does_not_know_is_said_and_the_graph_is_bucketed_all_the_same() -> None:
    module = trace(several, *shards())
    for node in module.graph.nodes:
        if "all_gather" in str(node.target):
            node.args = (*node.args[:2], "gone")
    plugin.BucketeerPass(strict=True)(module.graph)
    (report,) = plugin.reports()
    assert any("knows no group 'gone'" in said for said in report.said)
    assert count(module, "all_gather_into_tensor") == 1


def test_subgraphs_are_known_to_the_graph_that_calls_them() -> None:
    def quiet(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return gather(a), quiet(a), gather(b)

    module = trace(function, *[torch.randn(4, 4) for _ in range(2)])
    assert any(node.op == "get_attr" for node in module.graph.nodes)
    plugin.BucketeerPass(strict=True)(module.graph)
    module.graph.lint()
    assert count(module, "all_gather_into_tensor") == 1

    def loud(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = gather(a)
        return torch.cond(first.sum() > 0, lambda x: gather(x), lambda x: gather(x) + 1, (b,)), gather(b)

    module = trace(loud, *[torch.randn(4, 4) for _ in range(2)])
    plugin.BucketeerPass(strict=True)(module.graph)
    # What a branch launches keeps its order with what is launched around it.
    assert count(module, "all_gather_into_tensor") == 2


def test_a_graph_without_collectives_is_not_read_and_says_where_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "read_live", None)
    module = trace(lambda x: x * 2, torch.randn(4))
    plugin.BucketeerPass(strict=True)(module.graph)
    (report,) = plugin.reports()
    assert report.outcome == "empty" and "SimpleFSDP" in report.reason and "python_reducer" in report.reason


def test_options_that_make_no_sense_are_refused_where_they_are_given() -> None:
    with pytest.raises(bucketeer.OptionError, match="1 apple"):
        plugin.enable(all_gather="1 apple")
    with pytest.raises(bucketeer.OptionError, match="all_gathers.*did you mean `all_gather`"):
        plugin.enable(all_gathers="1MB")
    with pytest.raises(bucketeer.OptionError, match="policy"):
        plugin.BucketeerPass(policy="best")
    with pytest.raises(bucketeer.Error, match="h999"):
        plugin.BucketeerPass(profile="h999")
    assert config.post_grad_custom_post_pass is None


@pytest.mark.parametrize("name, value", [("bucket_all_gathers_fx", "all"), ("aten_distributed_optimizations.enable_overlap_scheduling", True)])
def test_inductors_own_bucketing_beside_it_is_refused(name: str, value: Any) -> None:
    with config.patch({name: value}):
        with pytest.raises(plugin.ConflictError, match=name.rsplit(".", 1)[-1]):
            plugin.enable()
    with plugin.enable():
        module = trace(several, *shards())
        before = state(module)
        with config.patch({name: value}), pytest.warns(plugin.BucketeerWarning, match="Inductor would bucket"):
            config.post_grad_custom_post_pass(module.graph)
        assert state(module) == before


def test_passes_that_were_set_are_kept_and_run_first() -> None:
    def own(graph: torch.fx.Graph) -> None:
        """A pass of the user's own."""

    assert config.post_grad_custom_post_pass is None
    with config.patch(post_grad_custom_post_pass=own):
        enabled = plugin.enable()
        first, second = config.post_grad_custom_post_pass
        assert first is own and isinstance(second.inner, plugin.BucketeerPass)
        with plugin.enable(all_gather="1MB"):
            inner = config.post_grad_custom_post_pass
            assert inner[0] is own and len(inner) == 2 and inner[1] is not second
        assert config.post_grad_custom_post_pass == [own, second]
        enabled.disable()
        assert config.post_grad_custom_post_pass is own
    with pytest.raises(ZeroDivisionError), plugin.enable():
        raise ZeroDivisionError
    assert config.post_grad_custom_post_pass is None
    enabled = plugin.enable()
    config.post_grad_custom_post_pass = [config.post_grad_custom_post_pass, own]
    enabled.disable()
    assert config.post_grad_custom_post_pass is own
    config.post_grad_custom_post_pass = None


def test_the_cache_key_covers_options_files_and_groups(tmp_path: Any) -> None:
    key = lambda **options: plugin.BucketeerPass(**options).uuid()  # noqa: E731
    assert key() == key() and isinstance(key(), str)
    assert key(all_gather="1MB") == key(all_gather="1MB") != key(all_gather="1MiB")
    assert key(verify=False) != key() and key(policy="adjacent") != key()
    assert key(check_ranks=True) is None
    assert key(profile="h100") != key(profile="a100") != key()
    times = tmp_path / "times"
    times.mkdir()
    first = plugin.BucketeerPass(profile="h100", times=times)
    before = first.uuid()
    (times / "one.json").write_text("{}")
    assert first.uuid() != before
    before = key()
    made = dist.new_group(list(range(4)))
    assert key() != before
    dist.destroy_process_group(made)


def test_a_pass_goes_through_pickle() -> None:
    made = plugin.BucketeerPass(all_gather="1MB", strict=True)
    again = pickle.loads(pickle.dumps(made))
    assert again.uuid() == made.uuid()
    module = trace(several, *shards())
    again(module.graph)
    assert count(module, "all_gather_into_tensor") == 1


def test_threads_that_compile_at_once_each_get_their_own_graph() -> None:
    made = plugin.BucketeerPass(strict=True)
    modules = [trace(several, *shards(3 + number)) for number in range(6)]
    threads = [threading.Thread(target=made, args=(module.graph,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [count(module, "all_gather_into_tensor") for module in modules] == [1] * 6
    assert sorted(report.launches_before for report in plugin.reports()) == [3, 4, 5, 6, 7, 8]


def test_what_is_enabled_in_one_thread_is_on_in_others_until_it_is_disabled() -> None:
    seen: list[Any] = []
    ready, off = threading.Event(), threading.Event()

    def compiles() -> None:
        for wait in (None, off):
            ready.set() if wait is not None else None
            wait is None or wait.wait(60)
            module = trace(several, *shards())
            hook = config.post_grad_custom_post_pass
            hook(module.graph)
            seen.append((count(module, "all_gather_into_tensor"), hook.uuid()))

    with plugin.enable(strict=True) as enabled:
        mine = config.post_grad_custom_post_pass.uuid()
        thread = threading.Thread(target=compiles)
        thread.start()
        assert ready.wait(60)
        enabled.disable()
    off.set()
    thread.join()
    assert seen == [(1, mine), (3, "bucketeer-off")]
    later: list[Any] = []
    thread = threading.Thread(target=lambda: later.append(config.post_grad_custom_post_pass))
    thread.start()
    thread.join()
    assert later == [None] and config.post_grad_custom_post_pass is None


def test_what_is_disabled_first_or_in_another_thread_stays_off() -> None:
    first, second = plugin.enable(), plugin.enable()
    first.disable()
    assert config.post_grad_custom_post_pass.inner is not None
    second.disable()
    assert config.post_grad_custom_post_pass is None
    enabled = plugin.enable()
    thread = threading.Thread(target=enabled.disable)
    thread.start()
    thread.join()
    module = trace(several, *shards())
    config.post_grad_custom_post_pass(module.graph)
    assert count(module, "all_gather_into_tensor") == 3
    config.post_grad_custom_post_pass = None


def test_of_several_that_are_enabled_the_last_that_is_still_on_runs() -> None:
    enabled = [plugin.enable(all_gather=cap) for cap in ("1MB", "2MB", "3MB")]
    keys = [plugin.BucketeerPass(all_gather=cap).uuid() for cap in ("1MB", "2MB", "3MB")]
    elsewhere: list[Any] = []

    def running() -> Any:
        thread = threading.Thread(target=lambda: elsewhere.append(config.post_grad_custom_post_pass))
        thread.start()
        thread.join()
        here = config.post_grad_custom_post_pass
        assert elsewhere.pop() is here
        return None if here is None else here.uuid()

    assert running() == keys[2]
    enabled[1].disable()
    assert running() == keys[2]
    enabled[2].disable()
    assert running() == keys[0]
    enabled[0].disable()
    assert running() is None


def test_new_nodes_show_where_what_was_merged_came_from() -> None:
    module = trace(several, *shards())
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f"of {node.name}"
        node.meta["partitioner_tag"] = "is_backward"
        node.meta["recompute"] = "must"
    before = set(module.graph.nodes)
    plugin.BucketeerPass(strict=True)(module.graph)
    new = [node for node in module.graph.nodes if node not in before]
    launch = next(at for at, node in enumerate(new) if "all_gather" in str(node.target))
    assert all(node.meta["stack_trace"] == "of all_gather_into_tensor" for node in new[launch:])
    assert all(node.meta["recompute"] == "must" for node in new[launch:])
    assert all(node.meta["partitioner_tag"] == "is_backward" for node in new)


def test_a_planned_graph_is_not_planned_again() -> None:
    module = trace(several, *shards())
    plugin.BucketeerPass(profile="h100", strict=True, effort="low")(module.graph)
    order = trace(lambda x: x @ x, torch.randn(4, 4))
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering

    product, *_ = [node for node in order.graph.nodes if node.op == "call_function"]
    with order.graph.inserting_before(product):
        order.graph.call_function(torch.ops._c10d_functional.all_gather_into_tensor.default, (product.args[0], RANKS, "0"))
    preserve_node_ordering(order.graph, {product: [next(iter(order.graph.nodes))]})
    with pytest.raises(plugin.ConflictError, match="control_deps"):
        plugin.BucketeerPass(profile="h100", strict=True)(order.graph)


def test_without_fake_values_nothing_is_run() -> None:
    module = trace(several, *shards())
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta["val"] = torch.empty(value.shape)
    before = set(module.graph.nodes)
    plugin.BucketeerPass(strict=True)(module.graph)
    new = [node for node in module.graph.nodes if node not in before]
    assert new and not any("val" in node.meta for node in new)


def test_names_of_groups_are_handed_on_as_they_are() -> None:
    for name in ("a\\b", "a'b\"c", "µ"):
        module = trace(several, *shards())
        for node in module.graph.nodes:
            if "all_gather" in str(node.target):
                node.args = (*node.args[:2], name)
        plugin.BucketeerPass(strict=True)(module.graph)
        (launch,) = [node for node in module.graph.nodes if "all_gather" in str(node.target)]
        assert launch.args[2] == name


def test_another_version_is_warned_of_and_one_whose_hooks_take_no_lists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bucketeer.torch import _versions

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _versions.check()
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.warns(UserWarning, match=r"tested with PyTorch 2\.15; this is 2\.99\.1\+cpu"):
        _versions.check()
    monkeypatch.delattr("torch._inductor.custom_graph_pass.get_custom_graph_passes")
    with pytest.raises(ImportError, match=r"take lists of passes, tested with 2\.15; this is 2\.99"):
        _versions.check()


def test_what_was_done_goes_to_pytorchs_logs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    left: list[tuple[str, dict[str, str], str]] = []

    def trace_structured(kind: str, metadata_fn: Callable[[], dict[str, str]], payload_fn: Callable[[], str]) -> None:
        left.append((kind, metadata_fn(), payload_fn()))

    monkeypatch.setattr(torch._logging, "trace_structured", trace_structured)
    module = trace(several, *shards())
    left.clear()
    with caplog.at_level(logging.DEBUG, logger="torch._inductor.bucketeer"):
        plugin.BucketeerPass(strict=True)(module.graph)
    (report,) = plugin.reports()
    (artifact,) = [one for one in left if one[1]["name"].startswith("bucketeer")]
    assert artifact == ("artifact", {"name": f"bucketeer_{report.graph}", "encoding": "json"}, report.json)
    assert json.loads(report.json)["format"] == "bucketeer-rewrite"
    said = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "torch._inductor.bucketeer"]
    assert (logging.INFO, report.line()) in said and (logging.DEBUG, str(report)) in said


def test_a_plan_places_launches_before_what_hides_them() -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x @ gather(weight)
        return x

    with FakeTensorMode():
        inputs = [torch.empty(8192, 2048), *[torch.empty(256, 2048) for _ in range(4)]]
    module = trace(function, *inputs)
    plugin.BucketeerPass(profile="h100", strict=True)(module.graph)
    module.graph.lint()
    (report,) = plugin.reports()
    assert report.outcome == "planned" and "planned" in report.summary
    assert report.timeline is not None and report._repr_html_() == report.timeline.svg and "<svg" in report.timeline.svg
    assert sum(span.message is not None for span in report.timeline.spans) == report.launches_after
    # An order edge holds what data does not.
    assert any("control_deps" in target for target in targets(module))


def test_measured_times_are_found_again_for_the_same_graph_only(tmp_path: Any) -> None:
    from bucketeer.torch import _times
    from bucketeer.torch._graphs import digest_of

    module, other = trace(several, *shards(3)), trace(several, *shards(4))
    (tmp_path / f"{digest_of(module.graph)}.json").write_text('{"schema": "bucketeer-times-1", "graph": "g", "ns": {"relu": 5000000}}')
    assert _times.times_of(tmp_path, module.graph) == b'{"schema": "bucketeer-times-1", "ns": {"relu": 5000000}}'
    assert _times.times_of(tmp_path, other.graph) is None
    made = plugin.BucketeerPass(profile="h100", times=tmp_path, strict=True)
    made(module.graph)
    made(other.graph)
    with_times, without = plugin.reports()
    assert with_times.details.as_written.compute_ns > 5_000_000 > without.details.as_written.compute_ns
    assert any("has no times of this graph" in said for said in without.said)


def test_names_of_targets_are_those_of_fx_text() -> None:
    module = trace(lambda x: (x.sum(), x.split(2)[0], x @ x), torch.randn(4, 4))
    text = module.print_readable(print_output=False)
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            assert f"torch.ops.{_operators.describe(node.target)[0]}(" in text
    assert _operators.describe(operator.getitem) == ("operator.getitem", None)
    assert _operators.describe(torch.cond)[0].endswith("cond")
    assert _operators.resolve("operator.getitem") is operator.getitem
    with pytest.raises(LookupError, match="no operator `aten.nothing.default`"):
        _operators.resolve("aten.nothing.default")


def test_the_edits_of_a_graph_that_nothing_changed_are_none() -> None:
    module = trace(several, *shards(1))
    before = state(module)
    plugin.BucketeerPass(strict=True)(module.graph)
    assert state(module) == before
    assert plugin.reports()[0].outcome == "unchanged"


def test_conflicts_are_named_by_settings_that_inductor_has() -> None:
    for name, off in _pass._CONFLICTS.items():
        at: Any = config
        for part in name.split("."):
            at = getattr(at, part)
        assert at == off
