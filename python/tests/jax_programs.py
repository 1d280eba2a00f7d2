"""Training steps of all kinds that jax distributes, for `test_jax.py`.

Each gives `start()`, which makes parameters and a batch, and `step(params, batch)`, which donates its parameters and
gives new ones and the loss.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 4, 16, 16


@dataclasses.dataclass(frozen=True)
class Program:
    """A step, and what it starts from."""

    start: Callable[[], tuple[Any, Any]]
    step: Any


def mesh(**axes: int) -> Mesh:
    """The eight devices by axes, in order."""
    return Mesh(np.array(jax.devices()[:8]).reshape(*axes.values()), tuple(axes))


def put(value: Any, mesh: Mesh, *spec: Any) -> jax.Array:
    """A value on a mesh."""
    placed: jax.Array = jax.device_put(value, NamedSharding(mesh, P(*spec)))
    return placed


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """The same numbers each time."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def forward(params: Any, batch: jax.Array) -> jax.Array:
    """The loss of a plain network."""
    for weight, bias in params:
        batch = jnp.tanh(batch @ weight + bias)
    return (batch * batch).mean()


def update(params: Any, gradients: Any) -> Any:
    """Parameters after a step."""
    return jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)


def _start(
    mesh: Mesh, weight: tuple[str, ...], bias: tuple[str, ...], batch: tuple[str, ...]
) -> Callable[[], tuple[Any, Any]]:
    def start() -> tuple[Any, Any]:
        params = [
            (put(random(WIDTH, WIDTH, seed=at), mesh, *weight), put(random(WIDTH, seed=at), mesh, *bias))
            for at in range(LAYERS)
        ]
        return params, put(random(BATCH, WIDTH, seed=99), mesh, *batch)

    return start


def _partitioned_step() -> Callable[[Any, jax.Array], tuple[Any, jax.Array]]:
    """A step of its own each time: jax keeps what it compiled by function, for all who jit the same one."""

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        loss, gradients = jax.value_and_grad(forward)(params, batch)
        return update(params, gradients), loss

    return step


def data_parallel_partitioned(on: Mesh | None = None, **jit: Any) -> Program:
    """Data-parallel, by shardings: XLA makes the all-reduces of gradients."""
    on = on or mesh(data=8)
    return Program(_start(on, (), (), ("data",)), jax.jit(_partitioned_step(), donate_argnums=0, **jit))


def data_parallel_written(on: Mesh | None = None, **jit: Any) -> Program:
    """Data-parallel, with an all-reduce for each gradient in the program."""
    on = on or mesh(data=8)

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        loss, gradients = jax.value_and_grad(forward)(params, batch)
        gradients = jax.tree.map(lambda gradient: jax.lax.pmean(gradient, "data"), gradients)
        return update(params, gradients), jax.lax.pmean(loss, "data")

    sharded = jax.shard_map(step, mesh=on, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False)
    return Program(_start(on, (), (), ("data",)), jax.jit(sharded, donate_argnums=0, **jit))


def fsdp_partitioned(on: Mesh | None = None, **jit: Any) -> Program:
    """Fully sharded, by shardings of parameters: gathers before they are used, scatters of gradients."""
    on = on or mesh(data=8)

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            whole = jax.lax.with_sharding_constraint(params, NamedSharding(on, P()))
            return forward(whole, batch)

        value, gradients = jax.value_and_grad(loss)(params)
        return update(params, gradients), value

    return Program(_start(on, ("data",), ("data",), ("data",)), jax.jit(step, donate_argnums=0, **jit))


def fsdp_written(on: Mesh | None = None, **jit: Any) -> Program:
    """Fully sharded, with gathers and reduce-scatters in the program."""
    on = on or mesh(data=8)

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        whole = jax.tree.map(lambda param: jax.lax.all_gather(param, "data", tiled=True), params)
        loss, gradients = jax.value_and_grad(forward)(whole, batch)
        scatter = lambda gradient: jax.lax.psum_scatter(gradient, "data", tiled=True) / 8  # noqa: E731
        return update(params, jax.tree.map(scatter, gradients)), jax.lax.pmean(loss, "data")

    sharded = jax.shard_map(step, mesh=on, in_specs=(P("data"), P("data")), out_specs=(P("data"), P()), check_vma=False)
    return Program(_start(on, ("data",), ("data",), ("data",)), jax.jit(sharded, donate_argnums=0, **jit))


def pipeline(on: Mesh | None = None, **jit: Any) -> Program:
    """Four stages along which activations are permuted, twice: gradients are reduced between the two."""
    on = on or mesh(stage=4, data=2)
    around = [(at, (at + 1) % 4) for at in range(4)]

    def loss(params: Any, batch: jax.Array) -> Any:
        stage = jax.lax.axis_index("stage")
        micro = batch.reshape(4, -1, WIDTH)
        here, total = jnp.zeros_like(micro[0]), jnp.float32(0)
        (weight, bias), (weight2, bias2) = params
        for tick in range(7):
            fed = micro[tick] if tick < 4 else jnp.zeros_like(micro[0])
            here = jnp.where(stage == 0, fed, here)
            here = jnp.tanh(jnp.tanh(here @ weight[0] + bias[0]) @ weight2[0] + bias2[0])
            if tick >= 3:
                total = total + jnp.where(stage == 3, (here * here).mean(), 0.0)
            here = jax.lax.ppermute(here, "stage", around)
        return total

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        gradients = jax.tree.map(lambda gradient: jax.lax.pmean(gradient, "data"), gradients)
        return update(params, gradients), jax.lax.psum(jax.lax.pmean(value, "data"), "stage")

    def start() -> tuple[Any, Any]:
        params = [
            (put(random(4, WIDTH, WIDTH, seed=at), on, "stage"), put(random(4, WIDTH, seed=at), on, "stage"))
            for at in range(2)
        ]
        return params, put(random(2 * BATCH, WIDTH, seed=99), on, "data")

    sharded = jax.shard_map(
        step, mesh=on, in_specs=(P("stage"), P("data")), out_specs=(P("stage"), P()), check_vma=False
    )
    return Program(start, jax.jit(sharded, donate_argnums=0, **jit))


def tensor_parallel(on: Mesh | None = None, **jit: Any) -> Program:
    """Two axes of a mesh: data, and the columns of weights."""
    on = on or mesh(data=4, model=2)
    start = _start(on, ("data", "model"), ("model",), ("data",))
    return Program(start, jax.jit(_partitioned_step(), donate_argnums=0, **jit))


def both(on: Mesh | None = None, **jit: Any) -> Program:
    """Some collectives in the program, and some of the partitioner."""
    on = on or mesh(data=8)

    def norms(params: Any, batch: jax.Array) -> Any:
        summed = jax.tree.map(lambda param: jax.lax.psum((param * param).sum(), "data"), params)
        return summed, jax.lax.psum(batch.sum(0), "data")

    sharded = jax.shard_map(norms, mesh=on, in_specs=(P("data"), P("data")), out_specs=P(), check_vma=False)

    def step(params: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        new, loss = _partitioned_step()(params, batch)
        found, means = sharded(params, batch)
        return new, loss + sum(jax.tree.leaves(found)) + means.sum()

    return Program(_start(on, (), (), ("data",)), jax.jit(step, donate_argnums=0, **jit))
