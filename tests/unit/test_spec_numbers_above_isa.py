"""Numbers and sets of the specification outside the instruction set, typed a second time from its pages."""

from __future__ import annotations

from rota.emit import rings
from rota.frontends import hlo, hlo_sites, hlo_text
from rota.select import rules, settings
from rota.simulate import cost


def test_rings_are_nominal_host_rings() -> None:
    """4096 descriptors. Source: sdma §14.6."""
    assert rings.RING_SIZE == 4096


def test_hlo_vocabularies() -> None:
    """Reductions, collective opcodes and types without whole bytes. Source: interchange §4.1, §4.2, §4.5."""
    assert {"add", "multiply", "minimum", "maximum", "and", "or", "xor"} == hlo.REDUCTIONS
    named = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"}
    assert named | {"ragged-all-to-all"} <= set(hlo_sites.OPCODES)
    assert {"s2", "s4", "u2", "u4", "f4e2m1fn"} <= hlo_text.SUB_BYTE_TYPES
    assert "token" in hlo_text.NOT_DATA_TYPES


def test_selection_sets() -> None:
    """Ranks and chips that recursive doubling takes; the depth of a channel. Source: select §5.1, §8."""
    assert {4, 8, 16, 64} == rules.RDH_RANKS
    assert {1, 2, 4, 16} == rules.RDH_CHIPS
    assert (settings.SLOTS, settings.MOST_SLOTS) == (8, 32)
    assert settings.LEAST_SLOTS == 3


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
