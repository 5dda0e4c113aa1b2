"""What users see of the device side: stages, logs, traces, profiles, and streams whose words share tensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Ran
from tests.neffs import container, definition, files, variables

from rota.device.disturb import Disturbance
from rota.device.model import Device, load
from rota.errors import StuckError
from rota.frontends.image_directory import read_image_directory
from rota.isa.cc_op_info import CORE_GRAPH, decode_cc_op_info, decode_message
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm, AluOp, EncOp
from rota.isa.operands import variable
from rota.isa.pairs import Pair, encode_pair
from rota.isa.words import Word, encode_word
from rota.report.device_log import device_log
from rota.report.trace import spans, trace_of

Rota = Callable[..., Ran]
STAGES = ["word", "select", "compose", "emit", "host", "device", "complete"]
FOUR = ("--ranks", "4", "--size", "4K")
RING = (*FOUR, "--algorithm", "RING")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused(ran: Ran, *words: str) -> None:
    """Exit code 2, one sentence, and no output."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("rota: ")
    assert len(ran.err.splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err


# --- rota lower --stages, --log ---------------------------------------------------------------------------------------


def stages(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if not line.startswith((" ", "#"))]


def test_stages_show_the_path_of_a_collective(rota: Rota, tmp_path: Path) -> None:
    """From the word to the completion, behind the usual table, of the images that were written."""
    ran = rota("lower", "all_reduce", *RING, "-o", str(tmp_path / "out"), "--stages")
    assert (ran.code, ran.err.count("refused")) == (0, 0)
    at = ran.out.splitlines().index("# stages of all_reduce bf16 sum 2048 0,1,2,3")
    assert stages(ran.out.splitlines()[at:]) == STAGES
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.img"))
    assert f"4 images of {size} bytes; that of rank 0" in ran.out
    assert "# stages" not in rota("lower", "all_reduce", *RING, "-o", str(tmp_path / "out")).out


def test_stages_and_log_without_a_directory(rota: Rota, tmp_path: Path) -> None:
    """They are printed alone, and nothing is written; without anything to do the directory is asked for."""
    asked = ("lower", "all_reduce", *RING, "--stages", "--log")
    out = str(tmp_path / "out")
    alone, written = rota(*asked), rota(*asked, "-o", out)
    assert (alone.code, list(tmp_path.iterdir())) == (0, [tmp_path / "out"])
    assert alone.out == "".join(line.replace(out, "-") for line in written.out.splitlines(keepends=True))
    assert json.loads(rota(*asked, "--json").out)["directory"] is None
    refused(rota("lower", "all_reduce", *RING), "-o DIR: missing; name the directory to write, or ask for --neff")
    refused(rota("lower", "sb2sb", "--dtype", "bf16", "--count", "8"), "-o DIR: missing; name the directory to write")


def test_stages_of_a_program(rota: Rota, tmp_path: Path) -> None:
    """Every collective has its own path, also those of groups that begin elsewhere; --json has a list for each."""
    path = tmp_path / "words.bin"
    path.write_bytes(word(0, 1) + word(1, 2, kind=EncOp.REDUCE_SCATTER))
    asked = ("lower", str(path), "--groups", "4-7;0-3", "-o", str(tmp_path / "out"), "--stages")
    text = rota(*asked).out.splitlines()
    assert stages(text[text.index("# stages of all_reduce bf16 sum 64 4,5,6,7;0,1,2,3") :]) == STAGES * 2
    document = json.loads(rota(*asked, "--json").out)
    assert [stages(lines) for lines in document["stages"]] == [STAGES] * 2
    assert "cc_op_info posted_status 0, cc_op 1, op_type 4" in "\n".join(document["stages"][1])


@pytest.mark.parametrize(("rank", "place"), [(None, 0), ("6", 2)])
def test_log_is_that_of_one_rank(rota: Rota, tmp_path: Path, rank: str | None, place: int) -> None:
    """The lines of the first rank, or of the one that is named, by its number on the machine."""
    out = tmp_path / "out"
    more = () if rank is None else ("--rank", rank)
    ran = rota("lower", "allr", "--groups", "4-7", "--size", "4K", "-o", str(out), "--log", *more)
    assert ran.code == 0
    lines = ran.out.splitlines()
    at = lines.index(f"# log of rank {rank or 4}")
    assert tuple(lines[at + 1 :]) == device_log(read_image_directory(out).images[place])
    document = json.loads(
        rota("lower", "allr", "--groups", "4-7", "--size", "4K", "-o", str(out), "--log", *more, "--json").out
    )
    assert (document["rank"], document["log"]) == (int(rank or 4), lines[at + 1 :])


def test_a_rank_without_an_image(rota: Rota, tmp_path: Path) -> None:
    """It is refused before anything is written; so is a rank of nothing."""
    asked = ("lower", "allr", "--groups", "4-7", "-o", str(tmp_path / "out"))
    refused(rota(*asked, "--log", "--rank", "3"), "--rank 3: expected a rank of the program, 4-7")
    refused(rota(*asked, "--rank", "5"), "--rank: goes with --log")
    assert not list(tmp_path.iterdir())


# --- rota run --trace -------------------------------------------------------------------------------------------------

FIELDS = {"tick", "rank", "top_sp", "entry", "collective", "machine", "bytes"}
PLACES = {"host": {"chain"}, "walk": {"part"}, "channel": {"channel", "row"}, "events": {"event"}}


def test_trace_has_every_step(rota: Rota, tmp_path: Path) -> None:
    """Ticks ascend, every machine takes its steps in order, and the bytes are those that a ring moves."""
    path = tmp_path / "t.jsonl"
    ran = rota("run", "all_reduce", *RING, "--trace", str(path))
    assert ran.code == 0
    steps = lines_of(path)
    assert all(step.keys() == FIELDS | PLACES[step["machine"]] for step in steps)
    ticks = [step["tick"] for step in steps]
    assert ticks == sorted(ticks)
    assert {step["rank"] for step in steps} == {0, 1, 2, 3}
    assert sum(step["bytes"] for step in steps) == 4 * 4096 * 7 // 4, "(2N - 1) / N of the buffer, written by each rank"
    for step in steps:
        host, known = step["machine"] == "host", step["entry"] is not None
        assert (step["top_sp"] is None, step["collective"]) == (host, 0 if known else None)
    rows = [step["row"] for step in steps if step["machine"] == "channel" and step["rank"] == 2 and not step["channel"]]
    assert rows == sorted(rows)
    assert Counter(step["machine"] for step in steps)["walk"] == 2 * 4 * 4, "two of each stream processor of each rank"
    assert f"# trace {path}: {len(steps)} steps in {ticks[-1] + 1} ticks" in ran.out
    work = [step["tick"] for step in steps if step["machine"] == "channel"]
    assert f"{min(work)} {max(work):>8} 0-3" in ran.out.splitlines()[-1]


def test_trace_of_a_mesh_and_of_a_permute(rota: Rota, tmp_path: Path) -> None:
    """An event is called an event; each pair of a permute writes the buffer once."""
    path = tmp_path / "t.jsonl"
    assert rota("run", "all_reduce", *FOUR, "--algorithm", "MESH", "--trace", str(path)).code == 0
    assert {"events", "walk", "host"} == {step["machine"] for step in lines_of(path)}
    ran = rota("run", "permute", "--pairs", "0>1,1>2,2>3,3>0", "--size", "6K", "--trace", str(path), "--json")
    record = json.loads(ran.out)["trace"]
    steps = lines_of(path)
    assert sum(step["bytes"] for step in steps) == 4 * 6144
    assert (record["file"], record["steps"]) == (str(path), len(steps))
    assert [span["ranks"] for span in record["spans"]] == [[0, 1, 2, 3]]


def test_trace_of_images(rota: Rota, tmp_path: Path) -> None:
    """A directory of images gives the trace of what it was lowered from: several collectives, each with its ticks."""
    source, out = tmp_path / "words.bin", tmp_path / "out"
    source.write_bytes(word(0, 1) + word(1, 2))
    one, other = tmp_path / "one", tmp_path / "other"
    ran = rota("run", str(source), "--ranks", "4", "--trace", str(one))
    assert rota("lower", str(source), "--ranks", "4", "-o", str(out)).code == 0
    again = rota("run", str(out), "--trace", str(other))
    assert (ran.code, again.code) == (0, 0)
    assert one.read_bytes() == other.read_bytes()
    assert ran.out.splitlines()[-3:][1:] == again.out.splitlines()[-2:]
    assert {step["collective"] for step in lines_of(one)} == {0, 1, None}
    manifest = json.loads((out / "manifest.json").read_text())
    assert [each.pop("entries") for each in manifest["collectives"]] == [1, 1]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert rota("run", str(out), "--trace", str(other)).code == 0
    assert {step["collective"] for step in lines_of(other)} == {None}, "nobody knows"


def test_a_late_rank_shows(rota: Rota, tmp_path: Path) -> None:
    """A rank that starts later than the others has a line of its own."""
    rota("lower", "permute_implicit", "--ranks", "4", "--size", "4K", "-o", str(tmp_path / "out"))
    found = read_image_directory(tmp_path / "out")
    device = load(found.images)
    fired: list[tuple[int, Any]] = []
    inputs = {buffer.name: np.zeros((4, buffer.size), np.uint8) for buffer in device.world.images[0].buffers[:1]}
    late = Disturbance(late={2: 30})
    device.run_program(inputs, disturbance=late, observe=lambda tick, steps: fired.append((tick, steps)))
    (*early, last) = spans(trace_of(device, found.ranks, [1], fired))
    assert last.ranks == (2,)
    assert all(each.first < 30 <= last.first for each in early)


def test_a_stuck_run_leaves_its_trace(rota: Rota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fired until nothing could move any more is there, whole."""
    run_program = Device.run_program

    def stop(device: Device, *arguments: Any, **named: Any) -> None:
        run_program(device, *arguments, **named)
        raise StuckError("nothing moves", waiting=[])

    monkeypatch.setattr(Device, "run_program", stop)
    path = tmp_path / "t.jsonl"
    ran = rota("run", "all_reduce", *RING, "--trace", str(path))
    assert (ran.code, ran.out, ran.err) == (1, "", "rota: nothing moves\n")
    assert len(lines_of(path)) > 100


def test_traces_that_are_not_written(rota: Rota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that takes no file, a command that is refused, a run without a device: nothing new, nothing half."""
    path = tmp_path / "t.jsonl"
    path.write_text("earlier")
    for option in ("--trace", "--profile"):
        refused(rota("run", "allr", *FOUR, option, str(tmp_path)), "is a directory")
        refused(rota("run", "allr", *FOUR, option, str(tmp_path / "no" / "t")), "cannot be written")
    refused(rota("run", "allr", "--ranks", "65", "--trace", str(path)), "65")
    refused(rota("run", "allr", "--size", "3", "--trace", str(path)), "whole number")
    refused(rota("run", "allr", *FOUR, "--log"), "--log: goes with sb2sb")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    refused(rota("run", "allr", *FOUR, "--trace", str(path)), "No space left on device")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("t.jsonl", "earlier")]


# --- records of a profile ---------------------------------------------------------------------------------------------


def test_json_has_the_runtimes_record(rota: Rota, tmp_path: Path) -> None:
    """Every collective that ran has its cc_op_info, as fields and as the bytes that say the same."""
    path = tmp_path / "words.bin"
    path.write_bytes(word(0, 1) + word(1, 2, alu_op=AluOp.MULT))
    ran = rota("run", str(path), "--ranks", "4", "--algorithm", "RING", "--json")
    ring, nothing = json.loads(ran.out)["collectives"]
    (record,) = ring["cc_op_info"]
    info = decode_cc_op_info(bytes.fromhex(record.pop("bytes")))
    assert record == {"posted_status": 0, "cc_op": 1, "op_type": 1, "alg": 0, "alg_name": "Ring"}
    assert (info.op_type, info.alg) == (EncOp.ALLREDUCE, Algorithm.RING)
    assert nothing["cc_op_info"] == []


def test_profile_is_the_message_of_the_first_rank(rota: Rota, tmp_path: Path) -> None:
    """The bytes of `core_graph`: operations, communicators, and the stream with the rank's TOP_SPs."""
    path = tmp_path / "core_graph.pb"
    assert rota("run", "all_gather", "--groups", "1,0,2,3", "--size", "4K", "--profile", str(path)).code == 0
    graph = decode_message(CORE_GRAPH, path.read_bytes())
    (stream,) = graph["stream_info"]  # type: ignore[misc]
    assert (tuple(stream["cc_core_id"]), stream["id"]) == ((0, 1, 2, 3), 0)
    (operation,) = graph["cc_op_info"]["operations"]  # type: ignore[index,call-overload]
    assert (operation["type"], operation["num_elements"]) == (0, 512)
    (comm,) = graph["comm_info"]  # type: ignore[misc]
    assert (comm["rank"], comm["rank_n"]) == (1, 4), "rank 0 is the second member"


def test_a_profile_of_images_is_refused(rota: Rota, tmp_path: Path) -> None:
    """Images hold bytes, not what they were composed from."""
    rota("lower", "allr", *FOUR, "-o", str(tmp_path / "out"))
    refused(rota("run", str(tmp_path / "out"), "--profile", str(tmp_path / "p")), "--profile: goes with")
    assert not (tmp_path / "p").exists()


# --- words that share tensors -----------------------------------------------------------------------------------------


def word(reads: int, writes: int, *, kind: EncOp = EncOp.ALLREDUCE, elements: int = 64, **more: Any) -> bytes:
    if kind is not EncOp.ALLREDUCE:
        elements //= 4
    fields: dict[str, Any] = {"alu_op": AluOp.BYPASS if kind is EncOp.ALLGATHER else AluOp.ADD}
    fields |= {"dtype": Dtype.BFLOAT16, "input_id": reads, "output_id": writes, "num_elements": elements} | more
    return encode_word(Word(kind=kind, **fields))


CARRIED = (
    word(7, 8)
    + word(8, 9)
    + word(9, 9)
    + word(9, 10, kind=EncOp.REDUCE_SCATTER)
    + word(10, 11, kind=EncOp.ALLGATHER)
    + word(7, 12)
)


def test_data_go_on_from_word_to_word(rota: Rota, tmp_path: Path) -> None:
    """Every rank gives 1, 4 ranks: two sums and one in place leave 64, a scatter 256, and a gather spreads it."""
    path, out = tmp_path / "words.bin", tmp_path / "out"
    path.write_bytes(CARRIED)
    for algorithm in ((), ("--algorithm", "RING")):
        ran = rota("run", str(path), "--ranks", "4", "--json", *algorithm)
        assert ran.code == 0
        assert [row["device_matches"] for row in json.loads(ran.out)["collectives"]] == [True] * 6
        assert rota("lower", str(path), "--ranks", "4", "-o", str(out), *algorithm).code == 0
        device = load(read_image_directory(out).images)
        ones = np.full((4, 64), 0x3F80, "<u2").view(np.uint8)
        left = device.run_program({"tensor.7": ones})
        assert left.keys() == {f"tensor.{handle}" for handle in (8, 9, 10, 11, 12)}
        values = {name: (value.view("<u2").astype(np.uint32) << 16).view(np.float32) for name, value in left.items()}
        for name, value in {"8": 4, "9": 64, "10": 256, "11": 256, "12": 4}.items():
            assert (values[f"tensor.{name}"] == value).all()


def test_sharing_survives_every_form(rota: Rota, tmp_path: Path) -> None:
    """Images, the words written with them and a NEFF of them all give what the stream gives."""
    path, out, neff = tmp_path / "words.bin", tmp_path / "out", tmp_path / "x.neff"
    path.write_bytes(CARRIED)
    assert rota("lower", str(path), "--ranks", "4", "-o", str(out), "--neff", str(neff)).code == 0
    assert (out / "words.bin").read_bytes() == CARRIED
    images = rota("run", str(out))
    assert (images.code, images.out.count("\n  right "), images.err) == (0, 6, "")
    assert rota("lower", str(neff), "-o", str(tmp_path / "again")).code == 0
    first, second = (json.loads((where / "manifest.json").read_text()) for where in (out, tmp_path / "again"))
    numbers = {f"tensor.{7 + i}": f"tensor.{i}" for i in range(6)}
    named = [(each["input"], each["output"]) for each in second["collectives"]]
    assert named == [(numbers[each["input"]], numbers[each["output"]]) for each in first["collectives"]]


HLO = """\
HloModule three, replica_count=4

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %r = bf16[] add(%x, %y)
}

ENTRY %main (p: bf16[16]) -> bf16[64] {
  %p = bf16[16]{0} parameter(0)
  %a = bf16[16]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
  %b = bf16[16]{0} all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %g = bf16[64]{0} all-gather(%b), replica_groups={{0,1,2,3}}, dimensions={0}
}
"""


def test_command_line_and_hlo_have_tensors_of_their_own(rota: Rota, tmp_path: Path) -> None:
    """Each collective its own, which the words written with them keep apart; groups are parts of one."""
    path, out = tmp_path / "m.hlo", tmp_path / "out"
    path.write_text(HLO)
    assert rota("lower", str(path), "-o", str(out)).code == 0
    names = [(each["input"], each["output"]) for each in json.loads((out / "manifest.json").read_text())["collectives"]]
    assert names == [(f"t{i}.in", f"t{i}.out") for i in range(3)]
    ran = rota("run", str(out / "words.bin"), "--ranks", "4", "--json")
    assert [row["refused"] for row in json.loads(ran.out)["collectives"]] == [None] * 3
    groups = ("--groups", "0-15;16-23,32-35,48-51", "--algorithm", "RING")
    assert rota("lower", "allr", *groups, "--size", "4K", "-o", str(out)).code == 0
    names = [(each["input"], each["output"]) for each in json.loads((out / "manifest.json").read_text())["collectives"]]
    assert names == [("t0.in", "t0.out")] * 2
    assert rota("run", str(out)).code == 0


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FP8_EXP4, Dtype.FP8_EXP5])
def test_sums_of_sums_stay_right(rota: Rota, tmp_path: Path, dtype: Dtype) -> None:
    """Images of a long way through one program are checked with inputs whose every sum is exact, in any type."""
    path, out = tmp_path / "words.bin", tmp_path / "out"
    path.write_bytes(b"".join(word(i, i + 1, dtype=dtype) for i in range(4)))
    assert rota("lower", str(path), "--ranks", "8", "--algorithm", "RING", "-o", str(out)).code == 0
    ran = rota("run", str(out))
    assert (ran.code, ran.out.count("\n  right ")) == (0, 4)
    assert ("is all 0" in ran.err) is (dtype is Dtype.FP8_EXP4), "240 is its largest"


def test_words_that_disagree(rota: Rota, tmp_path: Path) -> None:
    """A tensor has one size: the second word is refused with both named, and the others run."""
    path = tmp_path / "words.bin"
    path.write_bytes(word(7, 8) + word(8, 9, elements=32) + word(8, 9))
    ran = rota("run", str(path), "--ranks", "4", "--json")
    assert ran.code == 1
    reasons = [row["refused"] for row in json.loads(ran.out)["collectives"]]
    says = "word 2 reads 64 bytes of tensor 8, and word 1 writes 128 bytes; expected the same bytes, or bytes apart"
    assert reasons == [None, says, None]
    ran = rota("lower", str(path), "--ranks", "4", "-o", str(tmp_path / "out"))
    assert ran.code == 1
    assert f"words.bin:2: all_reduce refused: {says}" in ran.err


def test_a_handle_that_is_not_declared(rota: Rota, tmp_path: Path) -> None:
    """A NEFF declares its tensors."""
    path = tmp_path / "x.neff"
    path.write_bytes(container(files(target="cayman", pe=word(0, 7), sg=definition(var=variables(a=128, b=128)))))
    ran = rota("run", str(path), "--json")
    assert ran.code == 2
    (row,) = json.loads(ran.out)["collectives"]
    assert row["refused"] == "unknown tensor handle 7: the word writes it, and sg00/def.json declares 0 to 1"


def test_help_teaches_the_device_side(rota: Rota) -> None:
    """Examples of each option stand in the help, two or three of each kind."""
    run, lower = (" ".join(rota(command, "--help").out.split()) for command in ("run", "lower"))
    for example in ("--trace steps.jsonl", "--profile core_graph.pb", "rota run out", "rota run sb2sb --dtype bf16"):
        assert example in run
    for example in ("--size 64K --stages", "--log --rank 3", "rota lower sb2sb", "rota disasm move/core-0.bin"):
        assert example in lower


def test_streams_of_a_file(rota: Rota, tmp_path: Path) -> None:
    """Pairs on two streams: no mesh is selected, they run together, and a tensor of both is refused."""

    def write(*pairs: tuple[int, int, int]) -> str:
        values: dict[str, Any] = {"kind": EncOp.ALLREDUCE, "alu_op": AluOp.ADD, "dtype": Dtype.FP32}
        words = [
            encode_pair(Pair(stream_id=n, src0=variable(a, num=(1, 256)), dst=variable(b, num=(1, 256)), **values))
            for n, a, b in pairs
        ]
        (tmp_path / "streams.bin").write_bytes(b"".join(words))
        return str(tmp_path / "streams.bin")

    apart = write((0, 0, 1), (1, 2, 3))
    ran = rota("run", apart, "--ranks", "16")
    assert (ran.code, "2 collectives on 2 streams in 2 control entries" in ran.out) == (0, True)
    assert "MESH               no   2 streams" in rota("explain", apart, "--ranks", "16").out
    assert rota("lower", apart, "--ranks", "16", "-o", str(tmp_path / "out")).code == 0
    assert rota("run", str(tmp_path / "out")).out.count("right") == 2
    both = rota("run", write((0, 0, 1), (1, 1, 2)), "--ranks", "16")
    assert (both.code, both.err.count("nothing orders streams")) == (2, 1)


def test_more_communicators(rota: Rota) -> None:
    """Releases differ in how many groups a rank can be in."""
    wrong = rota("run", "all_reduce", "--ranks", "4", "--size", "1K", "--communicators", "17")
    assert (wrong.code, wrong.err) == (2, "rota: --communicators 17: expected 1 to 16, the most of any release\n")
