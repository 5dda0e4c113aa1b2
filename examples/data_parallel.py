"""Print the optimised HLO of one data-parallel training step of a small MLP over 64 devices.

    python examples/data_parallel.py > examples/data_parallel.hlo

Every device holds all weights and 1/64 of the batch; XLA's partitioner adds the all-reduce of the gradients by itself,
one instruction with a tuple of operands. Needs `jax` (the committed text is from 0.10.2) and nothing else: the devices
are 64 pretended CPUs, and the step is compiled, never run.
"""

from __future__ import annotations

import os
from itertools import pairwise

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=64"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

WIDTHS = (128, 256, 128, 10)
BATCH = 2048
RATE = 0.1

Layer = tuple[jax.Array, jax.Array]


def loss(layers: list[Layer], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean squared error of the MLP."""
    *hidden, (last_weight, last_bias) = layers
    for weight, bias in hidden:
        inputs = jax.nn.relu(inputs @ weight + bias)
    return jnp.mean((inputs @ last_weight + last_bias - targets) ** 2)


def step(layers: list[Layer], inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, list[Layer]]:
    """Return the loss and the layers after one step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(layers, inputs, targets)
    return value, jax.tree.map(lambda one, gradient: one - RATE * gradient, layers, gradients)


def main() -> None:
    """Compile the step for the mesh and print what XLA made of it, without source locations."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    mesh = jax.make_mesh((64,), ("data",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_row = NamedSharding(mesh, PartitionSpec("data"))

    def array(*shape: int, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    layers = [
        (array(rows, columns, sharding=everywhere), array(columns, sharding=everywhere))
        for rows, columns in pairwise(WIDTHS)
    ]
    inputs = array(BATCH, WIDTHS[0], sharding=by_row)
    targets = array(BATCH, WIDTHS[-1], sharding=by_row)
    print(jax.jit(step).lower(layers, inputs, targets).compile().as_text().strip())


if __name__ == "__main__":
    main()
