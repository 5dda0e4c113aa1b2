"""Replica groups of HLO: their three spellings and what the numbers mean, against interchange §4.3."""

from __future__ import annotations

import numpy as np
import pytest

from rota.errors import UsageError
from rota.frontends.hlo_groups import LARGEST_DEVICE_COUNT, Numbering, devices_of, numbering, read_groups

MANY = LARGEST_DEVICE_COUNT


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{ {0, 1}, {2} }", ((0, 1), (2,))),
        ("{{3,0,2,1}}", ((3, 0, 2, 1),)),
        ("{}", ()),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[2,2,2]T(0,2,1)", ((0, 2, 1, 3), (4, 6, 5, 7))),
        ("[1,8]<=[8]", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("[8,1]<=[8]", tuple((n,) for n in range(8))),
    ],
)
def test_the_written_forms_spell_their_groups_in_order(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """Order inside a group matters: it decides the order of shards. Source: interchange §4.3."""
    assert read_groups(text, limit=8) == groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("mesh['x'=4,'y'=2] {'y'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=4,'y'=2] {'x'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=4,'y'=2] {'x','y'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['x'=4,'y'=2] {'y','x'}", ((0, 2, 4, 6, 1, 3, 5, 7),)),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", (tuple(range(8)),)),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_1'}", tuple((n,) for n in range(8))),
        ("mesh[x=4,y=2] {y}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=2,'y'=2], device_ids=(3,1,0,2) {'x'}", ((3, 0), (1, 2))),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}", ((0, 2), (1, 3))),
        ("mesh['x'=8], device_ids=([2,4]T(1,0)) {'x':(4)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_a_mesh_group_varies_the_named_axes_first_named_slowest(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """Devices lie in mesh shape; a group varies the named axes in the order named. Source: interchange §4.3."""
    assert read_groups(text, limit=8) == groups


@pytest.mark.parametrize(
    ("part", "iota"),
    [
        ("'x':(1)2", "[4,2]<=[2,4]T(1,0)"),
        ("'x':(1)4", "[2,4]<=[4,2]T(1,0)"),
        ("'x':(2)2", "[4,2]<=[2,2,2]T(0,2,1)"),
        ("'x':(2)4", "[2,4]<=[8]"),
        ("'x':(4)2", "[4,2]<=[8]"),
        ("'x':(1)2,'x':(4)2", "[2,4]<=[2,2,2]T(1,0,2)"),
        ("'x':(4)2,'x':(1)2", "[2,4]<=[2,2,2]T(1,2,0)"),
    ],
)
def test_a_sub_axis_is_the_middle_of_an_axis_split_in_three(part: str, iota: str) -> None:
    """`'x':(p)s` splits x into (p, s, rest) and varies the middle part. Source: interchange §4.3."""
    assert read_groups(f"mesh['x'=8] {{{part}}}", limit=8) == read_groups(iota, limit=8)


def test_sub_axes_of_two_axes_agree_with_a_transpose() -> None:
    """Sub-axes are the axes of the mesh reshaped, the varied ones moved last."""
    grid = np.arange(6 * 6).reshape(2, 3, 3, 2)  # x = (2)3, y = (1)3
    expected = grid.transpose(0, 3, 1, 2).reshape(-1, 9)
    got = read_groups("mesh['x'=6,'y'=6] {'x':(2)3,'y':(1)3}", limit=36)
    assert got == tuple(map(tuple, expected.tolist()))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[8]<=[8]", "got 1 numbers"),
        ("[2,2,2]<=[8]", "got 3 numbers"),
        ("[2,4]<=[4]", "2 groups of 4 are not the 4 devices"),
        ("[2,4]<=[2,4]T(0,0)", "each of 2 dimensions once"),
        ("[2,4]<=[2,4]T(1)", "each of 2 dimensions once"),
        ("[0,4]<=[0]", "got none"),
        ("[2,4]<=8", "expected groups such as"),
        ("{{0,1},{2,x}}", "expected groups such as"),
        ("{0,1}", "expected groups such as"),
        ("{{0,1}", "expected groups such as"),
        ("{{-1}}", "expected groups such as"),
        ("everyone", "expected groups such as"),
        ("", "expected groups such as"),
        ("mesh['x'=4] {}", "expected axes of the mesh"),
        ("mesh['x'=4] {'z'}", "expected axes of the mesh"),
        ("mesh['x'=4,'x'=2] {'x'}", "expected different axes"),
        ("mesh['x'=4]", "expected groups such as mesh"),
        ("mesh[] {'x'}", "expected different axes"),
        ("mesh['x'=8] {'x':(3)2}", "does not divide"),
        ("mesh['x'=8] {'x':(0)2}", "does not divide"),
        ("mesh['x'=8] {'x':(1)4,'x':(2)4}", "overlap"),
        ("mesh['x'=8] {'x','x'}", "overlap"),
        ("mesh['x'=4], device_ids=(0,1,2) {'x'}", "name each of the 4 places"),
        ("mesh['x'=4], device_ids=(0,1,2,2) {'x'}", "name each of the 4 places"),
        ("mesh['x'=4], device_ids=([2,1]T(1,0)) {'x'}", "name each of the 4 places"),
        ("mesh['x'=4], device_ids=(one) {'x'}", "name each of the 4 places"),
    ],
)
def test_a_wrong_spelling_is_refused(text: str, complaint: str) -> None:
    """What XLA's parser takes or refuses but means no groups is refused with its reason. Source: interchange §4.3."""
    with pytest.raises(UsageError) as error:
        read_groups(text, limit=8)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "[1000001,1]<=[1000001]",
        "[1,1000000000000]<=[1000000,1000000]",
        "mesh['x'=1000000,'y'=1000000] {'x'}",
        "mesh['x'=4], device_ids=([99999,99999]) {'x'}",
    ],
)
def test_a_huge_list_is_refused_before_it_is_spelled_out(text: str) -> None:
    """Nothing larger than a million devices is ever built."""
    with pytest.raises(UsageError, match="got more"):
        read_groups(text, limit=MANY)


@pytest.mark.parametrize(
    ("opcode", "has_channel", "has_global_ids", "expected"),
    [
        ("all-reduce", False, False, Numbering.CROSS_REPLICA),
        ("all-gather", False, False, Numbering.CROSS_REPLICA),
        ("all-to-all", False, False, Numbering.CROSS_REPLICA),
        ("collective-permute", False, False, Numbering.CROSS_REPLICA),
        ("all-reduce", True, True, Numbering.FLATTENED),
        ("all-gather", True, True, Numbering.FLATTENED),
        ("reduce-scatter", True, True, Numbering.FLATTENED),
        ("all-reduce", True, False, Numbering.CROSS_REPLICA_AND_PARTITION),
        ("all-gather", True, False, Numbering.CROSS_REPLICA_AND_PARTITION),
        ("reduce-scatter", True, False, Numbering.CROSS_REPLICA_AND_PARTITION),
        ("all-to-all", True, False, Numbering.CROSS_PARTITION),
        ("collective-permute", True, False, Numbering.CROSS_PARTITION),
        ("collective-broadcast", True, False, Numbering.CROSS_PARTITION),
        ("ragged-all-to-all", True, False, Numbering.CROSS_PARTITION),
    ],
)
def test_the_table_of_what_numbers_mean(
    opcode: str, has_channel: bool, has_global_ids: bool, expected: Numbering
) -> None:
    """channel_id and use_global_device_ids decide what the numbers name. Source: interchange §4.3."""
    assert numbering(opcode, has_channel=has_channel, has_global_ids=has_global_ids) is expected


def test_global_ids_without_a_channel_are_illegal() -> None:
    """The last row of the table of interchange §4.3."""
    with pytest.raises(UsageError, match="needs a channel_id"):
        numbering("all-reduce", has_channel=False, has_global_ids=True)


def test_an_opcode_without_the_flag_cannot_have_it() -> None:
    """all-to-all and its like have no use_global_device_ids. Source: interchange §4.3."""
    with pytest.raises(UsageError, match="all-to-all has no use_global_device_ids"):
        numbering("all-to-all", has_channel=True, has_global_ids=True)


@pytest.mark.parametrize(
    ("rule", "groups", "devices"),
    [
        # 3 replicas × 2 partitions: device = 2 × replica + partition
        (Numbering.CROSS_REPLICA, ((0, 2), (1,)), ((0, 4), (1, 5), (2,), (3,))),
        (Numbering.CROSS_REPLICA, (), ((0, 2, 4), (1, 3, 5))),
        (Numbering.CROSS_PARTITION, ((1, 0),), ((1, 0), (3, 2), (5, 4))),
        (Numbering.CROSS_PARTITION, (), ((0, 1), (2, 3), (4, 5))),
        (Numbering.CROSS_REPLICA_AND_PARTITION, ((0, 2), (1,)), ((0, 1, 4, 5), (2, 3))),
        (Numbering.CROSS_REPLICA_AND_PARTITION, (), ((0, 1, 2, 3, 4, 5),)),
        (Numbering.FLATTENED, ((5, 0), (1, 2, 3, 4)), ((5, 0), (1, 2, 3, 4))),
    ],
)
def test_numbers_become_global_devices(
    rule: Numbering, groups: tuple[tuple[int, ...], ...], devices: tuple[tuple[int, ...], ...]
) -> None:
    """rank = replica × num_partitions + partition. Source: interchange §4.3."""
    assert devices_of(groups, rule, replicas=3, partitions=2) == devices


@pytest.mark.parametrize(
    ("rule", "groups", "complaint"),
    [
        (Numbering.CROSS_REPLICA, ((0, 1), (1, 2)), "number 1 is in group 0 and in group 1"),
        (Numbering.CROSS_REPLICA, ((0, 1, 0),), "number 0 is twice in group 0"),
        (Numbering.CROSS_REPLICA, ((0, 3),), "expected replica ids below 3"),
        (Numbering.CROSS_PARTITION, ((0, 2),), "expected partition ids below 2"),
        (Numbering.FLATTENED, ((0, 6),), "expected global device ids below 6"),
        (Numbering.FLATTENED, (), "replica_groups is empty"),
        (Numbering.CROSS_REPLICA, ((0,), ()), "group 1 is empty"),
    ],
)
def test_groups_that_cannot_meet_are_refused(
    rule: Numbering, groups: tuple[tuple[int, ...], ...], complaint: str
) -> None:
    """Overlaps, strangers and empty groups are refused, which XLA's parser leaves open. Source: interchange §4.3."""
    with pytest.raises(UsageError) as error:
        devices_of(groups, rule, replicas=3, partitions=2)
    assert complaint in str(error.value)
