"""NEFFs as jobs: each word with its group list, its tensors, or the reason why it cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.neffs import RECORD, container, definition, files, variables, wrap

from rota.errors import DecodeError, UsageError
from rota.frontends.jobs import FileKind, Options, jobs_of_file, kind_of
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, CceType, Chaining, EncOp
from rota.isa.operands import Pattern2D, variable
from rota.isa.pairs import Pair, encode_pair
from rota.isa.transfers import SendRecv, encode_send_recv
from rota.isa.words import Word, encode_word
from rota.machine.platform import load_platform
from rota.request import Groups, Job

PATH = Path("x.neff")
TRN1 = load_platform("trn1.32xlarge")
ALL: Groups = (tuple(range(32)),)


def jobs(data: bytes, *, platform: str = "trn1.32xlarge", options: Options | None = None) -> tuple[Job, ...]:
    return jobs_of_file(PATH, FileKind.NEFF, data, load_platform(platform), options or Options())


def word(kind: EncOp = EncOp.ALLREDUCE, *, group: int = 0, elements: int = 8, **more: Any) -> bytes:
    values = {"alu_op": AluOp.ADD, "dtype": Dtype.FP32, "input_id": 0, "output_id": 1, **more}
    return encode_word(Word(kind=kind, group_id=group, num_elements=elements, **values))


def neff(pe: bytes, **changes: Any) -> bytes:
    changes = {"var": variables(a=1024, b=1024)} | changes
    return container(files(pe=pe, sg=definition(**changes)))


def refused(data: bytes) -> str:
    (job,) = jobs(data)
    assert job.refused is not None
    assert not job.requests
    return job.refused


def test_the_kind_is_told_by_content() -> None:
    """A NEFF is one whatever its name, and whatever its version."""
    assert kind_of(container(), "x") is FileKind.NEFF
    assert kind_of(wrap(b"", pkg=7), "x") is FileKind.NEFF
    assert kind_of(RECORD, "x") is FileKind.STREAM


def test_the_shipped_shape() -> None:
    """The fixture is one all-reduce of 32 fp32 elements over every rank, gradient_in to gradient_out."""
    (job,) = jobs(container())
    assert (job.kind, job.dtype, job.file, job.line) == ("all_reduce", "fp32", "x.neff:sg00/pe.bin", 1)
    assert (job.groups, job.word, job.notes) == (ALL, RECORD, ("tensors gradient_in -> gradient_out",))
    (request,) = job.requests
    assert (request.kind, request.op, request.count, request.groups) == (EncOp.ALLREDUCE, CceType.ADD, 32, ALL)


def test_every_word_of_every_engine() -> None:
    """Streams follow each other in the loader's order; the line is the record's number in its own stream."""
    members = files(pe=word(), sg=definition(var=variables(a=1024, b=1024)))
    members["sg00/sp.bin"] = bytes.fromhex("a010") + bytes(62) + word(EncOp.ALLGATHER)
    members["sg00/act.bin"] = word(EncOp.REDUCE_SCATTER)
    found = [(job.kind, job.file, job.line) for job in jobs(container(members))]
    assert found == [
        ("all_reduce", "x.neff:sg00/pe.bin", 1),
        ("reduce_scatter", "x.neff:sg00/act.bin", 1),
        ("all_gather", "x.neff:sg00/sp.bin", 2),
    ]


def test_the_group_id_picks_the_list() -> None:
    """`replica_groups[group_id]`; an empty list, or no lists, are all ranks."""
    lists = [[[0, 1], [2, 3]], [], [[0, 1, 2, 3], [4, 5]]]
    words = word(group=0) + word(group=1) + word(group=2)
    assert [job.groups for job in jobs(neff(words, replica_groups=lists))] == [
        ((0, 1), (2, 3)), ALL, ((0, 1, 2, 3), (4, 5)),
    ]  # fmt: skip
    assert [len(job.requests) for job in jobs(neff(words, replica_groups=lists))] == [1, 1, 2]
    (job,) = jobs(neff(word(), replica_groups=[]))
    assert job.groups == ALL


@pytest.mark.parametrize("count", [1, 3])
def test_a_group_id_out_of_range(count: int) -> None:
    """A group id that no list has is refused, in the runtime's words."""
    assert refused(neff(word(group=3), replica_groups=[[]] * count)) == f"Invalid group id: 3, group_n: {count}"


def test_a_rank_out_of_range() -> None:
    """A rank the machine does not have is named."""
    assert "rank 32 in its groups: trn1.32xlarge has ranks 0 to 31" in refused(neff(word(), replica_groups=[[[0, 32]]]))


def test_more_than_one_stream() -> None:
    """0xC8 takes single streams only. Source: isa §9."""
    assert "2 streams are set up" in refused(neff(word(), num_streams=2))
    assert jobs(neff(word(), num_streams=1))[0].refused is None


@pytest.mark.parametrize(
    ("kind", "needs"),
    [(EncOp.ALLREDUCE, (32, 32)), (EncOp.ALLGATHER, (32, 128)), (EncOp.REDUCE_SCATTER, (128, 32))],
)
def test_elements_fit_the_tensors(kind: EncOp, needs: tuple[int, int]) -> None:
    """What a word reads and writes lies inside its tensors: a byte less and it is refused, with both numbers."""
    reads, writes = needs
    groups = [[[0, 1, 2, 3]]]
    fits = neff(word(kind), replica_groups=groups, var=variables(a=reads, b=writes))
    assert jobs(fits)[0].refused is None
    small = refused(neff(word(kind), replica_groups=groups, var=variables(a=reads - 1, b=writes)))
    assert f"it reads {reads} bytes of a, and sg00/def.json gives it {reads - 1} bytes" in small
    small = refused(neff(word(kind), replica_groups=groups, var=variables(a=reads, b=writes - 1)))
    assert f"it writes {writes} bytes of b, and sg00/def.json gives it {writes - 1} bytes" in small


def test_offsets_count() -> None:
    """The first element of source and destination count from the beginning of the tensor."""
    data = neff(word(src_offset=3, dst_offset=5), var=variables(a=44, b=52))
    assert jobs(data)[0].refused is None
    assert "it writes 56 bytes of b" in refused(neff(word(dst_offset=6), var=variables(a=44, b=52)))


def test_unknown_tensors_and_sizes() -> None:
    """A tensor no definition has is refused; one without a size is noted."""
    says = "unknown tensor handle 2: the word writes it, and sg00/def.json declares 0 to 1"
    assert refused(neff(word(output_id=2))) == says
    tensors = variables(a=32, b=32)
    del tensors["b"]["size"]
    (job,) = jobs(neff(word(), var=tensors))
    assert job.notes == (
        "tensors a -> b",
        "whether b is large enough is not known: it writes 32 bytes of a number of bytes that is not stated",
    )


def pair(kind: EncOp = EncOp.ALLREDUCE, *, reads: int = 8, writes: int = 8, **more: Any) -> bytes:
    values = {
        "alu_op": AluOp.ADD, "dtype": Dtype.FP32, "src0": variable(0, num=(1, reads)),
        "dst": variable(1, num=(1, writes)), **more,
    }  # fmt: skip
    return encode_pair(Pair(kind=kind, **values))


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "count"),
    [(EncOp.ALLREDUCE, 8, 8, 8), (EncOp.ALLGATHER, 8, 32, 32), (EncOp.REDUCE_SCATTER, 32, 8, 32)],
)
def test_a_pair_says_what_it_reads_and_writes(kind: EncOp, reads: int, writes: int, count: int) -> None:
    """0xD9 with 0xDA is one job; its patterns are those of its kind over the ranks of its group, or it is refused."""
    groups = [[], [[0, 1, 2, 3]]]
    data = word() + pair(kind, reads=reads, writes=writes, group_id=1) + word()
    found = jobs(neff(data, replica_groups=groups))
    assert [job.line for job in found] == [1, 2, 4]
    assert found[1].groups == ((0, 1, 2, 3),)
    assert found[1].notes == ("tensors a -> b",)
    (request,) = found[1].requests
    assert (request.kind, request.count, request.ranks) == (kind, count, 4)
    data = pair(kind, reads=reads, writes=writes + 1, group_id=1)
    assert f"over 4 ranks reads {reads} elements and writes {writes + 1}, expected {writes} written" in refused(
        neff(data, replica_groups=groups)
    )


def test_a_chain_is_one_job() -> None:
    """The elements of a chain are the sum over its members; one without an end refuses the pairs of its stream."""
    head, tail = pair(chaining=Chaining.FIRST), pair(chaining=Chaining.LAST, reads=5, writes=5)
    (job,) = jobs(neff(head + tail))
    assert (job.line, job.requests[0].count, job.notes) == (1, 13, ("tensors a, a -> b, b",))
    found = jobs(neff(head + word()))
    assert ["expected a LAST" in (job.refused or "") for job in found] == [True, False]


def test_a_pair_stays_inside_its_tensors() -> None:
    """The last element of a pattern counts, steps included; what walks backwards is noted."""
    wide = pair(src0=variable(0, step=(16, 1), num=(2, 4)))
    assert jobs(neff(wide, var=variables(a=80, b=32)))[0].refused is None
    assert "it reads 80 bytes of a" in refused(neff(wide, var=variables(a=79, b=32)))
    (job,) = jobs(neff(pair(src0=variable(0, step=(0, -1), num=(1, 8)))))
    assert "whether a is large enough is not known" in job.notes[1]


def test_pairs_on_chip_and_with_a_second_source() -> None:
    """Operands in SBUF are noted; what a second source is for is not known, and it is refused."""
    (job,) = jobs(neff(pair(src0=Pattern2D(0x100, (0, 1), (1, 8)), dst=Pattern2D(0x900, (0, 1), (1, 8)))))
    assert job.notes == ("its operands lie in SBUF; it is run on buffers in memory",)
    assert "a second source" in refused(neff(pair(src1=variable(0, num=(1, 8)))))
    assert refused(neff(pair(group_id=1))) == "Invalid group id: 1, group_n: 1"


def test_sends_are_refused_by_name() -> None:
    """What moves data between ranks and is no collective of a group is not passed over in silence."""
    send = encode_send_recv(SendRecv(kind=EncOp.SEND, tensor_id=0, peer_id=1, size_bytes=8))
    found = jobs(neff(send + word()))
    assert [(job.kind, job.line, job.refused is None) for job in found] == [("send", 1, False), ("all_reduce", 2, True)]


def test_what_the_trigger_stage_refuses() -> None:
    """Refusals of a word are those of a bare stream."""
    assert "no elements" in refused(neff(word(elements=0)))


@pytest.mark.parametrize(
    ("target", "platform", "fits"),
    [("", "trn1.32xlarge", True), ("v2", "trn1.32xlarge", True), ("v3", "trn2.48xlarge", True),
     ("*", "trn1.32xlarge", True), ("*", "trn2.48xlarge", True), ("", "trn2.48xlarge", False),
     ("cayman", "trn1.32xlarge", False), ("v4", "trn2.48xlarge", False)],
)  # fmt: skip
def test_the_target_is_the_machine(target: str, platform: str, *, fits: bool) -> None:
    """A container for another architecture is refused whole, and both are named; `*` fits any. Source: isa §11.3."""
    data = container(files(target=target))
    if fits:
        assert jobs(data, platform=platform)[0].refused is None
        return
    arch = load_platform(platform).arch
    with pytest.raises(UsageError, match=rf"compiled for \w+ \(target '{target}'\), and {platform} is {arch}"):
        jobs(data, platform=platform)


def test_groups_of_the_command_line() -> None:
    """A NEFF names its own groups."""
    with pytest.raises(UsageError, match="names its own groups"):
        jobs(container(), options=Options(groups=((0, 1),)))


def test_no_collective() -> None:
    """A NEFF that only computes is no work for rota."""
    with pytest.raises(UsageError, match="holds no collective"):
        jobs(container(files(pe=b"")))


def test_a_damaged_stream() -> None:
    """A stream that cannot be read refuses the file, and names the member."""
    with pytest.raises(DecodeError, match=r"x\.neff: sg00/pe\.bin: "):
        jobs(container(files(pe=RECORD[:-1])))
