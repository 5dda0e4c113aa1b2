"""Laws of the HLO reader: any text is read or refused, groups agree with arrays, time grows with the text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import UsageError
from rota.frontends.hlo import HloModule, is_hlo, parse_hlo
from rota.frontends.hlo_groups import Numbering, devices_of, read_groups

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
TEXTS: Final = tuple((EXAMPLES / f"{name}.hlo").read_text() for name in ("data_parallel", "tensor_parallel"))
# Only the lines around the collectives, so that a change hits what the reader looks at.
SMALL: Final = """HloModule m, replica_count=4, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %r = f32[] add(%x, %y)
}

%wrapped (s: f32[8]) -> f32[2] {
  %s = f32[8] parameter(0)
  ROOT %rs = f32[2] reduce-scatter(%s), replica_groups=[1,4]<=[2,2]T(1,0), dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0), metadata={op_name="a{b"}
  %a = f32[8]{0} all-reduce(f32[8]{0} %p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %b = ((f32[8]), f32[2]) async-start(%p), calls=%wrapped
  %c = f32[2] async-done(%b)
  %d = (f32[8], f32[16]) all-gather-start(%p), channel_id=2, replica_groups=mesh['x'=4,'y'=2] {'x':(2)2},
    dimensions={0}, use_global_device_ids=true
  %e = f32[16] all-gather-done(%d)
  ROOT %f = f32[8] collective-permute(%p), source_target_pairs={{0,1},{1,0}}
}
"""
PIECES: Final = (
    "{", "}", "(", ")", "[", "]", '"', "\\", "/*", "*/", "//", ",", "=", "\n", "%", "'", "<=", "->", "ROOT ", "ENTRY ",
    "HloModule ", "mesh['x'=2] {'x'}", "[2,4]<=[8]T(0)", "all-reduce(", "-start", "-done", "f32[", "token[]", "9" * 30,
    "²", "\x00", "\ufeff", "replica_groups={}", "use_global_device_ids=true", "calls=%wrapped", "1", "-1", "0",
)  # fmt: skip


def read(text: str) -> HloModule | None:
    """Return the module, or nothing when the reader refuses it in the way it promises to."""
    try:
        return parse_hlo(text)
    except UsageError:
        return None


def check(module: HloModule | None) -> None:
    """Check what every usable collective promises."""
    for one in module.collectives if module else ():
        assert one.refused != ""
        members = [rank for group in one.groups for rank in group]
        assert len(set(members)) == len(members)
        assert module is not None
        assert all(0 <= rank < module.devices for rank in members)
        if one.refused is None:
            assert one.element_type
            assert one.groups or one.opcode == "collective-permute"


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
@example("HloModule m\nENTRY e {\n  x = " + "(" * 5000 + ")" * 5000 + " tuple()\n}")
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever the text, there is a module or a UsageError."""
    check(read(text))
    check(read("HloModule m\n" + text))
    check(read("HloModule m\nENTRY e {\n  p = f32[8] parameter(0)\n" + text + "\n}"))
    is_hlo(text.encode("utf-8", "surrogatepass"))


@given(st.binary())
def test_any_bytes_have_a_kind(data: bytes) -> None:
    """The kind of a file can be asked of any bytes."""
    assert isinstance(is_hlo(data), bool)


@given(st.data())
def test_a_changed_module_is_read_or_refused(data: st.DataObject) -> None:
    """Cutting, copying and putting in text anywhere never crashes the reader."""
    text = data.draw(st.sampled_from((SMALL, SMALL, *TEXTS)))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 60)))
        piece = data.draw(st.one_of(st.just(""), st.sampled_from(PIECES), st.text(max_size=5)))
        kept = text[begin:end] if data.draw(st.booleans()) else ""
        text = text[:begin] + kept + piece + text[begin if kept else end :]
    check(read(text))


@given(st.sampled_from((SMALL, *TEXTS)), st.data())
def test_a_cut_module_is_refused_or_shorter(text: str, data: st.DataObject) -> None:
    """The beginning of a module has no collective that the module has not."""
    whole = parse_hlo(text)
    part = read(text[: data.draw(st.integers(0, len(text)))])
    names = {one.name for one in whole.collectives}
    assert part is None or {one.name for one in part.collectives} <= names | {"rs"}


def test_the_small_module_is_sound() -> None:
    """The module that the changes start from is read whole, so that they start from something."""
    module = parse_hlo(SMALL)
    assert [(one.name, one.refused) for one in module.collectives] == [(n, None) for n in "abdf"]


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(shapes, st.data())
def test_an_iota_is_an_array_transposed_and_cut(dims: list[int], data: st.DataObject) -> None:
    """[G,N]<=[dims]T(perm) is arange, reshaped, transposed, flattened and cut. Source: interchange §4.3."""
    count = math.prod(dims)
    order = data.draw(st.permutations(range(len(dims))))
    size = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    text = f"[{count // size},{size}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    expected = np.arange(count).reshape(dims).transpose(order).reshape(-1, size)
    assert read_groups(text, limit=count) == tuple(map(tuple, expected.tolist()))


@given(shapes, st.data())
def test_a_mesh_moves_the_named_axes_last(dims: list[int], data: st.DataObject) -> None:
    """A mesh group is the device array with the named axes last, in the order named. Source: interchange §4.3."""
    named = data.draw(st.lists(st.sampled_from(range(len(dims))), min_size=1, unique=True))
    devices = data.draw(st.permutations(range(math.prod(dims))))
    rest = [axis for axis in range(len(dims)) if axis not in named]
    size = math.prod(dims[axis] for axis in named)
    expected = np.array(devices).reshape(dims).transpose(rest + named).reshape(-1, size)
    axes = ",".join(f"'a{axis}'={dim}" for axis, dim in enumerate(dims))
    varied = ",".join(f"'a{axis}'" for axis in named)
    text = f"mesh[{axes}], device_ids=({','.join(map(str, devices))}) {{{varied}}}"
    assert read_groups(text, limit=len(devices)) == tuple(map(tuple, expected.tolist()))


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(Numbering), st.data())
def test_groups_of_all_numbers_are_a_partition_of_the_devices(
    replicas: int, partitions: int, rule: Numbering, data: st.DataObject
) -> None:
    """When the groups name every number once, every device is in exactly one group, whatever the numbers mean."""
    space = {
        Numbering.FLATTENED: replicas * partitions,
        Numbering.CROSS_PARTITION: partitions,
        Numbering.CROSS_REPLICA: replicas,
        Numbering.CROSS_REPLICA_AND_PARTITION: replicas,
    }[rule]
    order = data.draw(st.permutations(range(space)))
    cut = data.draw(st.integers(1, space))
    groups = tuple(tuple(order[begin : begin + cut]) for begin in range(0, space, cut))
    devices = devices_of(groups, rule, replicas=replicas, partitions=partitions)
    assert sorted(rank for group in devices for rank in group) == list(range(replicas * partitions))
