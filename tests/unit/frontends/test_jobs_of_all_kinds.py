"""Every kind of collective becomes a job with requests; whether it can be composed is for later stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.neffs import container, definition, files, variables

from rota.frontends.jobs import FileKind, Options, jobs_of_file
from rota.frontends.options import by_size
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, CceType, EncOp
from rota.isa.words import Word, encode_word
from rota.machine.platform import load_platform
from rota.request import Job, Staging

PATH = Path("x")
TRN2 = load_platform("trn2.48xlarge")
HEADER = """\
HloModule kinds, {counts}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %r = f32[] add(%x, %y)
}}

ENTRY %main (p: f32[64]) -> f32[64] {{
  %p = f32[64]{{0}} parameter(0)
  ROOT %c = f32[64]{{0}} {line}
}}
"""


def hlo(line: str, *, counts: str = "num_partitions=8", options: Options | None = None) -> Job:
    data = HEADER.format(counts=counts, line=line).encode()
    (job,) = jobs_of_file(PATH, FileKind.HLO, data, TRN2, options or Options())
    return job


@pytest.mark.parametrize(
    ("line", "kind", "count"),
    [
        ("all-to-all(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", EncOp.ALLTOALL, 64),
        ("collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3}}", EncOp.BROADCAST, 64),
        (
            "collective-reduce(%p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add",
            EncOp.REDUCE,
            64,
        ),
    ],
)
def test_kinds_of_groups(line: str, kind: EncOp, count: int) -> None:
    """All kinds of HLO are requests of their own kind, with the elements of one device."""
    job = hlo(line)
    assert job.refused is None
    (request,) = job.requests
    assert (request.kind, request.count, request.dtype) == (kind, count, Dtype.FP32)
    assert request.groups == job.groups


def test_a_permute_goes_by_rings() -> None:
    """Each ring of the pairs is a group; rings of several lengths are several requests, the longest first."""
    job = hlo("collective-permute(%p), channel_id=1, source_target_pairs={{4,5},{5,4},{0,1},{1,2},{2,0},{6,6}}")
    assert job.kind == "permute"
    assert [(request.groups, len(request.pairs)) for request in job.requests] == [
        (((0, 1, 2),), 3),
        (((4, 5),), 2),
        (((6,),), 1),
    ]
    assert job.groups == ((0, 1, 2), (4, 5), (6,))
    assert len(job.pairs) == 6


@pytest.mark.parametrize(
    ("pairs", "words"),
    [("{{0,1}}", "open chain from rank 0 to rank 1"), ("{}", "names no pair")],
)
def test_pairs_that_form_no_ring(pairs: str, words: str) -> None:
    """A chain and an empty list are refused; the pairs stay with the job."""
    job = hlo(f"collective-permute(%p), channel_id=1, source_target_pairs={pairs}")
    assert job.refused is not None
    assert words in job.refused
    assert not job.requests


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("channel_id=1, ", ((0, 1), (1, 0), (4, 5), (5, 4))),  # partition ids, once in each replica
        ("", ((0, 4), (1, 5), (2, 6), (3, 7), (4, 0), (5, 1), (6, 2), (7, 3))),  # replica ids, once for each partition
    ],
)
def test_pairs_in_device_ids(channel: str, expected: tuple[tuple[int, int], ...]) -> None:
    """Numbers of pairs are partition ids with a channel and replica ids without. Source: interchange §4.3."""
    line = f"collective-permute(%p), {channel}source_target_pairs={{{{0,1}},{{1,0}}}}"
    assert hlo(line, counts="replica_count=2, num_partitions=4").pairs == expected


def test_options_reach_the_requests() -> None:
    """Where operands lie is part of every request."""
    options = Options(staging=Staging.STATIC)
    line = "all-to-all(%p), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}"
    assert hlo(line, options=options).requests[0].staging is Staging.STATIC
    line = "collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    assert hlo(line, options=options).requests[0].staging is Staging.STATIC
    (request,) = by_size(EncOp.ALLGATHER, Dtype.FP32, ((0, 1),), 4, None, options)
    assert (request.count, request.staging) == (8, Staging.STATIC)


def neff(kind: EncOp, *, group: int = 0, pairs: list[list[list[int]]] | None = None) -> Job:
    alu = AluOp.ADD if kind is EncOp.PERMUTE_REDUCE else AluOp.BYPASS
    word = Word(kind=kind, alu_op=alu, dtype=Dtype.FP32, input_id=0, output_id=1, num_elements=8, group_id=group)
    changes = {"var": variables(a=1024, b=1024), "src_target_pairs": pairs or []}
    data = container(files(pe=encode_word(word), sg=definition(**changes)))
    (job,) = jobs_of_file(PATH, FileKind.NEFF, data, load_platform("trn1.32xlarge"), Options())
    return job


def test_words_of_a_permute() -> None:
    """A permute of a NEFF goes by the list of pairs with its group's number; without one it is refused."""
    job = neff(EncOp.PERMUTE, group=1, pairs=[[[0, 1]], [[2, 3], [3, 2]]])
    (request,) = job.requests
    assert (request.kind, request.pairs, request.groups) == (EncOp.PERMUTE, ((2, 3), (3, 2)), ((2, 3),))
    assert job.word
    job = neff(EncOp.PERMUTE_REDUCE, pairs=[[[0, 1], [1, 0]]])
    assert job.requests[0].op is CceType.ADD
    job = neff(EncOp.PERMUTE, group=1, pairs=[[[0, 1]]])
    assert job.refused is not None
    assert "no list of pairs" in job.refused


def test_words_of_an_all_to_all() -> None:
    """An all-to-all of a NEFF is a request over its groups, its elements one shard of the buffer. Source: isa §8.3."""
    job = neff(EncOp.ALLTOALL)
    (request,) = job.requests
    assert (request.kind, request.ranks, request.count, job.refused) == (EncOp.ALLTOALL, 32, 8 * 32, None)
