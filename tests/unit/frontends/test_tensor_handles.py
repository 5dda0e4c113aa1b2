"""Handles of words as tensors of a program: the same handle is the same buffer, whoever names it. Source: isa §10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.neffs import container, definition, files, variables

from rota.errors import UsageError
from rota.frontends.jobs import FileKind, Options, jobs_of_file
from rota.frontends.tensors import bind_tensors, program_words, tensors_of
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, Chaining, EncOp
from rota.isa.operands import variable
from rota.isa.pairs import Pair, encode_pair
from rota.isa.words import Word, decode_word, encode_word
from rota.machine.platform import load_platform
from rota.pipeline import How, prove
from rota.request import Groups, Job

TRN1 = load_platform("trn1.32xlarge")
FOUR: Groups = ((0, 1, 2, 3),)
MIXED: Groups = ((0, 1, 2, 3), (4, 5))


def word(reads: int, writes: int, *, kind: EncOp = EncOp.ALLREDUCE, elements: int = 16, **more: Any) -> bytes:
    alu = AluOp.ADD if kind in (EncOp.ALLREDUCE, EncOp.REDUCE_SCATTER) else AluOp.BYPASS
    fields: dict[str, Any] = {"alu_op": alu, "dtype": Dtype.FP32, "input_id": reads, "output_id": writes} | more
    return encode_word(Word(kind=kind, num_elements=elements, **fields))


def stream(*records: bytes, groups: Groups = FOUR) -> tuple[Job, ...]:
    found = jobs_of_file(Path("x.bin"), FileKind.STREAM, b"".join(records), TRN1, Options(groups=groups))
    return bind_tensors(found)


def refused(jobs: tuple[Job, ...]) -> list[str | None]:
    return [job.refused for job in jobs]


def test_one_handle_is_one_tensor() -> None:
    """What one word writes the next one reads, and the name says so."""
    jobs = stream(word(7, 8), word(8, 9), word(7, 3))
    assert refused(jobs) == [None] * 3
    assert [job.tensors for job in jobs] == [
        (("tensor.7", "tensor.8"),), (("tensor.8", "tensor.9"),), (("tensor.7", "tensor.3"),),
    ]  # fmt: skip


def test_reading_and_writing_one_tensor_is_in_place() -> None:
    """An all-reduce of a tensor to itself is in place; another word is not."""
    first, second = stream(word(5, 5), word(5, 6))
    assert first.requests[0].in_place
    assert not second.requests[0].in_place
    assert first.tensors == (("tensor.5", "tensor.5"),)


def test_in_place_is_for_the_words_to_say() -> None:
    """The option does not go with a stream."""
    with pytest.raises(UsageError, match="leave --in-place out"):
        jobs_of_file(Path("x.bin"), FileKind.STREAM, word(0, 1), TRN1, Options(in_place=True))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (
            (word(7, 8), word(8, 9, elements=8)),
            "word 2 reads 32 bytes of tensor 8, and word 1 writes 64 bytes; expected the same bytes, or bytes apart",
        ),
        (
            (word(7, 8), word(6, 7, src_offset=0, dst_offset=8)),
            "word 2 writes 64 bytes from byte 32 on of tensor 7, and word 1 reads 64 bytes; expected the same bytes, "
            "or bytes apart",
        ),
        (
            (word(1, 2), word(3, 3, kind=EncOp.ALLGATHER)),
            "it reads 64 bytes of tensor 3 and writes 256 bytes: only an all_reduce is in place, and on the same bytes",
        ),
        (
            (word(1, 2), word(3, 3, dst_offset=1)),
            "it reads 64 bytes of tensor 3 and writes 64 bytes from byte 4 on: only an all_reduce is in place, and on "
            "the same bytes",
        ),
    ],
)
def test_sizes_agree(records: tuple[bytes, bytes], says: str) -> None:
    """A word that takes other bytes of a tensor than an earlier one is refused, with both named."""
    assert refused(stream(*records)) == [None, says]


def test_a_refused_word_takes_no_tensor() -> None:
    """What did not run disagrees with nobody."""
    jobs = stream(word(7, 8), word(8, 9, elements=8), word(9, 9))
    assert [job.refused is None for job in jobs] == [True, False, True]


def test_pieces_that_do_not_touch() -> None:
    """Two parts of one tensor are two buffers."""
    jobs = stream(word(7, 8), word(7, 8, src_offset=16, dst_offset=16), word(8, 9, src_offset=16))
    assert refused(jobs) == [None] * 3
    assert [job.tensors[0] for job in jobs] == [
        ("tensor.7", "tensor.8"), ("tensor.7.1", "tensor.8.1"), ("tensor.8.1", "tensor.9"),
    ]  # fmt: skip


def test_parts_of_a_word_share_its_tensors() -> None:
    """Groups of several sizes are parts of one word; ranks never meet, and a gather has a buffer for each size."""
    (reduce, gather, again) = stream(
        word(1, 2), word(2, 3, kind=EncOp.ALLGATHER), word(2, 3, kind=EncOp.ALLGATHER), groups=MIXED
    )
    assert reduce.tensors == (("tensor.1", "tensor.2"),) * 2
    assert gather.tensors == again.tensors == (("tensor.2", "tensor.3"), ("tensor.2", "tensor.3.1"))
    parts = [prove(reduce.requests[0], TRN1, How(verify=False))] * 2
    assert tensors_of(reduce, 0, parts, number=4) == [("tensor.1", "tensor.2")] * 2
    alone = Job("all_reduce", "fp32", FOUR, requests=reduce.requests)
    assert tensors_of(alone, 0, parts[:1], number=4) == [("t4.in", "t4.out")]


def pair(reads: int, writes: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"src0": variable(reads, num=(1, 16)), "dst": variable(writes, num=(1, 16))} | more
    return encode_pair(Pair(kind=EncOp.ALLREDUCE, alu_op=AluOp.ADD, dtype=Dtype.FP32, **fields))


def test_pairs_name_tensors_too() -> None:
    """A pair whose pattern is the elements of a tensor in order takes it whole, as a word does."""
    jobs = stream(word(7, 8), pair(8, 9), pair(9, 9))
    assert refused(jobs) == [None] * 3
    assert [job.tensors[0] for job in jobs[1:]] == [("tensor.8", "tensor.9"), ("tensor.9", "tensor.9")]
    (job,) = stream(pair(1, 2, src0=variable(1, step=(4, 1), num=(4, 4))))
    assert job.tensors == (("tensor.1", "tensor.2"),)


@pytest.mark.parametrize(
    "pieces",
    [
        pair(1, 2, chaining=Chaining.FIRST) + pair(1, 2, chaining=Chaining.LAST),
        pair(1, 2, src0=variable(1, step=(8, 1), num=(4, 4))),
        pair(1, 2, src0=variable(1, step=(1, 4), num=(4, 4))),
        pair(1, 2, src0=variable(1, step=(0, -1), num=(1, 16))),
    ],
)
def test_pieces_have_tensors_of_their_own(pieces: bytes) -> None:
    """A chain of pairs, a pattern with gaps, in another order or backwards runs alone, and shares nothing written."""
    (job,) = stream(pieces)
    assert (job.refused, job.tensors) == (None, ())
    assert refused(stream(pieces, word(3, 4)))[-1] is None
    *_, last = stream(pieces, word(3, 1))
    assert last.refused is not None
    assert "of tensor 1, and word 1 reads pieces; what is taken in pieces cannot be shared" in last.refused
    read, *_ = stream(word(1, 5), pieces)[::-1]
    assert read.refused is None, "both only read"


def neff(*, sections: int, pe: bytes) -> tuple[Job, ...]:
    members = files(pe=pe, sg=definition(var=variables(a=64, b=64, c=64)))
    if sections > 1:
        index = (
            '{"graphs": [{"definition": "sg00/def.json", "name": "a"}, {"definition": "sg01/def.json", "name": "b"}]}'
        )
        members |= {name.replace("sg00", "sg01"): body for name, body in members.items() if name.startswith("sg00")}
        members["kelf-a.json"] = index.encode()
    return bind_tensors(jobs_of_file(Path("x.neff"), FileKind.NEFF, container(members), TRN1, Options()))


def test_graphs_have_handles_of_their_own() -> None:
    """Handle 1 of one definition is not handle 1 of another; one that is not declared is an error with its name."""
    jobs = neff(sections=2, pe=word(0, 1) + word(1, 2))
    assert [job.tensors[0] for job in jobs] == [
        ("tensor.0", "tensor.1"), ("tensor.1", "tensor.2"),
        ("graph1.tensor.0", "graph1.tensor.1"), ("graph1.tensor.1", "graph1.tensor.2"),
    ]  # fmt: skip
    (job,) = neff(sections=1, pe=word(0, 7))
    assert job.refused == "unknown tensor handle 7: the word writes it, and sg00/def.json declares 0 to 2"


def handles(jobs: tuple[Job, ...]) -> list[tuple[int, int]]:
    parts = [(job, request, names) for job in jobs for request, names in zip(job.requests, job.tensors, strict=True)]
    words = [decode_word(each) for each in program_words(parts)]
    return [(each.input_id, each.output_id) for each in words]


def test_the_words_of_a_program_keep_what_they_share() -> None:
    """Words stay as they are; pairs become words on the same tensors; handles of several graphs are told apart."""
    records = (word(7, 8), word(8, 9, src_offset=32))
    jobs = stream(*records)
    parts = [(job, job.requests[0], job.tensors[0]) for job in jobs]
    assert program_words(parts) == list(records)
    assert handles(stream(word(7, 8), pair(8, 0), pair(0, 2))) == [(7, 8), (8, 0), (0, 1)]
    assert handles(neff(sections=2, pe=word(0, 1) + word(1, 2))) == [(0, 1), (1, 2), (3, 4), (4, 5)]
    alone = Job("all_reduce", "fp32", FOUR, requests=jobs[0].requests)
    made = program_words(
        [(alone, alone.requests[0], ("t0.in", "t0.out")), (alone, alone.requests[0], ("t1.in", "t1.in"))]
    )
    assert [(each.input_id, each.output_id) for each in map(decode_word, made)] == [(0, 1), (2, 2)]
