"""Writing a NEFF: what the reader finds in it, that another reader opens it, and that equal input gives equal bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.neffs import RECORD

from rota.errors import UsageError
from rota.frontends.neff import read_neff
from rota.frontends.neff_writer import neff_of, write_neff, write_neff_file
from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, EncOp
from rota.isa.neff import Variable, stream_of
from rota.isa.opcodes import Opcode
from rota.isa.words import Word, decode_word, encode_word
from rota.machine.platform import load_platform
from rota.request import Groups


def word(kind: EncOp = EncOp.ALLREDUCE, *, elements: int = 8, ids: tuple[int, int] = (0, 1), group: int = 0) -> Word:
    return Word(
        kind=kind, alu_op=AluOp.ADD, dtype=Dtype.FP32, group_id=group, input_id=ids[0], output_id=ids[1],
        num_elements=elements,
    )  # fmt: skip


FOUR: Groups = ((0, 1, 2, 3),)
PAIRS: Groups = ((0, 1), (2, 3))


@pytest.mark.parametrize("pkg", [1, 2])
def test_another_reader_opens_it(pkg: int) -> None:
    """Offsets, hash, compression and archive are those of isa §11, read with `hashlib`, `gzip` and `tarfile`."""
    data = write_neff([(word(), FOUR)], target="v3", pkg_version=pkg, name="job", virtual_core=2)
    head, body = data[:1024], data[1024:]
    assert [int.from_bytes(head[at : at + 8], "little") for at in (0, 8, 16, 24)] == [pkg, 1024, len(body), 2]
    digest = hashlib.sha256(body).digest() if pkg == 1 else hashlib.md5(body).digest() + b"0" * 16
    assert head[0xAC:0xCC] == digest
    assert head[0xDC:0xE0] == b"job\0"
    assert head[0x220:0x22C] == bytes(8) + b"\2\0\0\0"
    plain = body if pkg == 1 else gzip.decompress(body)
    assert pkg == 1 or body[4:8] == bytes(4), "no time in the gzip header"
    assert plain[257:265] == b"ustar  \0"
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if tar.extractfile(member)}  # type: ignore[union-attr]
        assert {member.mtime for member in tar} == {0}
    assert json.loads(files["kelf-a.json"])["target"] == "v3"
    assert json.loads(files["sg00/def.json"])["replica_groups"] == [[[0, 1, 2, 3]]]
    assert files["sg00/pe.bin"] == encode_word(word())
    assert [files[f"sg00/{engine}.bin"] for engine in ("act", "pool", "dve", "sp")] == [b""] * 4


def test_the_shipped_record() -> None:
    """The record of isa §5.2 goes in and comes out, byte for byte, with the tensors of isa §11.3."""
    names = ("input", "SB", "output", "gradient_in", "gradient_out")
    tensors = [
        Variable(name, i, "fp32", 128, "output" if name == "output" else "input") for i, name in enumerate(names)
    ]
    data = write_neff([(decode_word(RECORD), ())], target="sunda", variables=tensors)
    (section,) = read_neff(data).sections
    assert bytes(section.instructions[0].data) == RECORD
    assert list(section.variables.values()) == tensors
    assert section.groups == ((),)


def test_group_ids_are_those_of_the_container() -> None:
    """One id for each distinct list, in order of appearance."""
    words = [(word(group=7), FOUR), (word(), PAIRS), (word(), FOUR)]
    (section,) = read_neff(write_neff(words, target="*")).sections
    assert section.groups == (FOUR, PAIRS)
    assert [each.group_id for each in stream_of(section.instructions[0]).words] == [0, 1, 0]


def test_a_word_without_a_group_has_the_first_list() -> None:
    """0xC7 has no group id, so that its list is number 0; two lists are one too many."""
    plain = Word(
        opcode=Opcode.PSEUDO_TRIGGER_ALL_REDUCE, kind=EncOp.ALLREDUCE, alu_op=AluOp.ADD, dtype=Dtype.FP32, input_id=0,
        output_id=1, num_elements=8,
    )  # fmt: skip
    (section,) = read_neff(write_neff([(word(), FOUR), (plain, PAIRS)], target="*")).sections
    assert section.groups == (PAIRS, FOUR)
    assert [each.group_id for each in stream_of(section.instructions[0]).words] == [1, 0]
    with pytest.raises(UsageError, match="all-reduce in group 0"):
        write_neff([(plain, FOUR), (plain, PAIRS)], target="*")


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(EncOp.ALLREDUCE, [32, 32]), (EncOp.ALLGATHER, [32, 128]), (EncOp.REDUCE_SCATTER, [128, 32])],
)
def test_tensors_fit_the_words(kind: EncOp, sizes: list[int]) -> None:
    """A gather's output and a scatter's input have the shards of all ranks; isa §8.3."""
    for groups, world in ((FOUR, 1), ((), 4)):
        (section,) = read_neff(write_neff([(word(kind), groups)], target="*", world=world)).sections
        assert [section.variables[i].size for i in (0, 1)] == sizes


def test_equal_input_gives_equal_bytes() -> None:
    """Nothing of time, user or place is in a container; the identity follows from the content."""
    one, same = (write_neff([(word(), FOUR)], target="v2") for _ in range(2))
    assert one == same
    assert write_neff([(word(elements=9), FOUR)], target="v2")[0xCC:0xDC] != one[0xCC:0xDC]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"target": "v1"}, "target 'v1'"),
        ({"target": "*", "pkg_version": 3}, "package version 3"),
        ({"target": "*", "virtual_core": 4}, "4 cores in one"),
        ({"target": "*", "variables": [Variable("a", 1, "fp32", 4, "output")]}, "expected var_ids 0, 1, 2"),
    ],
)
def test_what_no_reader_takes_is_not_written(fields: dict[str, object], says: str) -> None:
    """Targets, versions and numbers a reader refuses are refused here."""
    with pytest.raises(UsageError, match=says):
        write_neff([(word(), FOUR)], **fields)  # type: ignore[arg-type]


def test_a_large_tensor_number_is_refused() -> None:
    """Numbers have no gaps, so that a large one would take as many tensors."""
    with pytest.raises(UsageError, match="NEFF tensor 65536: expected numbers below 65536"):
        write_neff([(word(ids=(0, 1 << 16)), FOUR)], target="*")


def test_words_of_a_machine() -> None:
    """Equal words of one job are one word with all groups; words that name one tensor do so in the container, too."""
    trn2 = load_platform("trn2.48xlarge")
    a, b = encode_word(word()), encode_word(word(ids=(5, 5)))
    neff = read_neff(neff_of([(0, a, ((0, 1),)), (0, a, ((2, 3),)), (1, a, ((0, 1),)), (2, b, FOUR)], trn2))
    (section,) = neff.sections
    assert (neff.target, neff.header["virtual_core"]) == ("cayman", 2)
    words = stream_of(section.instructions[0]).words
    assert [(each.input_id, each.output_id) for each in words] == [(0, 1), (0, 1), (2, 2)]
    assert [section.groups[each.group_id] for each in words] == [PAIRS, ((0, 1),), FOUR]


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the earlier file, and nothing beside it."""
    path = tmp_path / "a" / "x.neff"
    write_neff_file(path, b"one")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match="cannot be written"):
        write_neff_file(path, b"two")
    assert [each.read_bytes() for each in path.parent.iterdir()] == [b"one"]
    with pytest.raises(UsageError, match="is a directory"):
        write_neff_file(tmp_path, b"two")
