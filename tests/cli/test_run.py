"""`rota run`: the main job, its rows, its JSON, its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Ran

from rota.isa.dtypes import Dtype
from rota.isa.enums import AluOp, EncOp
from rota.isa.words import Word, encode_word

Rota = Callable[..., Ran]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEYS = {
    "kind", "ranks", "bytes", "dtype", "algorithm", "channels", "moves", "verified", "device_matches", "max_ulp",
    "ranks_identical", "time_us", "algbw", "busbw", "op", "groups", "selected", "refused", "source", "not_on_device",
    "cc_op_info",
}  # fmt: skip


def collectives(ran: Ran) -> list[dict[str, Any]]:
    document = json.loads(ran.out)
    assert document["schema"] == 1
    rows: list[dict[str, Any]] = document["collectives"]
    assert all(set(row) == KEYS for row in rows)
    return rows


def check_good(row: dict[str, Any]) -> None:
    assert row["refused"] is None
    assert row["verified"] is True
    assert row["device_matches"] is True
    assert row["not_on_device"] is None
    assert row["max_ulp"] is not None
    assert row["ranks_identical"] in (True, None)


MAIN_JOB = (
    "run", "all_reduce", "--platform", "trn2.48xlarge", "--ranks", "64", "--size", "1M", "--dtype", "bf16",
)  # fmt: skip


def test_the_main_job(rota: Rota) -> None:
    """64 ranks of Trn2, 1 MiB bf16: the runtime's MESH is proved, runs on the device model, and all ranks agree."""
    (row,) = collectives(rota(*MAIN_JOB, "--json"))
    check_good(row)
    assert (row["selected"], row["algorithm"], row["ranks"], row["bytes"]) == ("MESH", "MESH", 64, 1 << 20)
    assert row["ranks_identical"] is True


def test_the_main_job_as_a_ring(rota: Rota) -> None:
    """The same as RING in four channels."""
    (row,) = collectives(rota(*MAIN_JOB, "--algorithm", "RING", "--json"))
    check_good(row)
    assert (row["algorithm"], row["channels"], row["ranks"], row["bytes"]) == ("RING", 4, 64, 1 << 20)
    assert row["ranks_identical"] is True
    assert row["moves"] == 64 * 4 * 2 * (2 * 64 - 1), "2N rows a half, of which the last moves nothing"
    assert row["busbw"] == pytest.approx(row["algbw"] * 2 * 63 / 64)
    assert row["algbw"] == pytest.approx((1 << 20) / (row["time_us"] * 1e-6) / 1e9)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "allg", "redsct", "allr"])
def test_names_of_operations(rota: Rota, name: str) -> None:
    """Our names and nccom-test's short ones run."""
    (row,) = collectives(rota("run", name, "--ranks", "4", "--size", "4K", "--json"))
    check_good(row)
    assert row["kind"] in ("all_reduce", "all_gather", "reduce_scatter")


@pytest.mark.parametrize(
    ("platform", "groups"),
    [
        ("trn1.32xlarge", "0"),
        ("trn1.32xlarge", "0-1"),
        ("trn1.32xlarge", "0-3"),
        ("trn1.32xlarge", "0-7"),
        ("trn1.32xlarge", "0-15"),
        ("trn1.32xlarge", "16-31"),
        ("trn1.32xlarge", "0-31"),
        ("trn2.48xlarge", "0-3"),
        ("trn2.48xlarge", "0-7"),
        ("trn2.48xlarge", "0-15;16-31;32-47;48-63"),
        ("trn2.48xlarge", "0-3,16-19,32-35,48-51"),
        ("trn2.48xlarge", "0-15,48-63;16-47"),
        ("trn2.48xlarge", "0-63"),
        ("trn2.48xlarge", "0,16,32,48;1,17,33,49"),
        ("trn2.48xlarge", "0,4,8,12"),
        ("trn2.48xlarge", ",".join(str(4 * chip) for chip in range(16))),
        ("trn2.48xlarge", "0,16;32,48"),
        ("trn2.48xlarge", ",".join(str(4 * chip) for chip in (0, 3, 4, 7, 8, 11, 12, 15))),
    ],
)
def test_every_documented_group(rota: Rota, platform: str, groups: str) -> None:
    """Every documented group size runs, all lanes and one lane, as the runtime does it and as a ring."""
    asked = ("run", "allr", "--platform", platform, "--groups", groups, "--size", "8K", "--json")
    for forced in ((), ("--algorithm", "RING")):
        (row,) = collectives(rota(*asked, *forced))
        check_good(row)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e3m4", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("size", ["4", "28", "1004", "4K"])
def test_sizes_that_do_not_divide(rota: Rota, dtype: str, size: str) -> None:
    """One element, odd counts, and counts that ranks or channels do not divide."""
    for op, forced in (("sum", ()), ("sum", ("--algorithm", "RING")), ("max", ())):
        (row,) = collectives(
            rota("run", "allr", "--ranks", "16", "--size", size, "--dtype", dtype, "--op", op, *forced, "--json")
        )
        check_good(row)
        assert op == "sum" or row["max_ulp"] == 0


def test_integers_move_and_reduce_only_when_asked(rota: Rota) -> None:
    """Integers gather exactly; their reduction needs the option and is exact for small values."""
    (row,) = collectives(rota("run", "allg", "--ranks", "8", "--size", "4K", "--dtype", "uint64", "--json"))
    check_good(row)
    (row,) = collectives(
        rota("run", "allr", "--ranks", "8", "--size", "4K", "--dtype", "int32", "--integer-as-fp32", "--json")
    )
    check_good(row)
    assert row["max_ulp"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["allr", "--dtype", "int32"], ["int32", "float32", "--integer-as-fp32"]),
        (["allr", "--dtype", "fp32r"], ["fp32r has no transfer size; use fp32"]),
        (["allr", "--dtype", "fp33"], ["fp33", "bf16"]),
        (["allr", "--platform", "trn1.32xlarge", "--ranks", "5"], ["chip 2", "channels"]),
        (["allr", "--groups", "0-3;3-7"], ["3"]),
        (["allr", "--groups", "0,1,1"], ["1"]),
        (["allr", "--groups", "0-64"], ["64"]),
        (["allr", "--size", "0"], ["size '0'"]),
        (["allr", "--size", "3"], ["whole number of bf16 elements"]),
        (["allg", "--size", "6"], ["whole number of elements for each of 64 ranks", "128"]),
        (["allr", "--size", "1X"], ["1X", "64M"]),
        (["allr", "--platform", "trn9"], ["trn9", "trn1.32xlarge", "trn2.48xlarge"]),
        (["allr", "--ranks", "65"], ["65", "64"]),
        (["allr", "--ranks", "4", "--groups", "0-3"], ["--ranks", "--groups"]),
        (["allr", "--op", "prod"], ["prod", "sum, max, min"]),
        (["allg", "--op", "sum"], ["--op", "does not reduce"]),
        (["allr", "--seed", "-1"], ["--seed"]),
        (["allr", "--size", "1T"], ["GiB", "smaller size"]),
        (["alltoall", "--algorithm", "RING"], ["all_to_all", "RING"]),
        (["nowhere.hlo"], ["nowhere.hlo", "no file"]),
    ],
)
def test_refused_with_one_sentence(rota: Rota, arguments: list[str], words: list[str]) -> None:
    """Bad input gets one sentence on stderr, exit code 2, and no output."""
    ran = rota("run", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("rota: ")
    assert len(ran.err.strip().splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err


NO_COLLECTIVE = b"HloModule m\n\nENTRY %main (p: f32[4]) -> f32[4] {\n  ROOT %p = f32[4] parameter(0)\n}\n"


def test_refused_files(rota: Rota, tmp_path: Path) -> None:
    """An HLO without collectives, a 63-byte stream, an empty file, a directory without images, binary noise."""
    cases = {
        "none.hlo": (NO_COLLECTIVE, "no collective"),
        "short.bin": (encode_word(word())[:63], "short.bin: truncated"),
        "empty": (b"", "empty"),
        "noise.bin": (bytes(range(64)), "opcode"),
        "noise.txt": (b"hello\n", "neither"),
    }
    for name, (data, what) in cases.items():
        (tmp_path / name).write_bytes(data)
        ran = rota("run", str(tmp_path / name))
        assert (ran.code, ran.out) == (2, ""), name
        assert what in ran.err, (name, ran.err)
    (tmp_path / "directory").mkdir()
    for command in ("run", "disasm"):
        ran = rota(command, str(tmp_path / "directory"))
        assert (ran.code, ran.out) == (2, "")
        assert "image" in ran.err


def word(**changes: Any) -> Word:
    tensors = {"input_id": 7, "output_id": 8, "num_elements": 4096}
    fields: dict[str, Any] = {"kind": EncOp.ALLREDUCE, "alu_op": AluOp.ADD, "dtype": Dtype.BFLOAT16} | tensors
    return Word(**(fields | changes))


def test_instruction_stream(rota: Rota, tmp_path: Path) -> None:
    """Each record is a row; `num_elements` is the shard of a gather; a refusal leaves the others running."""
    words = [
        word(),
        word(kind=EncOp.ALLGATHER, alu_op=AluOp.BYPASS, num_elements=64, input_id=9, output_id=10),
        word(kind=EncOp.REDUCE_SCATTER, dtype=Dtype.FP32, num_elements=64, input_id=11, output_id=12),
        word(kind=EncOp.ALLTOALL, alu_op=AluOp.BYPASS, input_id=13, output_id=14),
        word(group_id=3),
        word(alu_op=AluOp.MULT),
    ]
    (tmp_path / "pe.bin").write_bytes(b"".join(map(encode_word, words)))
    ran = rota("run", str(tmp_path / "pe.bin"), "--groups", "0-3;4-7", "--json")
    rows = collectives(ran)
    assert ran.code == 1
    assert [row["source"]["line"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row, size in zip(rows[:4], (8192, 4 * 64 * 2, 4 * 64 * 4, 4 * 8192), strict=True):
        check_good(row)
        assert (row["bytes"], row["ranks"], len(row["groups"])) == (size, 4, 2)
    for row, what in zip(rows[4:], ("Invalid group id: 3", "FMA"), strict=True):
        assert what in row["refused"]
        assert row["verified"] is None


def test_the_runtime_librarys_own_record(rota: Rota, tmp_path: Path) -> None:
    """The real 0xC8 record, a 32-element fp32 all-reduce, runs as it is."""
    head = "c8100000040a131600000000040a0000 03000000040000002000000000000000 01"
    record = bytes.fromhex(head + "00" * 31)
    (tmp_path / "pe.bin").write_bytes(record)
    (row,) = collectives(rota("run", str(tmp_path / "pe.bin"), "--ranks", "4", "--json"))
    check_good(row)
    assert (row["kind"], row["dtype"], row["op"], row["bytes"]) == ("all_reduce", "fp32", "sum", 128)


def test_groups_of_several_sizes_and_channel_counts(rota: Rota) -> None:
    """One row a group size; groups that get different numbers of rings are all run."""
    rows = collectives(rota("run", "allr", "--groups", "0-15;16-19;20-23;32,48", "--size", "4K", "--json"))
    assert [(row["ranks"], len(row["groups"])) for row in rows] == [(16, 1), (4, 2), (2, 1)]
    for row in rows:
        check_good(row)
    (row,) = collectives(rota("run", "allr", "--groups", "0-3,16-19;20-23,24-27", "--size", "4K", "--json"))
    check_good(row)


HLO = """\
HloModule mixed, num_partitions=8

%add (x: {t}[], y: {t}[]) -> {t}[] {{
  %x = {t}[] parameter(0)
  %y = {t}[] parameter(1)
  ROOT %r = {t}[] add(%x, %y)
}}

ENTRY %main (p: {t}[16], q: {t}[32]) -> {t}[16] {{
  %p = {t}[16]{{0}} parameter(0)
  %q = {t}[32]{{0}} parameter(1)
  %g = {t}[64]{{0}} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={{0}}, {ids}
  %a = ({t}[16], {t}[32]) all-reduce(%p, %q), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, {ids}, channel_id=2, {add}
  %b = {t}[16]{{0}} all-to-all(%p), channel_id=3, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}
  ROOT %c = {t}[16]{{0}} all-reduce(%p), channel_id=4, replica_groups={{{{0,1,2,3,4}},{{5,6,7}}}}, {ids}, {add}
}}
"""


def hlo(element_type: str) -> str:
    return HLO.format(t=element_type, ids="use_global_device_ids=true", add="to_apply=%add")


def test_hlo_refusals_do_not_stop_the_others(rota: Rota, tmp_path: Path) -> None:
    """A collective the version or the machine refuses gets a row with line and reason; the others run; exit 1."""
    (tmp_path / "m.hlo").write_text(hlo("bf16"))
    ran = rota("run", str(tmp_path / "m.hlo"), "--json")
    rows = collectives(ran)
    assert ran.code == 1
    assert [row["source"]["line"] for row in rows] == [12, 13, 14, 15, 15]
    check_good(rows[0])
    check_good(rows[1])
    assert rows[1]["bytes"] == 96
    check_good(rows[2])
    assert rows[2]["kind"] == "all_to_all"
    assert all("channels" in row["refused"] for row in rows[3:])
    text = rota("run", str(tmp_path / "m.hlo"))
    assert text.code == 1
    assert sum("refused:" in line for line in text.out.splitlines()) == 2


def test_hlo_fp8_fn_moves_and_does_not_reduce(rota: Rota, tmp_path: Path) -> None:
    """f8e4m3fn is not the device's e4m3: it gathers as bytes, its reduction is refused with that reason."""
    (tmp_path / "m.hlo").write_text(hlo("f8e4m3fn"))
    rows = collectives(rota("run", str(tmp_path / "m.hlo"), "--json"))
    check_good(rows[0])
    assert "f8e4m3fn" in rows[1]["refused"]
    assert "240" in rows[1]["refused"]


def test_nothing_runs_is_exit_2(rota: Rota, tmp_path: Path) -> None:
    """Exit 2 only when no collective of the file can run."""
    (tmp_path / "m.hlo").write_text(hlo("f64"))
    ran = rota("run", str(tmp_path / "m.hlo"), "--platform", "trn1.2xlarge")
    assert (ran.code, sum("refused:" in line for line in ran.out.splitlines())) == (2, 4)


def test_files_say_their_own_sizes(rota: Rota) -> None:
    """--size, --dtype, --op and --groups do not go with an HLO file."""
    path = str(EXAMPLES / "data_parallel.hlo")
    for flag, value in (("--size", "4K"), ("--dtype", "bf16"), ("--op", "sum"), ("--groups", "0-3")):
        ran = rota("run", path, flag, value)
        assert ran.code == 2
        assert len(ran.err.splitlines()) == 1


def test_both_examples_run(rota: Rota) -> None:
    """The committed programs of a real compiler run whole."""
    for name, count in (("data_parallel.hlo", 1), ("tensor_parallel.hlo", 17)):
        ran = rota("run", str(EXAMPLES / name), "--json")
        rows = collectives(ran)
        assert (ran.code, len(rows)) == (0, count)
        for row in rows:
            check_good(row)


def test_text_is_a_table_for_awk(rota: Rota) -> None:
    """Header lines begin with '#', rows have one field a column, the default platform is said."""
    ran = rota("run", "allr", "--ranks", "4", "--size", "1K")
    lines = ran.out.splitlines()
    assert lines[0].startswith("#")
    assert "trn2.48xlarge (default)" in lines[0]
    assert len(lines[1].split()) - 1 == len(lines[2].split())
    assert [line[:2] for line in lines[3:]] == ["# "] * len(lines[3:])
    assert ran.err == ""


def test_two_runs_print_the_same(rota: Rota) -> None:
    """Equal input gives equal output; another seed gives other data and the same proof."""
    arguments = ("run", "redsct", "--ranks", "8", "--size", "16K", "--json")
    assert rota(*arguments).out == rota(*arguments).out
    a, b = (json.loads(rota(*arguments, "--seed", seed).out)["collectives"][0] for seed in ("1", "2"))
    assert {k: v for k, v in a.items() if k != "max_ulp"} == {k: v for k, v in b.items() if k != "max_ulp"}
    assert np.isfinite(a["max_ulp"])


# --- several collectives, and images ----------------------------------------------------------------------------------


def test_a_file_runs_as_one_program(rota: Rota) -> None:
    """All collectives of a file on one device model: what they take together is said once."""
    path = str(EXAMPLES / "tensor_parallel.hlo")
    document = json.loads(rota("run", path, "--json").out)
    found = document["resources"]
    assert found["collectives"] == len(document["collectives"]) == 17
    assert found["entries"] >= 17
    assert 1 <= found["chains"] <= found["entries"]
    assert all(value > 0 for name, value in found.items() if name not in ("channels", "barrier"))
    lines = rota("run", path).out.splitlines()
    comments = [line for line in lines[2:] if line.startswith("#")]
    assert comments[0].startswith(f"# program: 17 collectives in {found['entries']} control entries, ")
    assert f"{found['rings']} rings with {found['descriptors']} descriptors" in comments[0]
    assert comments[1].startswith(f"# a rank: {found['communicators']} communicators, ")
    assert f"{found['semaphores']} semaphores, {found['events']} event records" in comments[1]


def test_what_cannot_be_loaded_together_is_said(rota: Rota, tmp_path: Path) -> None:
    """Too many communicators for the semaphores of a processor: results are right, and nothing ran on the device."""
    pairs = [word(input_id=2 * i + 7, output_id=2 * i + 8, num_elements=64 * (i + 1)) for i in range(100)]
    (tmp_path / "pe.bin").write_bytes(b"".join(map(encode_word, pairs)))
    ran = rota("run", str(tmp_path / "pe.bin"), "--ranks", "4", "--json")
    document = json.loads(ran.out)
    assert document["resources"] is None
    for row in document["collectives"]:
        assert (row["verified"], row["device_matches"], row["refused"]) == (True, None, None)
        assert "semaphores wanted" in row["not_on_device"]
    assert "not run on the device model" in ran.err
    assert "(100 rows)" in ran.err


def lowered(rota: Rota, tmp_path: Path, *arguments: str) -> Path:
    out = tmp_path / "out"
    assert rota("lower", *arguments, "-o", str(out)).code == 0
    return out


def test_images_run_from_their_directory(rota: Rota, tmp_path: Path) -> None:
    """What was lowered is loaded and held against what was asked for, exactly, each collective in a line."""
    out = lowered(rota, tmp_path, str(EXAMPLES / "tensor_parallel.hlo"), "--seed", "9")
    ran = rota("run", str(out))
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == f"# rota run {out}: 64 images, seed 9"
    assert [line.split()[0] for line in lines[2:]] == ["right"] * 17
    document = json.loads(rota("run", str(out), "--json").out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (document["schema"], document["seed"], document["directory"]) == (2, 9, str(out))
    for record, collective in zip(document["collectives"], manifest["collectives"], strict=True):
        assert (record["matches"], record["wrong_ranks"]) == (True, [])
        assert {name: record[name] for name in ("request", "input", "output")} == {
            name: collective[name] for name in ("request", "input", "output")
        }


def test_images_that_say_something_else_are_wrong(rota: Rota, tmp_path: Path) -> None:
    """A source one byte off in one descriptor: the ranks that hold the result of it are named, exit code 1."""
    out = lowered(rota, tmp_path, "allr", "--ranks", "4", "--size", "4K", "--algorithm", "RING")
    asked = ("run", str(out), "--fault", "flip:rank=1,section=tx,byte=8,bit=0")
    ran = rota(*asked)
    assert (ran.code, ran.out.splitlines()[2].split()[0]) == (1, "WRONG")
    (record,) = json.loads(rota(*asked, "--json").out)["collectives"]
    assert record["matches"] is False
    assert set(record["wrong_ranks"]) == {0, 1, 2, 3}, "an all-reduce hands it to everybody"


@pytest.mark.parametrize("algorithm", ["RING", "MESH", "KANGARING"])
def test_images_of_each_algorithm_run(rota: Rota, tmp_path: Path, algorithm: str) -> None:
    out = lowered(rota, tmp_path, "allr", "--ranks", "16", "--size", "8K", "--algorithm", algorithm)
    ran = rota("run", str(out))
    assert (ran.code, ran.out.splitlines()[2].split()[0]) == (0, "right")


@pytest.mark.parametrize("flag", ["--ranks", "--size", "--dtype", "--op", "--groups", "--algorithm"])
def test_images_say_their_own_collectives(rota: Rota, tmp_path: Path, flag: str) -> None:
    """Options that describe a collective do not go with a directory."""
    out = lowered(rota, tmp_path, "allr", "--ranks", "2", "--size", "1K")
    values = {
        "--size": "4K",
        "--dtype": "bf16",
        "--op": "sum",
        "--groups": "0-1",
        "--algorithm": "RING",
        "--ranks": "2",
    }
    ran = rota("run", str(out), flag, values[flag])
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"rota: {flag}: goes with an operation name")


def test_damaged_images_are_refused(rota: Rota, tmp_path: Path) -> None:
    """A file that is not what the manifest says is named; so is a missing one."""
    out = lowered(rota, tmp_path, "allr", "--ranks", "2", "--size", "1K")
    path = out / "rank-001.img"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ran = rota("run", str(out))
    assert (ran.code, ran.out) == (2, "")
    assert f"{path}: is not what the manifest says" in ran.err
    path.unlink()
    assert f"{path}: cannot be read" in rota("run", str(out)).err


def test_an_interrupted_command_says_so(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it with the code that shells have for it, one word, and no traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rota.program.execute", interrupted)
    ran = rota("run", "all_reduce", "--ranks", "4", "--size", "4K")
    assert (ran.code, ran.out, ran.err) == (130, "", "rota: interrupted\n")
