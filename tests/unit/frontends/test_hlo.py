"""The collectives of HLO modules, against interchange §4."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.frontends.hlo import HloCollective, HloModule, parse_hlo

REDUCTIONS = """%add.clone_promoted (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %r = f32[] OPCODE(%x, %y)
}

"""


def module(*lines: str, header: str = "replica_count=8", root: str = "add") -> str:
    """Return a module whose entry has these lines after two parameters: p is f32[16,8], q is f32[4]."""
    entry = ["  %p = f32[16,8]{1,0} parameter(0)", "  %q = f32[4] parameter(1)", *(f"  {line}" for line in lines)]
    head = f"HloModule m{header and ', '}{header}\n\n{REDUCTIONS.replace('OPCODE', root)}"
    return head + "ENTRY %main (p: f32[16,8]) -> f32[16,8] {\n" + "\n".join(entry) + "\n}\n"


def only(*lines: str, header: str = "replica_count=8", root: str = "add") -> HloCollective:
    """Return the one collective of these lines."""
    (one,) = parse_hlo(module(*lines, header=header, root=root)).collectives
    return one


EIGHT = (tuple(range(8)),)
ADD = "to_apply=%add.clone_promoted"


def test_the_module_of_the_page() -> None:
    """The module of interchange §4.1: an all-reduce by global ids, half of the devices in its groups."""
    text = """HloModule name, is_scheduled=true, entry_computation_layout={(f32[4])->f32[4]}, replica_count=8, num_partitions=2

%region (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %r = f32[] add(%x, %y)
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%region
}
"""  # noqa: E501
    assert parse_hlo(text) == HloModule(
        "name",
        8,
        2,
        (
            HloCollective(
                line=11,
                name="a",
                opcode="all-reduce",
                computation="main",
                element_type="f32",
                operand_bytes=16,
                operand_elements=4,
                reduction="add",
                groups=((0, 1, 2, 3), (4, 5, 6, 7)),
                implicit_groups=False,
                is_async=False,
                dimensions=(),
                channel_id=1,
                refused=None,
                notes=("8 of the 16 devices of the module are in no group",),
            ),
        ),
    )


@pytest.mark.parametrize("attributes", [f"replica_groups={{}}, {ADD}", ADD])
def test_no_groups_are_everybody(attributes: str) -> None:
    """`{}` or absent is one group of everybody. Source: interchange §4.3."""
    one = only(f"a = f32[16,8] all-reduce(p), {attributes}")
    assert (one.groups, one.implicit_groups, one.refused) == (EIGHT, True, None)


def test_attributes_come_in_any_order() -> None:
    """Attributes may come in any order and carry nested braces and strings. Source: interchange §4.1."""
    one = only(
        'a = f32[16,8]{1,0} all-reduce(f32[16,8]{1,0} %p), metadata={op_name="{}) all-reduce(" x={1}}, '
        f"{ADD}, backend_config={{}}, constrain_layout=true, use_global_device_ids=true, "
        'replica_groups={{0,1,2,3},{4,5,6,7}}, frontend_attributes={a="b"}, channel_id=3'
    )
    assert (one.groups, one.channel_id, one.refused) == (((0, 1, 2, 3), (4, 5, 6, 7)), 3, None)


@pytest.mark.parametrize("root", ["add", "multiply", "minimum", "maximum", "and", "or", "xor"])
def test_the_reduction_is_the_root_opcode(root: str) -> None:
    """Read the root opcode of the reduction, never its name. Source: interchange §4.1."""
    assert only(f"a = f32[16,8] all-reduce(p), {ADD}", root=root).reduction == root


def test_a_tuple_sums_its_operands() -> None:
    """Bytes of a collective are summed over the members of its tuple. Source: interchange §4.5."""
    one = only(f"a = (f32[16,8], f32[4], /*index=2*/f32[4]) all-reduce(p, q, /*index=2*/%q), {ADD}")
    assert (one.operand_elements, one.operand_bytes, one.refused) == (136, 544, None)


def test_an_all_gather_counts_one_shard() -> None:
    """An all-gather's result is its operand × the group size in `dimensions`. Source: interchange §4.2."""
    one = only("a = f32[16,32] all-gather(p), dimensions={1}, replica_groups=[2,4]<=[8]")
    assert (one.operand_bytes, one.dimensions, one.reduction, one.refused) == (512, (1,), None, None)


def test_a_reduce_scatter_counts_the_whole() -> None:
    """A reduce-scatter's result is its operand ÷ the group size in `dimensions`. Source: interchange §4.2."""
    one = only(f"a = f32[2,8] reduce-scatter(p), dimensions={{0}}, {ADD}")
    assert (one.operand_bytes, one.dimensions, one.reduction, one.refused) == (512, (0,), "add", None)


def test_tuples_of_all_gather_and_reduce_scatter() -> None:
    """Both take n arrays and change the same dimension of each. Source: interchange §4.2."""
    gather, scatter = parse_hlo(
        module(
            "a = (f32[128,8], f32[32]) all-gather(p, q), dimensions={0}",
            f"b = (f32[4,8], f32[1]) reduce-scatter(p, q), dimensions={{0}}, replica_groups=[2,4]<=[8], {ADD}",
        )
    ).collectives
    assert (gather.operand_bytes, gather.refused) == (528, None)
    assert (scatter.operand_bytes, scatter.refused) == (528, None)


def test_a_channel_without_global_ids_means_all_partitions() -> None:
    """The surprising row: replica groups with a channel id cover all partitions. Source: interchange §4.3."""
    one = only(
        f"a = f32[4] all-reduce(q), channel_id=37, replica_groups={{{{0}}}}, {ADD}",
        header="replica_count=1, num_partitions=2",
    )
    assert (one.groups, one.refused) == (((0, 1),), None)


@pytest.mark.parametrize("flag", ["", ", use_global_device_ids=false"])
def test_the_flag_may_be_false_or_missing(flag: str) -> None:
    """`false` and not printed are the same. Source: interchange §4.3."""
    one = only(
        f"a = f32[32] all-gather(q), channel_id=1, dimensions={{0}}, replica_groups={{{{0,1}},{{2,3}}}}{flag}",
        header="replica_count=4, num_partitions=4",
    )
    assert (one.groups, one.refused) == (((0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15)), None)


def test_without_a_channel_partitions_stay_apart() -> None:
    """Cross-replica: those replicas, same partition. Source: interchange §4.3."""
    one = only(
        f"a = f32[4] all-reduce(q), replica_groups={{{{0,1}}}}, {ADD}", header="replica_count=2, num_partitions=2"
    )
    assert one.groups == ((0, 2), (1, 3))


def test_groups_of_an_all_reduce_may_differ_in_size() -> None:
    """Explicit groups may differ in size for all-reduce alone. Source: interchange §4.3."""
    one = only(f"a = f32[4] all-reduce(q), replica_groups={{{{0,1,2}},{{3,4,5,6,7}}}}, {ADD}")
    assert (one.groups, one.refused) == (((0, 1, 2), (3, 4, 5, 6, 7)), None)


@pytest.mark.parametrize(
    ("line", "opcode", "size"),
    [
        ("a = f32[16,8] all-to-all(p), dimensions={0}", "all-to-all", 512),
        ("a = (f32[4], f32[4]) all-to-all(q, q), replica_groups={{0,1},{2,3},{4,5},{6,7}}", "all-to-all", 32),
        ("a = f32[4] collective-permute(q), source_target_pairs={{0,1},{1,0}}", "collective-permute", 16),
        ("a = f32[4] collective-permute(q), source_target_pairs={}", "collective-permute", 16),
        ("a = f32[4] collective-broadcast(q), replica_groups={{1,0}}", "collective-broadcast", 16),
        ("a = f32[16,8] ragged-all-to-all(p, p, q, q, q, q), replica_groups={}", "ragged-all-to-all", 512),
        (f"a = f32[4] collective-reduce(q), replica_groups={{{{0,1}}}}, {ADD}", "collective-reduce", 16),
    ],
)
def test_the_other_collectives_are_reported_with_their_opcode(line: str, opcode: str, size: int) -> None:
    """Every collective has a row; whether it can run is not the reader's business. Source: interchange §4.2."""
    one = only(line)
    assert (one.opcode, one.operand_bytes, one.refused) == (opcode, size, None)


def test_point_to_point_and_other_instructions_are_no_collectives() -> None:
    """send and recv are not collectives, nor is what only carries a like name."""
    text = module(
        "token = token[] after-all()",
        "s = (f32[4], u32[], token[]) send(q, token), channel_id=1",
        "d = token[] send-done(s), channel_id=1",
        "c = (f32[4], f32[4], u32[]) copy-start(q)",
        "all-reduce.1 = f32[4] copy-done(c)",
        'x = f32[4] custom-call(all-reduce.1), custom_call_target="all-reduce("',
    )
    assert parse_hlo(text).collectives == ()


def test_collectives_count_in_any_computation() -> None:
    """Bodies of loops and called computations are read like the entry: each instruction of the text once."""
    text = module("w = (f32[4]) while(t), condition=%cond, body=%body") + (
        f"\n%body (s: f32[4]) -> f32[4] {{\n  %s = f32[4] parameter(0)\n  ROOT %ar = f32[4] all-reduce(%s), {ADD}\n}}\n"
    )
    (one,) = parse_hlo(text).collectives
    assert (one.computation, one.line, one.name) == ("body", 17, "ar")


def test_the_start_stands_for_its_updates_and_done() -> None:
    """A done names its start as its only operand; the pair counts once, at the start. Source: interchange §4.2."""
    first, second, third = parse_hlo(
        module(
            f"s = f32[4] all-reduce-start(q), {ADD}",
            "g = (f32[4], f32[32]) all-gather-start(q), dimensions={0}",
            "d = f32[4] all-reduce-done(s)",
            "e = f32[32] all-gather-done(f32[32] g)",
            f"r = ((f32[16,8]), f32[2,8], s32[]) reduce-scatter-start(p), dimensions={{0}}, {ADD}, "
            'async_execution_thread="t"',
            "u = ((f32[16,8]), f32[2,8], s32[]) reduce-scatter-update(r)",
            "v = ((f32[16,8]), f32[2,8], s32[]) reduce-scatter-update(u)",
            "w = f32[2,8] reduce-scatter-done(v)",
        )
    ).collectives
    assert (first.name, first.opcode, first.is_async, first.refused) == ("s", "all-reduce", True, None)
    assert (second.name, second.opcode, second.operand_bytes, second.refused) == ("g", "all-gather", 16, None)
    assert (third.name, third.opcode, third.operand_bytes, third.refused) == ("r", "reduce-scatter", 512, None)


def test_a_start_of_several_operands_gives_tuples() -> None:
    """An all-gather start's shape is (operands, results). Source: interchange §4.2."""
    one = only(
        "g = ((f32[16,8], f32[4]), (f32[128,8], f32[32])) all-gather-start(p, q), dimensions={0}",
        "d = (f32[128,8], f32[32]) all-gather-done(g)",
    )
    assert (one.operand_bytes, one.refused) == (528, None)


@pytest.mark.parametrize(
    "shape",
    ["f32[32]", "(f32[32])", "(f32[5], f32[32])", "(f32[32], f32[4])", "((f32[4], f32[4]), f32[32])"],
)
def test_a_start_whose_state_does_not_hold_its_operands_is_refused(shape: str) -> None:
    """The first member of a start's tuple is its operands. Source: interchange §4.2."""
    one = only(f"g = {shape} all-gather-start(q), dimensions={{0}}", "d = f32[32] all-gather-done(g)")
    assert one.refused is not None
    assert "expected all-gather-start to give a tuple of its operands" in one.refused


WRAPPED = f"""
%wrapped (s: f32[16,8]) -> f32[2,8] {{
  %s = f32[16,8] parameter(0)
  ROOT %rs = f32[2,8] reduce-scatter(%s), dimensions={{0}}, {ADD}
}}
"""
GENERIC = (
    "a = ((f32[16,8]), f32[2,8], u32[]) async-start(p), calls=%wrapped",
    "b = ((f32[16,8]), f32[2,8], u32[]) async-update(a)",
    "c = f32[2,8] async-done(b), calls=%wrapped",
)


def test_a_generic_start_is_what_its_computation_holds() -> None:
    """async-start counts as the collective it wraps, and the wrapped instruction not again. Source: §4.2."""
    (one,) = parse_hlo(module(*GENERIC) + WRAPPED).collectives
    assert (one.name, one.computation, one.line) == ("a", "main", 12)
    assert (one.opcode, one.is_async, one.operand_bytes, one.refused) == ("reduce-scatter", True, 512, None)


def test_a_generic_start_of_something_else_is_no_collective() -> None:
    """A computation that ends in another opcode makes no collective of its start."""
    text = module(*GENERIC) + WRAPPED.replace("reduce-scatter(%s)", "slice(%s)")
    assert parse_hlo(text).collectives == ()


def test_a_generic_start_of_an_unknown_computation_is_refused() -> None:
    """What cannot be looked up is not passed over in silence."""
    one = only(*GENERIC)
    assert one.refused == "async-start calls 'wrapped', which is no computation of the module"


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ([f"s = f32[4] all-reduce-start(q), {ADD}"], ["all-reduce-start must have one all-reduce-done, got none"]),
        (["d = f32[4] all-reduce-done(q)"], ["all-reduce-done must name one all-reduce-start before it, got 'q'"]),
        (
            [
                f"s = f32[4] all-reduce-start(q), {ADD}",
                "d = f32[4] all-reduce-done(s)",
                "e = f32[4] all-reduce-done(s)",
            ],
            ["all-reduce-start must have one all-reduce-done, got 2"],
        ),
        (
            [f"s = f32[4] all-reduce-start(q), {ADD}", "d = f32[4] all-gather-done(s)"],
            [
                "all-reduce-start must have one all-reduce-done, got none",
                "all-gather-done must name one all-gather-start before it, got 's'",
            ],
        ),
        (["d = f32[4] async-done(q)"], ["async-done must name one async-start before it, got 'q'"]),
    ],
)
def test_starts_and_dones_come_in_pairs(lines: list[str], refused: list[str]) -> None:
    """A start without a done, or a done without a start, is refused by itself. Source: interchange §4.6."""
    assert [one.refused for one in parse_hlo(module(*lines)).collectives] == refused


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        # groups
        (f"a = f32[4] all-reduce(q), replica_groups=[2,4]<=[4], {ADD}", "2 groups of 4 are not the 4 devices"),
        (f"a = f32[4] all-reduce(q), replica_groups=[8]<=[8], {ADD}", "expected [groups,size]"),
        (f"a = f32[4] all-reduce(q), replica_groups=[2,2,2]<=[8], {ADD}", "expected [groups,size]"),
        (f"a = f32[4] all-reduce(q), replica_groups=[4,4]<=[16], {ADD}", "expected 1 to 8 devices, got more"),
        (
            f"a = f32[4] all-reduce(q), replica_groups={{{{0,1}},{{2,1}}}}, {ADD}",
            "number 1 is in group 0 and in group 1",
        ),
        (f"a = f32[4] all-reduce(q), replica_groups={{{{0,8}}}}, {ADD}", "expected replica ids below 8"),
        (f"a = f32[4] all-reduce(q), use_global_device_ids=true, {ADD}", "needs a channel_id"),
        (f"a = f32[4] all-reduce(q), channel_id=1, use_global_device_ids=true, {ADD}", "replica_groups is empty"),
        ("a = f32[4] all-to-all(q), use_global_device_ids=true, channel_id=1", "has no use_global_device_ids"),
        (f"a = f32[4] all-reduce(q), channel_id=one, {ADD}", "expected a whole number above 0 for channel_id"),
        (f"a = f32[4] all-reduce(q), channel_id=0, {ADD}", "expected a whole number above 0 for channel_id"),
        (f"a = f32[4] all-reduce(q), use_global_device_ids=yes, {ADD}", "expected true or false"),
        # pairs
        ("a = f32[4] collective-permute(q), source_target_pairs={{0,1},{2,1}}", "number 1 is the target of 2 pairs"),
        ("a = f32[4] collective-permute(q), source_target_pairs={{0,1},{0,2}}", "number 0 is the source of 2 pairs"),
        ("a = f32[4] collective-permute(q), source_target_pairs={{0,8}}", "pair 0 to 8 is out of range"),
        ("a = f32[4] collective-permute(q), source_target_pairs={{0,1,2}}", "expected pairs"),
        ("a = f32[4] collective-permute(q)", "has no source_target_pairs"),
        # shapes
        ("a = f32[12] all-gather(q), dimensions={0}, replica_groups=[2,4]<=[8]", "gives f32[12], expected f32[16]"),
        ("a = f32[4,8] all-gather(q), dimensions={1}", "dimension 1 is not in f32[4]"),
        ("a = f32[32] all-gather(q)", "needs one dimension"),
        ("a = f32[32] all-gather(q), dimensions={0,1}", "needs one dimension"),
        ("a = f32[8] all-gather(q), dimensions={0}, replica_groups={{0,1},{2,3,4}}", "groups of one size, got 2 and 3"),
        (f"a = f32[1] reduce-scatter(q), dimensions={{0}}, {ADD}", "does not divide by the group size 8"),
        (f"a = f32[16,8] reduce-scatter(p), dimensions={{0}}, {ADD}", "gives f32[16,8], expected f32[2,8]"),
        (f"a = f32[5] all-reduce(q), {ADD}", "gives f32[5], expected f32[4]"),
        (f"a = bf16[4] all-reduce(q), {ADD}", "gives bf16[4], expected f32[4]"),
        (f"a = f32[4] all-reduce(p, q), {ADD}", "gives f32[4], expected f32[16,8], f32[4]"),
        # operands
        (f"a = f32[4] all-reduce(nobody), {ADD}", "operand nobody is not defined"),
        (f"a = f32[4] all-reduce(), {ADD}", "it has no operand"),
        (f"a = f32[4] all-reduce(q,), {ADD}", "operand without a name"),
        (f"a = f32[4] all-reduce(f32[5] q), {ADD}", "printed as 'f32[5]' but defined as f32[4]"),
        # reductions
        ("a = f32[4] all-reduce(q)", "it has no to_apply"),
        ("a = f32[4] all-reduce(q), to_apply=%unknown", "its reduction '%unknown' is no computation"),
        ("a = f32[4] all-reduce(q), to_apply=%main", "ends in all-reduce, expected one of add"),
        (f"a = f32[4] all-reduce(q), {ADD}, {ADD}", "attribute to_apply is given twice"),
        # opcodes
        ("a = f32[4] all-reduce-everything(q)", "all-reduce-everything is no collective this reader knows"),
    ],
)
def test_a_wrong_instruction_is_refused_alone(line: str, complaint: str) -> None:
    """What XLA's parser leaves open is refused with its reason, and the instructions around it are read."""
    good = f"= f32[4] all-reduce(q), {ADD}"
    before, bad, after = parse_hlo(module(f"x {good}", line, f"y {good}")).collectives
    assert bad.refused is not None
    assert complaint in bad.refused
    assert (before.refused, after.refused, after.groups) == (None, None, EIGHT)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["i = s4[8] parameter(2)", "a = s4[64] all-gather(i), dimensions={0}"], "s4 has no whole-byte size"),
        (["i = token[] parameter(2)", f"a = token[] all-reduce(i), {ADD}"], "token is no data"),
        (["i = f32[<=4] parameter(2)", f"a = f32[<=4] all-reduce(i), {ADD}"], "no fixed number"),
        (
            ["i = (f32[4]) tuple(q)", f"a = (f32[4]) all-reduce(i), {ADD}"],
            "operand i is '(f32[4])', expected one array",
        ),
        (["i = s32[4] parameter(2)", f"a = (f32[4], s32[4]) all-reduce(q, i), {ADD}"], "mix element types: f32, s32"),
    ],
)
def test_operands_without_one_element_size_are_refused(lines: list[str], complaint: str) -> None:
    """Types without bytes, tuples and mixtures are refused with their reason. Source: interchange §4.5."""
    one = only(*lines)
    assert one.refused is not None
    assert complaint in one.refused


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("ROOT %r = f32[] add(%x, %y)", "ROOT %r = f32[] add(%x, %x)", "does not combine its two parameters"),
        ("%y = f32[] parameter(1)", "%y = f32[] constant(1)", "does not combine its two parameters"),
        ("%y = f32[] parameter(1)", "%y = f32[] parameter(1)\n  %z = f32[] parameter(2)", "does not combine its two"),
        (
            "%y = f32[] parameter(1)\n  ROOT %r = f32[] add(%x, %y)",
            "ROOT %r = f32[] add(%x, %x)",
            "does not combine its two parameters",
        ),
        ("add(%x, %y)", "subtract(%x, %y)", "ends in subtract"),
    ],
)
def test_a_reduction_combines_two_parameters(old: str, new: str, complaint: str) -> None:
    """The reduction is a computation of two scalars. Source: interchange §4.1."""
    text = module(f"a = f32[4] all-reduce(q), {ADD}")
    assert old in text
    (one,) = parse_hlo(text.replace(old, new)).collectives
    assert one.refused is not None
    assert complaint in one.refused


def test_a_refused_row_keeps_what_was_read() -> None:
    """A refused instruction still says what it is, where it stands and what it would move."""
    one = only(f"a = f32[5] all-reduce(q), {ADD}")
    assert (one.line, one.name, one.element_type, one.operand_bytes, one.reduction) == (12, "a", "f32", 16, "add")


def test_counts_that_nothing_states_come_from_the_groups() -> None:
    """Compilers' input often states no count, and its groups name all devices all the same."""
    parsed = parse_hlo(
        module(
            f"a = f32[4] all-reduce(q), channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8], {ADD}",
            "b = f32[8] all-gather(q), channel_id=1, use_global_device_ids=true, replica_groups={{0,1}}, "
            "dimensions={0}",
            header="",
        )
    )
    assert (parsed.devices, parsed.num_partitions, parsed.counts_stated) == (8, 8, False)
    assert [one.refused for one in parsed.collectives] == [None, None]


@pytest.mark.parametrize(
    ("lines", "replicas", "partitions", "refused"),
    [
        ([f"a = f32[4] all-reduce(q), replica_groups={{{{0,3}}}}, {ADD}"], 4, 1, None),
        ([f"a = f32[4] all-reduce(q), channel_id=1, replica_groups={{{{0,3}}}}, {ADD}"], 4, 1, None),
        (["a = f32[4] collective-permute(q), channel_id=1, source_target_pairs={{0,5}}"], 1, 6, None),
        ([f"a = f32[4] all-reduce(q), {ADD}"], 1, 1, None),
        ([f"a = f32[4] all-reduce(q), replica_groups={{{{0,1000000}}}}, {ADD}"], 1, 1, "out of range"),
    ],
)
def test_replica_ids_count_replicas_and_partition_ids_partitions(
    lines: list[str], replicas: int, partitions: int, refused: str | None
) -> None:
    """Unstated counts make room for the numbers in the groups, and for nothing absurd."""
    parsed = parse_hlo(module(*lines, header=""))
    assert (parsed.replica_count, parsed.num_partitions, parsed.counts_stated) == (replicas, partitions, False)
    (one,) = parsed.collectives
    assert (one.refused is None) == (refused is None)
    assert refused is None or refused in str(one.refused)


def test_unstated_counts_cover_global_ids_too() -> None:
    """Global ids beyond the replica ids of another instruction are replicas when nothing counts partitions."""
    parsed = parse_hlo(
        module(
            f"a = f32[4] all-reduce(q), replica_groups={{{{0,1}}}}, {ADD}",
            f"b = f32[4] all-reduce(q), channel_id=1, use_global_device_ids=true, replica_groups=[1,8]<=[8], {ADD}",
            header="",
        )
    )
    assert (parsed.replica_count, parsed.num_partitions) == (8, 1)


def test_unstated_counts_are_not_guessed_from_two_kinds_of_numbers() -> None:
    """Replica ids in one instruction and partition ids in another do not say how many devices there are."""
    parsed = parse_hlo(
        module(
            f"a = f32[4] all-reduce(q), replica_groups={{{{0,1}}}}, {ADD}",
            "b = f32[4] collective-permute(q), channel_id=1, source_target_pairs={{0,1}}",
            header="",
        )
    )
    assert parsed.devices == 1
    assert [one.refused is None for one in parsed.collectives] == [False, False]


def test_a_stated_count_is_not_stretched() -> None:
    """A header that states a count is believed, groups that go beyond it are not."""
    one = only(f"a = f32[4] all-reduce(q), replica_groups={{{{0,1}}}}, {ADD}", header="replica_count=1")
    assert one.refused == "number 1 in group 0 is out of range, expected replica ids below 1"


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("replica_count=0", "f: expected a whole number above 0 for replica_count, got '0'"),
        ("num_partitions=many", "f: expected a whole number above 0 for num_partitions, got 'many'"),
        ("replica_count=1000, num_partitions=1001", "f: expected a module for at most 1000000 devices"),
    ],
)
def test_counts_are_numbers_of_devices(header: str, complaint: str) -> None:
    """A module for no device, or for more than a million, is refused as a whole."""
    with pytest.raises(UsageError) as error:
        parse_hlo(module("a = f32[4] negate(q)", header=header), where="f")
    assert complaint in str(error.value)
