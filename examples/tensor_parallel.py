"""Print the HLO of a tensor-parallel transformer block, forward and backward, on a 16 x 4 mesh of 64 devices.

    python examples/tensor_parallel.py > examples/tensor_parallel.hlo

Sixteen data-parallel groups of four devices; each four split the heads and the hidden layer of one block, and its
activations by sequence between them. The text is the program as JAX hands it to the compiler, with bf16 collectives:
XLA's CPU compiler has none and widens them to f32, as `--optimized` shows. Needs `jax` (the committed text is from
0.10.2) and nothing else: the devices are 64 pretended CPUs, and the program is never run.
"""

from __future__ import annotations

import argparse
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=64"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

BATCH, SEQUENCE, MODEL, HEADS, HIDDEN = 32, 64, 128, 8, 512
HEAD = MODEL // HEADS
RATE = 0.01

WEIGHTS = {
    # name        shape                  split by the devices of one group
    "attention_scale": ((MODEL,), PartitionSpec()),
    "query": ((MODEL, HEADS, HEAD), PartitionSpec(None, "model")),
    "key": ((MODEL, HEADS, HEAD), PartitionSpec(None, "model")),
    "value": ((MODEL, HEADS, HEAD), PartitionSpec(None, "model")),
    "output": ((HEADS, HEAD, MODEL), PartitionSpec("model")),
    "hidden_scale": ((MODEL,), PartitionSpec()),
    "up": ((MODEL, HIDDEN), PartitionSpec(None, "model")),
    "down": ((HIDDEN, MODEL), PartitionSpec("model")),
}
ACTIVATIONS = PartitionSpec("data", "model")  # batch by data-parallel group, sequence by device

Weights = dict[str, jax.Array]


def normalised(values: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the root-mean-square norm of the last dimension, computed in float32."""
    wide = values.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(values.dtype) * scale


def attention(weights: Weights, values: jax.Array) -> jax.Array:
    """Return what the heads of one device add, over the whole sequence; a partial sum."""
    query, key, value = (jnp.einsum("bsm,mhe->bshe", values, weights[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bshe,bthe->bhst", query, key).astype(jnp.float32) * HEAD**-0.5
    mixed = jnp.einsum("bhst,bthe->bshe", jax.nn.softmax(scores).astype(values.dtype), value)
    return jnp.einsum("bshe,hem->bsm", mixed, weights["output"])


def block(weights: Weights, values: jax.Array) -> jax.Array:
    """Return the block's output; all-gather before each half, reduce-scatter after it, along the sequence."""
    whole = lax.all_gather(normalised(values, weights["attention_scale"]), "model", axis=1, tiled=True)
    values += lax.psum_scatter(attention(weights, whole), "model", scatter_dimension=1, tiled=True)
    whole = lax.all_gather(normalised(values, weights["hidden_scale"]), "model", axis=1, tiled=True)
    partial = jax.nn.gelu(whole @ weights["up"]) @ weights["down"]
    return values + lax.psum_scatter(partial, "model", scatter_dimension=1, tiled=True)


def loss(weights: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean squared error over all devices."""
    difference = (block(weights, inputs) - targets).astype(jnp.float32)
    return lax.pmean(jnp.mean(difference * difference), ("data", "model"))


def main() -> None:
    """Lower one step of gradient descent for the mesh and print it, without source locations."""
    parser = argparse.ArgumentParser(description="Print the HLO of a tensor-parallel transformer block.")
    parser.add_argument("--optimized", action="store_true", help="what XLA's CPU compiler makes of it")
    optimized = parser.parse_args().optimized

    jax.config.update("jax_traceback_in_locations_limit", 0)
    mesh = jax.make_mesh((16, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    splits = {name: split for name, (_, split) in WEIGHTS.items()}
    sharded_loss = jax.shard_map(
        loss, mesh=mesh, in_specs=(splits, ACTIVATIONS, ACTIVATIONS), out_specs=PartitionSpec()
    )

    def step(weights: Weights, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, Weights]:
        value, gradients = jax.value_and_grad(sharded_loss)(weights, inputs, targets)
        return value, jax.tree.map(lambda one, gradient: one - RATE * gradient, weights, gradients)

    def array(shape: tuple[int, ...], split: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, split))

    weights = {name: array(shape, split) for name, (shape, split) in WEIGHTS.items()}
    activations = array((BATCH, SEQUENCE, MODEL), ACTIVATIONS)
    lowered = jax.jit(step).lower(weights, activations, activations)
    text = lowered.compile().as_text() if optimized else lowered.as_text(dialect="hlo")
    print(text.strip())


if __name__ == "__main__":
    main()
