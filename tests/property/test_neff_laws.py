"""Laws of NEFFs: what is written is read back, and from any bytes comes a container or a documented error."""

from __future__ import annotations

import copy
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.neffs import ENGINES, RECORD, container, definition, entry, files, pack, tar, wrap

from rota.errors import RotaError
from rota.frontends.jobs import FileKind, Options, jobs_of_file
from rota.frontends.neff import is_neff, read_neff
from rota.frontends.neff_archive import Caps
from rota.frontends.neff_writer import write_neff
from rota.isa.container import TARGETS
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, EncOp
from rota.isa.neff import architecture, stream_of
from rota.isa.operands import variable
from rota.isa.pairs import Pair, encode_pair
from rota.isa.words import Word
from rota.machine.platform import load_platform
from rota.report.neff import neff_json, neff_text
from rota.request import Groups

TRN1, TRN2 = load_platform("trn1.32xlarge"), load_platform("trn2.48xlarge")
CAPS = Caps(archive=1 << 20, members=64, depth=4, json=1 << 16)


def refusal(act: Callable[[], object]) -> str | None:
    """Return the sentence of a documented error, None when there is none; any other error is a failure."""
    try:
        act()
    except RotaError as error:
        return str(error)
    return None


def read_everything(data: bytes) -> bool:
    """Read, list and make jobs; say whether the container was sound. Only documented errors may pass."""
    said = refusal(lambda: read_neff(data, where="x.neff", caps=CAPS))
    if said is not None:
        assert said.isprintable()
        return False
    neff = read_neff(data, where="x.neff", caps=CAPS)
    document = neff_json(neff)
    json.dumps(document, allow_nan=False).encode()
    assert all(line.isprintable() for line in neff_text(document))
    said = refusal(lambda: jobs_of_file(Path("x.neff"), FileKind.NEFF, data, TRN1, Options()))
    if said is not None:
        assert said.isprintable()
        return True
    jobs = jobs_of_file(Path("x.neff"), FileKind.NEFF, data, TRN1, Options())
    assert all(job.requests if job.refused is None else not job.requests for job in jobs)
    assert all(note.isprintable() for job in jobs for note in job.notes)
    return True


# --- what is written is read back -------------------------------------------------------------------------------------

KINDS = (EncOp.ALLREDUCE, EncOp.ALLGATHER, EncOp.REDUCE_SCATTER, EncOp.ALLTOALL, EncOp.PERMUTE)


@st.composite
def group_lists(draw: st.DrawFn) -> Groups:
    ranks = draw(st.lists(st.integers(0, 31), unique=True, max_size=8))
    cuts = sorted(draw(st.sets(st.integers(1, max(len(ranks) - 1, 1)), max_size=2)))
    groups = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, len(ranks)], strict=True)]
    return tuple(tuple(group) for group in groups if group)


words = st.builds(
    Word,
    kind=st.sampled_from(KINDS),
    alu_op=st.sampled_from(AluOp),
    dtype=st.sampled_from(Dtype),
    input_id=st.integers(0, 9),
    output_id=st.integers(0, 9),
    num_elements=st.integers(1, 1 << 40),
    src_offset=st.integers(0, 99),
    dst_offset=st.integers(0, 99),
    wait_idx=st.integers(0, 255),
    semaphore_value=st.integers(0, (1 << 32) - 1),
)


@settings(max_examples=60, deadline=None)
@given(
    content=st.lists(st.tuples(words, group_lists()), max_size=5),
    target=st.sampled_from([*TARGETS, "*"]),
    pkg=st.sampled_from([1, 2]),
    core=st.sampled_from([1, 2]),
)
def test_reading_undoes_writing(content: list[tuple[Word, Groups]], target: str, pkg: int, core: int) -> None:
    """Words, groups, target and core size are what was given, and every tensor is as large as its words need."""
    data = write_neff(content, target=target, pkg_version=pkg, virtual_core=core, world=64)
    neff = read_neff(data)
    (section,) = neff.sections
    assert (neff.target, architecture(neff)) == (target, TARGETS.get(target))
    assert (neff.header["pkg_version"], neff.header["virtual_core"]) == (pkg, core)
    found = stream_of(section.instructions[0]).words
    assert [section.groups[word.group_id] for word in found] == [groups for _, groups in content]
    place = {"index": 0, "offset": 0, "group_id": 0}
    plain = [{name: getattr(word, name) for name in Word.__slots__} | place for word in found]
    assert plain == [{name: getattr(word, name) for name in Word.__slots__} | place for word, _ in content]
    platform = next((each for each in (TRN1, TRN2) if each.arch == (architecture(neff) or each.arch)), None)
    if content and platform is not None:
        for job in jobs_of_file(Path("x"), FileKind.NEFF, data, platform, Options()):
            assert "gives it" not in (job.refused or "")


# --- whatever bytes there are -----------------------------------------------------------------------------------------

FIXTURE = files()
PAIR = encode_pair(
    Pair(
        kind=EncOp.ALLREDUCE,
        alu_op=AluOp.ADD,
        dtype=Dtype.FP32,
        src0=variable(3, num=(1, 32)),
        dst=variable(4, num=(1, 32)),
    )
)
PLAIN = tar(entry(name, body) for name, body in FIXTURE.items())
WHOLE = {1: container(pkg=1), 2: container(pkg=2)}


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=2048), head=st.sampled_from([0, 16, 0xAC, 1024, 1600]))
def test_any_bytes(data: bytes, head: int) -> None:
    """Bytes of any kind, behind the beginning of a sound file or alone, give a container or a documented error."""
    read_everything(WHOLE[1][:head] + data)
    read_everything(wrap(data, pkg=1))
    read_everything(wrap(data, pkg=2))


@settings(max_examples=300, deadline=None)
@given(
    pkg=st.sampled_from([1, 2]),
    places=st.lists(st.tuples(st.integers(0, 0x22B), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_any_header(pkg: int, places: list[tuple[int, int]]) -> None:
    """A header with other bytes gives a container or a documented error."""
    data = bytearray(WHOLE[pkg])
    for at, value in places:
        data[at] = value
    read_everything(bytes(data))


@settings(max_examples=400, deadline=None)
@given(
    block=st.integers(0, len(PLAIN) // 512 - 1),
    places=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=4),
    is_sealed=st.booleans(),
    cut=st.one_of(st.none(), st.integers(0, len(PLAIN))),
)
def test_any_archive_under_a_right_hash(
    block: int, places: list[tuple[int, int]], *, is_sealed: bool, cut: int | None
) -> None:
    """An archive with other bytes, its sums made right or not, cut off or not, gives a container or a known error."""
    archive = bytearray(PLAIN)
    start = 512 * block
    for at, value in places:
        archive[start + at] = value
    if is_sealed and archive[start + 257 : start + 262] == b"ustar":
        archive[start + 148 : start + 156] = b" " * 8
        archive[start + 148 : start + 156] = b"%06o\0 " % sum(archive[start : start + 512])
    read_everything(pack(bytes(archive[:cut]), pkg=1))


@settings(max_examples=200, deadline=None)
@given(order=st.permutations(list(FIXTURE)), dropped=st.sets(st.sampled_from(list(FIXTURE)), max_size=1))
def test_any_order_of_members(order: list[str], dropped: set[str]) -> None:
    """Members in any order say the same; one that is missing is named, but for those nobody reads."""
    members = {name: FIXTURE[name] for name in order if name not in dropped}
    sound = read_everything(container(members))
    assert sound == (not dropped or dropped == {"neff.json"})
    if not dropped:
        assert read_neff(container(members)).sections == read_neff(WHOLE[2]).sections


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, each in inner for spot in spots(each, (*path, key)))]


DEFINITION = definition(replica_groups=[[[0, 1], [2, 3]]], src_target_pairs=[[[0, 1]]], cc_stream={"num_streams": 1})
SPOTS = spots(DEFINITION)[1:]


@settings(max_examples=400, deadline=None)
@given(spot=st.sampled_from(SPOTS), value=json_values)
def test_any_value_anywhere_in_a_definition(spot: tuple[Any, ...], value: Any) -> None:
    """A definition with any JSON value in any place is read, or refused by a documented error."""
    changed = copy.deepcopy(DEFINITION)
    inner: Any = changed
    for key in spot[:-1]:
        inner = inner[key]
    inner[spot[-1]] = value
    read_everything(container(files(sg=changed), pkg=1))


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(["kelf-a.json", "sg00/pe.json"]), value=json_values, key=st.sampled_from(
    ["graphs", "target", "version", "instr", "dma", "name"]
))  # fmt: skip
def test_any_value_in_the_small_members(name: str, value: Any, key: str) -> None:
    """So are the index and the manifests."""
    members = files()
    members[name] = json.dumps(json.loads(members[name]) | {key: value}).encode()
    read_everything(container(members, pkg=1))


@settings(max_examples=200, deadline=None)
@given(engine=st.sampled_from(ENGINES), stream=st.one_of(
    st.binary(max_size=200),
    st.tuples(
        st.sampled_from([RECORD, PAIR, PAIR + RECORD]),
        st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), max_size=3),
    ).map(lambda drawn: bytes(dict(drawn[1]).get(at, value) for at, value in enumerate(drawn[0]))),
))  # fmt: skip
def test_any_stream(engine: str, stream: bytes) -> None:
    """A container with any bytes for a stream is sound and can be listed; its jobs are jobs or a documented error."""
    members = files()
    members[f"sg00/{engine}.bin"] = stream
    assert read_everything(container(members, pkg=1))


@settings(max_examples=150, deadline=None)
@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    kind=st.binary(min_size=1, max_size=1),
    body=st.binary(max_size=40),
)
def test_any_extra_member(name: str, kind: bytes, body: bytes) -> None:
    """A further member of any name and kind is passed over, listed or refused."""
    read_everything(pack(tar([entry(name, body, kind=kind), *(entry(n, b) for n, b in FIXTURE.items())]), pkg=1))


@pytest.mark.parametrize("dialect", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_every_dialect(dialect: int) -> None:
    """The three dialects of `tarfile` say the same where no name is long."""
    archive = tar((entry(name, body) for name, body in FIXTURE.items()), dialect=dialect)
    assert read_neff(pack(archive)).sections == read_neff(WHOLE[2]).sections


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=16, max_size=64))
def test_the_kind_of_any_bytes(data: bytes) -> None:
    """No instruction stream is taken for a NEFF: its records say their length where a NEFF has a zero."""
    assert not is_neff(data[:1] + b"\x10" + data[2:])
