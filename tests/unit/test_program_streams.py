"""Programs of several streams: each has stream processors, queues and semaphores of its own, and they run together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.images import edit, section

from rota.device.model import Order, load
from rota.emit.collective import Collective
from rota.emit.placement import Placement
from rota.emit.streams import by_stream
from rota.errors import DecodeError, StuckError, UnsupportedError, UsageError
from rota.faults import parse_fault, prepare
from rota.frontends.jobs import FileKind, Options, jobs_of_file
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, AluOp, CceType, EncOp
from rota.isa.image import META, Section
from rota.isa.operands import variable
from rota.isa.pairs import Pair, encode_pair
from rota.isa.streams import STREAMS, processors_of, stream_of
from rota.machine.platform import load_platform
from rota.meaning import as_bytes, golden_program, make_program_inputs
from rota.pipeline import Composed, How, prove
from rota.program import Step, asked_of, load_checked, load_program, run_program, steps_of
from rota.request import Request

TRN2 = load_platform("trn2.48xlarge")
LNC1 = load_platform("trn2.48xlarge", lnc=1)
HALVES = (tuple(range(8)), tuple(range(8, 16)))


@cache
def ring(streams: int, groups: tuple[tuple[int, ...], ...] = (tuple(range(16)),)) -> Composed:
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 16 * 64, groups, CceType.ADD)
    return prove(request, TRN2, How(algorithm=Algorithm.RING, streams=streams, verify=False))


def program(streams: Sequence[int]) -> tuple[Step, ...]:
    most = 1 + max(streams)
    made = [ring(most, HALVES) if number % 3 == 2 else ring(most) for number in range(len(streams))]
    return steps_of(made, (), streams)


@pytest.mark.parametrize("streams", [(0, 1), (1, 0, 1, 2), (0, 1, 2, 3), (3, 1, 0, 2, 1, 0)])
def test_streams_do_what_their_collectives_mean(streams: tuple[int, ...]) -> None:
    """In waves and in random orders, whatever order the program names them in."""
    steps = program(streams)
    loaded = load_program(steps, TRN2)
    device, _ = load_checked(loaded)
    asked = asked_of(steps)
    inputs = make_program_inputs(asked, loaded.ranks, 0, exact=True)
    want = golden_program(asked, loaded.ranks, inputs)
    raw = {name: as_bytes(value) for name, value in inputs.items()}
    orders = [(Order.WAVES, 0), *((Order.RANDOM, seed) for seed in range(4))]
    for order, seed in orders:
        got = device.run_program(raw, order=order, rng=np.random.default_rng(seed))
        assert all(np.array_equal(got[name], want[name]) for name in want)
    assert {META.decode(section(image, Section.META))["streams"] for image in loaded.images} == {1 + max(streams)}


def test_streams_share_no_processor_and_no_queue() -> None:
    """Source: platforms §2."""
    device, _ = load_checked(load_program(program((0, 1, 2)), TRN2))
    machines, world = device.program.machines, device.world
    folds, launches = device.program.folds, device.program.launches
    starter = device.program.machine[launches.step[folds.launch]]
    stream = stream_of(machines.sp[starter], world.streams, world.sps)
    for section_ in np.unique(folds.section):
        assert np.unique(stream[folds.section == section_]).size == 1
    assert set(stream.tolist()) == {0, 1, 2}


def test_the_loader_refuses_queues_of_two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams on one descriptor ring would find each other's descriptors there."""

    def on_the_same_queues(collectives: Sequence[Collective], at: Placement) -> Any:
        _, placed, on = by_stream(collectives, at)
        return collectives, placed, [replace(each, queue=0) for each in on]

    monkeypatch.setattr("rota.emit.program.by_stream", on_the_same_queues)
    images = load_program(program((0, 1)), TRN2).images
    with pytest.raises(DecodeError, match="descriptor rings that nothing uses at the same time"):
        load(images)


def test_streams_run_at_the_same_time() -> None:
    """Four rings take hardly more ticks than one, and one stream takes them one after another."""

    def ticks(streams: tuple[int, ...]) -> int:
        steps, last = program(streams), [0]
        loaded = load_program(steps, TRN2)
        inputs = make_program_inputs(asked_of(steps), loaded.ranks, 0, exact=True)
        device, _ = load_checked(loaded)
        raw = {name: as_bytes(value) for name, value in inputs.items()}
        device.run_program(raw, observe=lambda tick, _: last.__setitem__(0, tick))
        return last[0]

    assert ticks((0, 1)) < 1.2 * ticks((0,)) < 0.7 * ticks((0, 0))


def test_every_processor_is_of_one_stream() -> None:
    """The first stream has what is left over."""
    for sps in (2, 4):
        for streams in range(1, min(STREAMS, sps) + 1):
            shares = [processors_of(stream, streams, sps) for stream in range(streams)]
            assert sorted(sp for share in shares for sp in share) == list(range(sps))
            assert [len(share) for share in shares[1:]] == [1] * (streams - 1)
            of = stream_of(np.arange(sps), streams, sps).tolist()
            assert all(of[sp] == stream for stream, share in enumerate(shares) for sp in share)


def test_what_streams_cannot_do() -> None:
    """More than the machine has, event lists, and tensors whose order nothing says; each in one sentence."""
    with pytest.raises(UnsupportedError, match="5 streams: a rank with 4 TOP_SPs has 4"):
        load_program(steps_of([ring(2)] * 2, (), (0, 4)), TRN2)
    request = Request(EncOp.ALLREDUCE, Dtype.BFLOAT16, 1024, (tuple(range(16)),), CceType.ADD)
    mesh = prove(request, TRN2, How(algorithm=Algorithm.MESH, verify=False))
    with pytest.raises(UnsupportedError, match="mesh events with 2 streams: they take one stream"):
        load_program(steps_of([ring(2), mesh], (), (0, 1)), TRN2)
    with pytest.raises(UnsupportedError, match="2 streams: it takes one"):
        prove(request, TRN2, How(algorithm=Algorithm.KANGARING, streams=2))
    tensors = [("a", "b"), ("b", "c")]
    with pytest.raises(UsageError, match="tensor b: written on stream 0 and used on stream 1"):
        load_program(steps_of([ring(2)] * 2, tensors, (0, 1)), TRN2)
    shared = steps_of([ring(2)] * 2, [("a", "b"), ("a", "c")], (0, 1))
    assert load_program(shared, TRN2).resources.collectives == 2


def with_streams(image: bytes, streams: int) -> bytes:
    assert META.dtype.fields is not None
    return edit(image, Section.META, 0, META.dtype.fields["streams"][1], streams.to_bytes(4, "little"))


def test_the_loader_checks_the_streams() -> None:
    """One more than the stream processors, none, and a number that gives a processor to another stream."""
    images = load_program(program((0, 1)), TRN2).images
    for wrong, says in ((0, "expected 1 to 4"), (5, "expected 1 to 4")):
        with pytest.raises(DecodeError, match=f"image META streams.*{says}"):
            load([with_streams(image, wrong) for image in images])
    with pytest.raises(DecodeError, match="streams"):
        load([with_streams(images[0], 1), *images[1:]])
    with pytest.raises(DecodeError, match="program block word3591"):
        load([with_streams(image, 1) for image in images])


def test_a_stream_whose_rank_is_killed_says_which() -> None:
    """The chain of waits is that of the stream that is stuck."""
    loaded = load_program(program((0, 1)), TRN2)
    prepared = prepare(loaded.images, loaded.ranks, [parse_fault("kill:rank=3,tick=0")], entries=loaded.entries)
    steps = program((0, 1))
    raw = {
        name: as_bytes(value)
        for name, value in make_program_inputs(asked_of(steps), loaded.ranks, 0, exact=True).items()
    }
    with pytest.raises(StuckError, match="rank 3 was killed at tick 0"):
        prepared.device.run_program(raw, disturbance=prepared.disturbance)


def pair(reads: int, writes: int, stream: int) -> bytes:
    operands = {"src0": variable(reads, num=(1, 1024)), "dst": variable(writes, num=(1, 1024))}
    return encode_pair(
        Pair(kind=EncOp.ALLREDUCE, alu_op=AluOp.ADD, dtype=Dtype.FP32, stream_id=stream, **operands)  # type: ignore[arg-type]
    )


def test_pairs_name_their_stream() -> None:
    """A 0xDA word's stream is that of its collective; one that there is not is refused."""
    data = pair(0, 1, 0) + pair(2, 3, 1) + pair(4, 5, 7)
    options = Options(groups=(tuple(range(16)),))
    jobs = jobs_of_file(Path("x.bin"), FileKind.STREAM, data, TRN2, options)
    assert [(job.stream, job.streams) for job in jobs[:2]] == [(0, 1), (1, 2)]
    assert jobs[2].refused == "stream 7: there are 4, from 0"
    how = How(streams=max(job.streams for job in jobs), verify=False)
    made = [prove(job.requests[0], TRN2, how) for job in jobs[:2]]
    assert [each.algorithm for each in made] == ["RING", "RING"], "a mesh takes one stream"
    ran = run_program(made, TRN2, streams=[job.stream for job in jobs[:2]])
    assert [outcome.device_matches for outcome in ran.outcomes] == [True, True]
