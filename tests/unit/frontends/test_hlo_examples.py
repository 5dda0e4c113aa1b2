"""The two HLO files of `examples/`, printed by real JAX programs, read and counted a second way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from rota.frontends.hlo import HloModule, is_hlo, parse_hlo

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
NAMES: Final = ("data_parallel", "tensor_parallel")
BYTES: Final = {"f32": 4, "bf16": 2}
# A line with a collective: its result (all of a tuple), its opcode; nothing of the reader is used here.
LINE: Final = re.compile(r"= (?:\((.*?)\)|(\S+)) (all-reduce|all-gather|reduce-scatter)\(")


def read(name: str) -> HloModule:
    return parse_hlo((EXAMPLES / f"{name}.hlo").read_text())


def result_bytes(shapes: str) -> int:
    """Return the bytes of all arrays in a piece of text."""
    total = 0
    for element, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        size = BYTES[element]
        for dim in filter(None, dims.split(",")):
            size *= int(dim)
        total += size
    return total


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_whole_hlo_modules_for_64_devices(name: str) -> None:
    """Both programs run on 64 devices, and all their collectives can be used."""
    assert is_hlo((EXAMPLES / f"{name}.hlo").read_bytes())
    module = read(name)
    assert module.devices == 64
    assert [one.refused for one in module.collectives if one.refused] == []
    assert [one.notes for one in module.collectives if one.notes] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_name_no_file_of_any_machine(name: str) -> None:
    """The committed text holds no source location."""
    text = (EXAMPLES / f"{name}.hlo").read_text()
    assert not re.search(r"source_file|stack_frame_id|FileNames|\.py|/home|/tmp|/usr", text)
    assert len(text) < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_lines_opcodes_and_bytes_agree_with_a_plain_search(name: str) -> None:
    """Bytes follow from the printed results: equal, ÷ the group (all-gather) or × the group (reduce-scatter)."""
    found = []
    for number, line in enumerate((EXAMPLES / f"{name}.hlo").read_text().splitlines(), 1):
        if match := LINE.search(line):
            found.append((number, match[3], result_bytes(match[1] or match[2])))
    collectives = read(name).collectives
    sizes = [len(one.groups[0]) for one in collectives]
    scale = {"all-reduce": lambda b, _: b, "all-gather": lambda b, n: b * n, "reduce-scatter": lambda b, n: b // n}
    seen = [
        (one.line, one.opcode, scale[one.opcode](one.operand_bytes, n))
        for one, n in zip(collectives, sizes, strict=True)
    ]
    assert found
    assert seen == found


def test_the_data_parallel_step_reduces_its_gradients_at_once() -> None:
    """One all-reduce over all 64 devices carries the loss and every weight and bias of the MLP, in f32."""
    (one,) = read("data_parallel").collectives
    weights = 128 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10
    assert (one.opcode, one.reduction, one.element_type) == ("all-reduce", "add", "f32")
    assert (one.operand_elements, one.operand_bytes) == (weights + 1, 4 * (weights + 1))
    assert one.groups == (tuple(range(64)),)


def test_the_tensor_parallel_block_uses_both_axes_of_its_mesh() -> None:
    """Activations move inside 16 groups of 4 neighbours, gradients over 4 groups of 16, a stride of 4 apart."""
    module = read("tensor_parallel")
    rows = tuple(tuple(range(4 * group, 4 * group + 4)) for group in range(16))
    columns = tuple(tuple(range(lane, 64, 4)) for lane in range(4))
    groups = {
        kind: {one.groups for one in module.collectives if one.opcode == kind}
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
    }
    assert groups == {"all-gather": {rows}, "reduce-scatter": {rows}, "all-reduce": {columns, (tuple(range(64)),)}}
    kinds = [one.opcode for one in module.collectives]
    assert (kinds.count("all-gather"), kinds.count("reduce-scatter"), kinds.count("all-reduce")) == (4, 4, 9)
    assert {one.element_type for one in module.collectives if one.opcode != "all-reduce"} == {"bf16"}


def test_a_gather_and_a_scatter_of_the_block_are_each_others_mirror() -> None:
    """The all-gather's result is the reduce-scatter's operand: batch 2, sequence 64, model 128, in bf16."""
    whole = 2 * 64 * 128 * 2
    for one in read("tensor_parallel").collectives:
        if one.opcode == "all-gather":
            assert (one.dimensions, one.operand_bytes * 4) == ((1,), whole)
        if one.opcode == "reduce-scatter":
            assert (one.dimensions, one.operand_bytes, one.reduction) == ((1,), whole, "add")
