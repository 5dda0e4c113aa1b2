"""verify/data for every kind of collective: a small right schedule of each, and what is said of mistakes in it.

Kinds that `test_data` has already are not repeated. One byte is one element.
"""

from __future__ import annotations

from typing import Any

import pytest

from rota.isa.dtypes import Dtype
from rota.isa.enums import REDUCING, CceType, EncOp
from rota.request import Request, along
from rota.schedule.text import parse
from rota.verify import find_data

PAIR, THREE = ((0, 1),), ((0, 1, 2),)


def ask(kind: EncOp, count: int = 4, groups: Any = PAIR, **other: Any) -> Request:
    op = CceType.ADD if kind in REDUCING else None
    return Request(kind, Dtype.FP8_EXP5, count, groups, **{"op": op, **other})


def found(request: Request, *rows: str) -> list[str]:
    """Return the findings for rows like `0 in+0 + 1 in+0 > 0 out+0 8 add`: without names, by the rank that writes."""
    head = ["schedule 1", f"ranks {len(request.members)}", f"buffer in {request.input_size} user"]
    head += [] if request.in_place else [f"buffer out {request.output_size} user"]
    head += ["buffer slot 1024", "input in", f"output {'in' if request.in_place else 'out'}"]
    for step, row in enumerate(rows):
        left, right = row.split(" > ")
        places = [" + ".join(part.replace(" ", ".", 1) for part in left.split(" + ")), right.replace(" ", ".", 1)]
        head.append(f"{right[0]}.0 0.{step} direct_copy : {places[0]} -> {places[1]}")
    return find_data(parse("\n".join(head) + "\n"), request)


def only(findings: list[str]) -> str:
    assert len(findings) == 1, findings
    return findings[0]


# --- moves ------------------------------------------------------------------------------------------------------------

A2A = ["0 in+0 > 0 out+0 2", "1 in+0 > 0 out+2 2", "0 in+2 > 1 out+0 2", "1 in+2 > 1 out+2 2"]


def test_an_all_to_all_puts_shard_i_of_every_input_at_member_i() -> None:
    """out[i] = in_i[r]. Source: compose §5, high."""
    request = ask(EncOp.ALLTOALL)
    assert found(request, *A2A) == []
    assert "rank 1 out+2 (2 bytes) comes from offset 0, not offset 2" in only(
        found(request, *A2A[:3], A2A[3].replace("1 in+2", "1 in+0"))
    )
    assert "rank 1 out+0 (2 bytes) lost rank 0's contribution at offset 2" in only(
        found(request, *A2A[:2], A2A[2].replace("0 in", "1 in"), A2A[3])
    )


COUNTS = ((0, 3), (2, 1))
EXCHANGE = ["1 in+0 > 0 out+0 2", "0 in+0 > 1 out+0 3", "1 in+2 > 1 out+3 1"]


def test_an_all_to_all_v_packs_its_pieces() -> None:
    """As all-to-all with counts of each pair; what the fullest member has room for and this one does not get stays."""
    request = ask(EncOp.ALLTOALL_V, 3, counts=COUNTS)
    assert (request.input_size, request.output_size) == (3, 4)
    assert found(request, *EXCHANGE) == []
    assert only(found(request, *EXCHANGE, "0 in+0 > 0 out+2 1")).startswith(
        "rank 0 out+2 (1 byte) is written where nothing is asked: written last by row 3 (rank 0"
    )
    assert only(found(request, *EXCHANGE[1:])).startswith(
        "rank 0 out+0 (2 bytes) is never written; the rank has no row"
    )
    assert "rank 1 out+3 (1 byte) comes from offset 0, not offset 2" in only(
        found(request, *EXCHANGE[:2], "1 in+0 > 1 out+3 1")
    )


def test_an_all_to_all_v_with_displacements() -> None:
    """Pieces leave and land where the request says."""
    apart = {"send_displacements": ((9, 2), (0, 4)), "receive_displacements": ((9, 1), (5, 3))}
    request = ask(EncOp.ALLTOALL_V, 5, counts=COUNTS, **apart)
    assert (request.input_size, request.output_size) == (5, 8)
    right = ["1 in+0 > 0 out+1 2", "0 in+2 > 1 out+5 3", "1 in+4 > 1 out+3 1"]
    assert found(request, *right) == []
    assert "rank 1 out+3 (1 byte) comes from offset 3, not offset 4" in only(
        found(request, *right[:2], "1 in+3 > 1 out+3 1")
    )
    assert "rank 1 out+6 (2 bytes) comes from" not in only(found(request, right[0], right[2], "0 in+2 > 1 out+5 2"))


def test_without_counts_an_all_to_all_v_is_as_even_as_it_goes() -> None:
    """A remainder goes to the member itself and those behind it: 5 over 2 is 3 and 2 of each."""
    request = ask(EncOp.ALLTOALL_V, 5)
    right = ["0 in+0 > 0 out+0 3", "1 in+0 > 0 out+3 2", "0 in+3 > 1 out+0 2", "1 in+2 > 1 out+2 3"]
    assert found(request, *right) == []


def test_a_gather_of_unequal_shards() -> None:
    """Each member gives its first gather_counts[k] elements, packed in order."""
    request = ask(EncOp.ALLGATHER, 4, gather_counts=(1, 3))
    right = [f"{source} in+0 > {rank} out+{source} {1 + 2 * source}" for rank in (0, 1) for source in (0, 1)]
    assert found(request, *right) == []
    late = right[3].replace("in+0", "in+1").replace("out+1 3", "out+1 2")
    assert "rank 1 out+1 (2 bytes) comes from offset 1, not offset 0" in found(request, *right[:3], late)[0]


def test_bytes_that_run_on_into_the_next_piece_are_found_where_no_move_ends() -> None:
    """A copy that is right at its beginning and goes on where another member's piece begins is wrong."""
    request = ask(EncOp.ALLGATHER, 300, gather_counts=(101, 199))
    rows = [f"{s} in+{at} > {r} out+{to} {n}" for r in (0, 1) for s, at, to, n in ((0, 0, 0, 199), (1, 98, 199, 101))]
    assert only(found(request, *rows)).startswith(
        "rank 0 out+98 (101 bytes, and on 1 other rank) goes on in offset 98 beyond output offset 101, where another "
        "place begins: written last by row 0 (rank 0"
    )


def test_bytes_that_run_on_into_a_gap() -> None:
    """A copy that goes on behind the end of its piece writes where nothing is asked, though no move ends there."""
    apart = {"send_displacements": ((0, 0), (98, 0)), "receive_displacements": ((0, 250), (0, 0))}
    request = ask(EncOp.ALLTOALL_V, 199, counts=((101, 0), (101, 0)), **apart)
    right = ["0 in+0 > 0 out+0 101", "1 in+98 > 0 out+250 101"]
    assert found(request, *right) == []
    assert only(found(request, right[0].replace("101", "199"), right[1])).startswith(
        "rank 0 out+98 (101 bytes) goes on in offset 98 beyond output offset 101"
    )


def test_a_piece_behind_a_gap_that_nobody_writes() -> None:
    """That nothing is asked at the beginning of an output says nothing of what follows."""
    request = ask(EncOp.ALLTOALL_V, 3, counts=((0, 3), (0, 0)), receive_displacements=((0, 0), (2, 0)))
    assert only(found(request)).startswith("rank 1 out+0 (5 bytes) is never written")


@pytest.mark.parametrize("kind", [EncOp.SEND, EncOp.RECV])
def test_member_0_sends_to_member_1(kind: EncOp) -> None:
    """Send and receive are one movement; the outputs of the sender and of further members stay. One rank copies."""
    request = ask(kind)
    assert found(request, "0 in+0 > 1 out+0 4") == []
    back = only(found(request, "1 in+0 > 0 out+0 4"))
    assert back.startswith("rank 0 out+0 (4 bytes, and on 1 other rank) is written where nothing is asked")
    assert found(ask(kind, groups=((3,),)), "0 in+0 > 0 out+0 4") == []
    assert found(ask(kind, groups=THREE), "0 in+0 > 1 out+0 4") == []


def test_a_permute_goes_by_its_pairs() -> None:
    """out at target(r) = in_r; ranks without a source keep their outputs. Source: compose §5, high."""
    request = ask(EncOp.PERMUTE, groups=((4, 9, 7),), pairs=((7, 4), (4, 7)))
    right = ["2 in+0 > 0 out+0 4", "0 in+0 > 2 out+0 4"]
    assert found(request, *right) == []
    assert only(found(request, *right, "0 in+0 > 1 out+0 4")).startswith("rank 1 out+0 (4 bytes) is written where")
    assert "rank 0 out+0 (4 bytes) lost rank 2's contribution" in only(found(request, "1 in+0 > 0 out+0 4", right[1]))
    halves = ["2 in+0 > 0 out+0 2", "2 in+2 > 0 out+2 2", right[1]]
    assert only(found(request, *halves, "0 in+0 > 1 out+0 4")).startswith("rank 1 out+0 (4 bytes) is written where")


def test_an_implicit_permute_shifts_along_its_ring() -> None:
    """Target = next of the ring: the ring that the pairs name, the group order without them. Source: compose §9."""
    request = ask(EncOp.PERMUTE_IMPLICIT, groups=((4, 9, 7),))
    shift = [f"{(rank - 1) % 3} in+0 > {rank} out+0 4" for rank in range(3)]
    back = [f"{(rank + 1) % 3} in+0 > {rank} out+0 4" for rank in range(3)]
    assert found(request, *shift) == []
    assert "rank 0 out+0 (4 bytes, and on 2 other ranks) lost rank 2's contribution" in only(found(request, *back))
    other = along(request, ((4, 7, 9),))
    assert found(other, *back) == []
    assert "rank 0 out+0 (4 bytes, and on 2 other ranks) lost rank 1's contribution" in only(found(other, *shift))


def test_a_broadcast_reaches_every_output() -> None:
    """The root's input is on every member, the root included. Source: convention."""
    request = ask(EncOp.BROADCAST, groups=((0, 1), (2, 3)), root=1)
    right = ["1 in+0 > 0 out+0 4", "1 in+0 > 1 out+0 4", "3 in+0 > 2 out+0 4", "3 in+0 > 3 out+0 4"]
    assert found(request, *right) == []
    assert only(found(request, right[0], *right[2:])).startswith("rank 1 out+0 (4 bytes) is never written")
    crossed = found(request, *right[:3], "1 in+0 > 3 out+0 4")
    assert "rank 3 out+0 (4 bytes) comes from offset 0 of group 0, not offset 0 of group 1" in only(crossed)


# --- reductions -------------------------------------------------------------------------------------------------------


def test_a_reduce_ends_at_the_root() -> None:
    """All inputs combined at the root; the other outputs stay. Source: convention."""
    request = ask(EncOp.REDUCE, root=1)
    right = "0 in+0 + 1 in+0 > 1 out+0 4 add"
    assert found(request, right) == []
    assert "rank 0 out+0 (4 bytes) is written where nothing is asked" in only(
        found(request, right, "1 out+0 > 0 out+0 4")
    )
    assert "lost rank 0's contribution at offset 0" in only(found(request, "1 in+0 > 1 out+0 4"))


TWO = ["0 in+0 + 0 in+4 > 1 out+0 4 add", "1 in+0 + 1 in+4 > 0 out+0 4 add"]


def test_a_permute_that_reduces_combines_both_operands_of_its_source() -> None:
    """out at next(r) = input_r combined with input1_r, which lies behind input. Source: compose §5, medium."""
    request = ask(EncOp.PERMUTE_REDUCE_IMPLICIT)
    assert request.input_size == 8
    assert found(request, *TWO) == []
    assert found(ask(EncOp.PERMUTE_REDUCE, pairs=((0, 1), (1, 0))), *TWO) == []
    assert only(found(request, TWO[0], "1 in+0 > 0 out+0 4")).startswith(
        "rank 0 out+0 (4 bytes) lost rank 1's input1 at offset 0: "
    )
    twice, lost = found(request, TWO[0], "1 in+0 + 1 in+0 > 0 out+0 4 add")
    assert "has rank 1's input at offset 0 doubled: it reads rank 1 in+0 and rank 1 in+0" in twice
    assert "lost rank 1's input1 at offset 0" in lost
    shifted = found(request, TWO[0], "1 in+0 + 1 in+3 > 0 out+0 4 add")
    assert "combines a wrong chunk" in shifted[0]
    third = found(request, TWO[0], "1 in+0 + 1 in+4 + 0 in+0 > 0 out+0 4 add")
    assert "has rank 0's input too much" in only(third)


# --- fma --------------------------------------------------------------------------------------------------------------


def fma(kind: EncOp = EncOp.ALLREDUCE, *, in_place: bool = False) -> Request:
    return ask(kind, op=CceType.FMA, scales=(0.5, 2.0), in_place=in_place)


FULL = [f"0 in+0 + 1 in+0 > {rank} out+0 4 fma" for rank in (0, 1)]


def test_an_fma_scales_every_contribution_once() -> None:
    """out = sum of scale[r] x input[r]: read directly, or scaled on the way to a slot and then added.

    Source: design §2 (27).
    """
    assert found(fma(), *FULL) == []
    way = [f"{rank} in+0 > 0 slot+{4 * rank} 4 fma" for rank in (0, 1)]
    for op in ("fma", "add"):  # of partials both are the same
        assert found(fma(), *way, f"0 slot+0 + 0 slot+4 > 0 out+0 4 {op}", "0 out+0 > 1 out+0 4") == []
    shard = [f"0 in+{2 * rank} + 1 in+{2 * rank} > {rank} out+0 2 fma" for rank in (0, 1)]
    assert found(fma(EncOp.REDUCE_SCATTER), *shard) == []


def test_a_contribution_that_stays_unscaled() -> None:
    """A copy does not scale, nor does a sum, and what has left the input is not scaled any more."""
    for op in ("", " add"):
        rows = [f"1 in+0 > 0 slot+0 4{op}", "0 slot+0 + 0 in+0 > 0 out+0 4 fma"]
        assert only(found(fma(), *rows, FULL[1])).startswith(
            "rank 0 out+0 (4 bytes) has rank 1's contribution unscaled at offset 0: written last by row 1 (rank 0"
        )
    assert "has the contributions of ranks 0, 1 unscaled" in only(found(fma(), FULL[0].replace("fma", "add"), FULL[1]))


def test_scaled_and_unscaled_together() -> None:
    """A contribution that is in a sum scaled, and once more unscaled, is one too many."""
    rows = ["1 in+0 > 0 slot+0 4", "0 in+0 + 1 in+0 + 0 slot+0 > 0 out+0 4 fma", FULL[1]]
    assert "has rank 1's contribution unscaled" in only(found(fma(), *rows))
    rows[0] += " fma"
    assert "has rank 1's contribution at offset 0 doubled" in only(found(fma(), *rows))


def test_in_place_a_finished_result_is_not_scaled_again() -> None:
    """What a row wrote to an input must not be read by a row that scales; a plain copy may read it."""
    sums = "0 in+0 + 1 in+0 > 0 in+0 4 fma"
    assert found(fma(in_place=True), sums, "0 in+0 > 1 in+0 4") == []
    again = only(found(fma(in_place=True), sums, "0 in+0 > 1 in+0 4 fma"))
    assert again.startswith("row 1 (rank 1")
    assert again.endswith("scales rank 0 in+0, which an earlier row writes; only an own input is, once")
    assert "is never written" in only(
        found(ask(EncOp.ALLREDUCE, groups=((0,),), op=CceType.FMA, scales=(2.0,), in_place=True))
    )


def test_what_follows_from_scaling_again_is_not_found_again() -> None:
    """A raw input that was copied over another's input, and is scaled there with the wrong scale, is one finding."""
    rows = ["0 in+0 > 1 in+0 4", "1 in+0 > 0 in+0 4 fma", "0 in+0 > 1 in+0 4"]
    assert "scales rank 1 in+0, which an earlier row writes" in only(found(fma(in_place=True), *rows))


def test_the_row_that_leaves_out_a_scaled_contribution_is_named() -> None:
    """A row of rank 1 that goes on without its own input is where that was lost."""
    rows = ["0 in+0 > 1 slot+0 4 fma", "1 slot+0 > 0 slot+0 4", "0 slot+0 > 0 out+0 4", FULL[1]]
    finding = only(found(fma(), *rows))
    assert "lost rank 1's contribution at offset 0: first left out by row 0 (rank 1" in finding


def test_another_operation_than_fma() -> None:
    """A sum is no fma where it is not asked, and a maximum is none where it is."""
    assert only(found(ask(EncOp.ALLREDUCE), FULL[0], FULL[1].replace("fma", "add"))).endswith(
        "has the wrong operation FMA, expected ADD"
    )
    assert found(fma(), FULL[0].replace("fma", "max"), FULL[1])[0].endswith("wrong operation MAX, expected FMA")


def test_more_contributors_than_a_word_has_bits() -> None:
    """Scaled and unscaled inputs of 40 ranks need 80 bits."""
    request = ask(EncOp.ALLREDUCE, 1, (tuple(range(40)),), op=CceType.FMA, scales=(3.0,))
    chain = [" + ".join(f"{rank} in+0" for rank in range(20)) + " > 0 slot+0 1 fma"]
    chain += [" + ".join(["0 slot+0", *(f"{rank} in+0" for rank in range(20, 40))]) + " > 0 slot+1 1 fma"]
    assert found(request, *chain, *(f"0 slot+1 > {rank} out+0 1" for rank in range(10)))[0].startswith("rank 10 out+0")
    raw = [chain[0], "39 in+0 > 0 slot+2 1", chain[1].replace("39 in+0", "0 slot+2"), "0 slot+1 > 0 out+0 1"]
    assert "has rank 39's contribution unscaled" in found(request, *raw)[0]
