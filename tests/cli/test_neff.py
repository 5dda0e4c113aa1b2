"""`rota run`, `explain`, `lower` and `disasm` of a NEFF, and `rota lower --neff`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran
from tests.neffs import RECORD, container, definition, files, variables, wrap

from rota.device.load import load_image
from rota.frontends.neff import read_neff
from rota.isa.neff import stream_of

Rota = Callable[..., Ran]
TRN1 = ("--platform", "trn1.32xlarge")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def fixture(tmp_path: Path) -> Path:
    """The shipped shape of isa §11.3, in a file."""
    path = tmp_path / "fixture.neff"
    path.write_bytes(container())
    return path


def test_run_the_shipped_shape(rota: Rota, fixture: Path) -> None:
    """32 fp32 elements over every rank run to the end; the row says which record of which stream it was."""
    ran = rota("run", str(fixture), *TRN1, "--algorithm", "RING", "--json")
    assert ran.code == 0
    (row,) = json.loads(ran.out)["collectives"]
    assert (row["kind"], row["ranks"], row["bytes"], row["dtype"], row["op"]) == ("all_reduce", 32, 128, "fp32", "sum")
    assert (row["verified"], row["device_matches"], row["refused"]) == (True, True, None)
    assert row["source"] == {"file": f"{fixture}:sg00/pe.bin", "line": 1}
    assert f"{fixture}:sg00/pe.bin:1: tensors gradient_in -> gradient_out" in ran.err


def test_explain_a_neff(rota: Rota, fixture: Path) -> None:
    """Each collective is explained under its place."""
    ran = rota("explain", str(fixture), *TRN1)
    assert ran.code == 0
    assert ran.out.startswith(f"{fixture}:sg00/pe.bin:1:\n")
    assert "all_reduce sum, fp32, 1 group of 32 ranks on trn1.32xlarge" in ran.out


def test_lower_a_neff(rota: Rota, fixture: Path, tmp_path: Path) -> None:
    """The images carry the word of the stream, and can be loaded."""
    out = tmp_path / "out"
    assert rota("lower", str(fixture), *TRN1, "-o", str(out)).code == 0
    assert (out / "words.bin").read_bytes() == RECORD
    assert {load_image(path.read_bytes()).ranks for path in out.glob("*.img")} == {32}


def test_disasm_shows_every_part(rota: Rota, fixture: Path) -> None:
    """Header, members, section, tensors, groups, streams and words, one a line, each with its name first."""
    ran = rota("disasm", str(fixture))
    assert (ran.code, ran.err) == (0, "")
    parts = [line.split()[0] for line in ran.out.splitlines()]
    assert parts[:15] == ["header", *["member"] * 13, "section"]
    assert [parts.count(part) for part in ("tensor", "groups", "stream", "word", "other")] == [5, 1, 5, 1, 2]
    (word,) = [line for line in ran.out.splitlines() if line.startswith("word")]
    assert "kind=ALLREDUCE op=ADD dtype=fp32 group=0 input=3:gradient_in output=4:gradient_out elements=32" in word
    assert "groups   id=0 ranks=all" in ran.out


def test_disasm_json(rota: Rota, fixture: Path) -> None:
    """The document has the same content, with numbers as numbers."""
    document = json.loads(rota("disasm", str(fixture), "--json").out)
    assert document["schema"] == 1
    assert (document["header"]["target"], document["header"]["pkg_version"]) == ("sunda", 2)
    (section,) = document["sections"]
    assert section["groups"] == [[]]
    assert [tensor["size"] for tensor in section["tensors"]] == [128] * 5
    assert section["streams"][0]["words"][0]["elements"] == 32
    assert section["streams"][2]["others"] == [
        {"opcode": "EVENT_SEMAPHORE 0xA0", "count": 1},
        {"opcode": "PSEUDO_DMATRIGGER 0xC1", "count": 2},
    ]


def test_disasm_goes_on_after_a_damaged_stream(rota: Rota, tmp_path: Path) -> None:
    """What is wrong stands in the place of the stream, the streams behind it are shown, and the exit code is 1."""
    members = files(pe=RECORD[:40])
    members["sg00/sp.bin"] = RECORD
    path = tmp_path / "x.neff"
    path.write_bytes(container(members))
    ran = rota("disasm", str(path))
    assert ran.code == 1
    lines = ran.out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("damaged")]
    assert lines[at - 1].startswith("stream   engine=pe")
    assert "sg00/pe.bin: truncated" in lines[at]
    assert lines[-1].startswith("word")


def test_a_neff_for_another_machine(rota: Rota, fixture: Path) -> None:
    """`run`, `explain` and `lower` refuse it and name both architectures; `disasm` shows it."""
    for command in (["run"], ["explain"], ["lower", "-o", str(fixture.parent / "out")]):
        ran = rota(*command, str(fixture), "--platform", "trn2.48xlarge")
        assert (ran.code, ran.out) == (2, "")
        assert "compiled for sunda (target 'sunda'), and trn2.48xlarge is cayman" in ran.err
    assert not (fixture.parent / "out").exists()


def test_an_invalid_group_id(rota: Rota, tmp_path: Path) -> None:
    """The row is refused in the runtime's words, and the others run: exit code 1."""
    record = bytearray(RECORD)
    record[14], record[16], record[20] = 1, 0, 1
    good = bytes(record[:14]) + b"\0" + bytes(record[15:])
    path = tmp_path / "x.neff"
    lists = definition(var=variables(a=128, b=128), replica_groups=[[[0, 1]]])
    path.write_bytes(container(files(pe=good + bytes(record), sg=lists)))
    ran = rota("run", str(path), *TRN1, "--json")
    assert ran.code == 1
    assert [row["refused"] for row in json.loads(ran.out)["collectives"]] == [
        None, "Invalid group id: 1, group_n: 1",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["run", "explain", "disasm"])
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (container()[:-1], "size of the archive (code 2)"),
        (container()[:500], "header at offset 0: expected 1024 bytes, got 500 bytes"),
        (container(pkg=1, features=1 << 30), "feature bits 0x40000000"),
        (wrap(b"x", pkg=5), "package version 5"),
        (wrap(b"no gzip"), "expected gzip data"),
    ],
)
def test_damage_is_one_sentence(rota: Rota, tmp_path: Path, command: str, data: bytes, says: str) -> None:
    """A damaged container is one line on stderr, nothing on stdout, and exit code 2."""
    path = tmp_path / "x.neff"
    path.write_bytes(data)
    ran = rota(command, str(path))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err
    assert str(path) in ran.err


def test_lower_writes_a_neff_that_runs(rota: Rota, tmp_path: Path) -> None:
    """The words of a lowering, read back, give the same rows."""
    asked = ("all_gather", *TRN1, "--groups", "0-7;8-15", "--size", "16K", "--dtype", "bf16")
    path = tmp_path / "x.neff"
    assert rota("lower", *asked, "-o", str(tmp_path / "out"), "--neff", str(path)).code == 0
    (direct,) = json.loads(rota("run", *asked, "--json").out)["collectives"]
    (again,) = json.loads(rota("run", str(path), *TRN1, "--json").out)["collectives"]
    assert {**again, "source": None} == {**direct, "source": None}
    neff = read_neff(path.read_bytes())
    assert neff.target == "sunda"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "x.neff"]


def test_lower_a_program_into_a_neff(rota: Rota, tmp_path: Path) -> None:
    """Every collective of a program that was lowered is one word, with the groups it had."""
    path = tmp_path / "x.neff"
    source = str(EXAMPLES / "data_parallel.hlo")
    assert rota("lower", source, "-o", str(tmp_path / "out"), "--neff", str(path)).code == 0
    explained = json.loads(rota("explain", source, "--json").out)["collectives"]
    (section,) = read_neff(path.read_bytes()).sections
    words = stream_of(section.instructions[0]).words
    assert len({one["source"]["line"] for one in explained}) == len(words)
    wanted = {tuple(sorted(map(tuple, one["request"]["groups"]))) for one in explained}
    assert {tuple(sorted(section.groups[word.group_id])) for word in words} == wanted


def test_a_neff_that_cannot_be_written(rota: Rota, tmp_path: Path) -> None:
    """A directory is no file to write to, and it stays."""
    (tmp_path / "taken").mkdir()
    ran = rota(
        "lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(tmp_path / "out"), "--neff", str(tmp_path / "taken")
    )
    assert ran.code == 2
    assert "is a directory; name a file for the NEFF" in ran.err
