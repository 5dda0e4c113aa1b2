"""Numbers and sets of the specification outside the instruction set, typed a second time from its pages."""

from __future__ import annotations

from rota.emit import collective
from rota.frontends import hlo, hlo_sites, hlo_text
from rota.isa.enums import EncOp
from rota.machine import layouts, legality
from rota.machine.platform import Family
from rota.select import admission, choose, chunking, hierarchy, rules, settings, subtypes
from rota.simulate import cost


def test_rings_are_nominal_host_rings() -> None:
    """4096 descriptors. Source: sdma §14.6."""
    assert collective.RING_SIZE == 4096


def test_hlo_vocabularies() -> None:
    """Reductions, collective opcodes and types without whole bytes. Source: interchange §4.1, §4.2, §4.5."""
    assert {"add", "multiply", "minimum", "maximum", "and", "or", "xor"} == hlo.REDUCTIONS
    named = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"}
    assert named | {"ragged-all-to-all"} <= set(hlo_sites.OPCODES)
    assert {"s2", "s4", "u2", "u4", "f4e2m1fn"} <= hlo_text.SUB_BYTE_TYPES
    assert "token" in hlo_text.NOT_DATA_TYPES


def test_selection_sets() -> None:
    """Ranks and chips that recursive doubling takes; the depth of a channel. Source: select §5.1, §8."""
    assert [chips * admission.RDH_PER_CHIP[2] for chips in admission.RDH_CHIPS] == [4, 8, 16, 64]
    assert admission.RDH_CHIPS == (1, 2, 4, 16)
    assert admission.RDH_PER_CHIP == {1: 8, 2: 4}
    assert (settings.SLOTS, settings.MOST_SLOTS) == (8, 32)
    assert settings.LEAST_SLOTS == 3


def test_gates() -> None:
    """The numbers of the admission gates. Source: select §4, §7.2; compose §1.1; topology §5."""
    assert {2, 4, 8, 16, 32, 64, 128} == legality.MESH_RANKS
    assert layouts.RACK_KEYS == (4, 8, 16, 32, 64, 128, 256)
    assert (layouts.RACK_CHIPS, legality.NETWORK_MESH_NODES, settings.INTER_MESH_MAX_NODES) == (32, 16, 16)
    assert {Family.TRN1, Family.TRN1N, Family.INF2E} == admission.FULL_MESH_FAMILIES
    assert (admission.INF2_RANKS, admission.INF2_GROUP, admission.INTER_RDH_LEAST) == ((2, 4, 8), 6, 8)
    assert (admission.KANGARING_LEAST_RANKS, admission.KANGARING_LEAST_PER_CHIP) == ({1: 9, 2: 5}, 4)
    assert admission.KANGARING_MOST_RANKS == 256
    assert (choose.HYBRID_RANKS, subtypes.MAX_SUBTYPES, subtypes.POD, hierarchy.STAGES) == (16, 20, 4, 3)
    assert {EncOp.ALLTOALL, EncOp.ALLTOALL_V} == rules.MESH_ONLY


def test_limits() -> None:
    """The numbers of the limit tables and buffers. Source: select §3.1, §6.2, §7.3 to §7.5; switch_schedule §5.2."""
    kib, mib = 1 << 10, 1 << 20
    assert (subtypes.TWO_RANK_LIMIT, subtypes.SINGLE_STEP_LIMIT) == (0x10000000, 0x8000)
    assert (mib, 32) == (subtypes.DIRECT_LIMIT, subtypes.GRANULE)
    assert (256 * kib, mib) == (subtypes.FIRST_PASS_LIMIT, subtypes.SECOND_PASS_LIMIT)
    assert (56 * mib, 4, 4 * mib) == (subtypes.RDH_LIMIT, subtypes.POD_SHARE, subtypes.CAP)
    assert subtypes.SINGLE_STEP_RANKS == 64
    assert (8 * mib, 32 * mib) == (settings.CHANNEL_BUFFER, settings.INTER_RDH_BUFFER)
    assert (40 * mib, 80 * mib) == (settings.INTRA_RDH_BUFFER, settings.INTRA_RDH_BUFFER_MARIANA)
    assert {"sunda": 32 * mib, "cayman": 128 * mib, "mariana": 128 * mib} == chunking.SCRATCH
    assert hierarchy.MOST_SLICES == 8


def test_rules_of_one_node_say_no_to_what_needs_several() -> None:
    """HIER, single-cycle and inter-node rules refuse on one node whatever is asked. Source: select §4."""
    order = [rule for _, rule in rules.CASCADE]
    assert order == [
        rules.can_hier, rules.can_intra_rdh, rules.can_mesh, rules.can_kangaring, rules.can_single_cycle_ring,
        rules.can_inter_rdh, rules.can_ring,
    ]  # fmt: skip


def test_reductions_move_at_half_of_the_copy_rate() -> None:
    """Before NeuronCore-v4. Source: platforms §2."""
    assert cost.CCE_SLOWDOWN == 2
