"""`rota explain`, `rota lower` and `rota disasm`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from rota.device.load import load_image

Rota = Callable[..., Ran]


def test_explain_names_rule_and_source(rota: Rota) -> None:
    """Every line of the decision says why, and where that is from."""
    ran = rota(
        "explain", "all_reduce", "--platform", "trn1.32xlarge", "--ranks", "32", "--size", "64M", "--dtype", "fp32"
    )
    assert ran.code == 0
    lines = ran.out.splitlines()
    rules = [
        line
        for line in lines
        if line.split()[:1]
        and line.split()[0] in ("HIER", "INTRA_RDH", "MESH", "KANGARING", "SINGLE_CYCLE_RING", "INTER_RDH", "RING")
    ]
    assert len(rules) == 7
    assert all("[" in line and "§" in line for line in rules)
    assert "selected   RING" in lines
    assert any("4 channels" in line and "§8" in line for line in lines)
    assert sum(line.startswith("  channel ") for line in lines) == 4


def test_explain_json(rota: Rota) -> None:
    """The document has the decision, every verdict, every limit row and which one was read."""
    document = json.loads(rota("explain", "allr", "--size", "16K", "--json").out)
    assert document["schema"] == 1
    assert (document["algorithm"], document["composed"]) == ("SINGLE_STEP_MESH", "RING")
    assert [row["name"] for row in document["limits"] if row["read"]] == ["single-step"]
    assert all(verdict["reason"] and verdict["source"] for verdict in document["verdicts"])
    assert document["settings"]["NEURON_RT_CC_CHANNEL_BUFFER_N"] == 8
    assert len(document["rings"][0]["channels"]) == 4


def test_explain_speaks_of_both_sizes(rota: Rota) -> None:
    """For a gather SELECT compares the shard, and the text prints both."""
    out = rota("explain", "allg", "--ranks", "64", "--size", "64M").out
    assert "67108864 bytes (64M)" in out
    assert "1048576 bytes (1M)" in out


def test_lower_then_disasm_shows_what_the_schedule_has(rota: Rota, tmp_path: Path) -> None:
    """Words, descriptors and slot programs are shown, and the counts match the schedule."""
    out = tmp_path / "out"
    lowered = rota("lower", "all_reduce", "--ranks", "4", "--size", "64K", "-o", str(out), "--json")
    (entry,) = json.loads(lowered.out)["lowered"]
    rows = 4 * 2 * 2 * 2 * 4  # ranks, channels, halves, 2N
    assert (entry["images"], entry["rows"]) == (4, rows)
    listing = rota("disasm", str(out / "rank-000.img"))
    assert listing.code == 0
    parts = [line.split()[1] for line in listing.out.splitlines()]
    assert {"meta", "control", "slot", "channel", "program", "tx", "rx", "word", "buffer", "preset"} <= set(parts)
    document = json.loads(rota("disasm", str(out / "rank-000.img"), "--json").out)
    repeats = sum(record.get("repeat", 0) for record in document["records"])
    assert repeats == rows // 4
    kinds = [record["part"].split()[0] for record in document["records"]]
    totals = json.loads(rota("disasm", str(out), "--json").out)["images"]
    assert (kinds.count("tx"), kinds.count("rx")) == (totals[0]["tx"], totals[0]["rx"])
    assert sum(total["tx"] for total in totals) == entry["tx"]
    words = rota("disasm", str(out / "words.bin"))
    assert "ALLREDUCE" in words.out
    assert "elements=32768" in words.out
    assert all(load_image(path.read_bytes()).ranks == 4 for path in out.glob("*.img"))


def test_lower_a_program_makes_a_directory_each(rota: Rota, tmp_path: Path) -> None:
    """Every collective of a file gets its own directory, and `disasm` of the whole lists all images."""
    path = Path(__file__).resolve().parents[2] / "examples" / "tensor_parallel.hlo"
    ran = rota("lower", str(path), "-o", str(tmp_path / "out"))
    assert ran.code == 0
    assert len(list((tmp_path / "out").glob("*/manifest.json"))) == 17
    assert len(rota("disasm", str(tmp_path / "out")).out.splitlines()) == 1 + 17 * 64


def test_lower_overwrites_only_its_own(rota: Rota, tmp_path: Path) -> None:
    """A directory with foreign files is refused and left alone; an earlier result is replaced."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("x")
    ran = rota("lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(tmp_path / "foreign"))
    assert ran.code == 2
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.txt"]
    for ranks in ("4", "2"):
        assert rota("lower", "allr", "--ranks", ranks, "--size", "1K", "-o", str(tmp_path / "out")).code == 0
    assert len(list((tmp_path / "out").glob("*.img"))) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "out"]


def test_disasm_refuses_what_it_is_not_for(rota: Rota, tmp_path: Path) -> None:
    """An HLO file, a damaged image, a missing file."""
    path = Path(__file__).resolve().parents[2] / "examples" / "data_parallel.hlo"
    assert "text" in rota("disasm", str(path)).err
    assert rota("disasm", str(tmp_path / "missing")).code == 2
    rota("lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(tmp_path / "out"))
    image = bytearray((tmp_path / "out" / "rank-000.img").read_bytes())
    image[700] ^= 1
    (tmp_path / "bad.img").write_bytes(image)
    ran = rota("disasm", str(tmp_path / "bad.img"))
    assert (ran.code, ran.out) == (2, "")
    assert "SHA-256" in ran.err


@pytest.mark.parametrize("command", ["run", "explain", "lower"])
def test_help_teaches(rota: Rota, command: str) -> None:
    """Help has two examples and every common flag."""
    ran = rota(command, "--help")
    assert ran.code == 0
    assert ran.out.count("  rota ") >= 2
    for flag in (
        "--platform",
        "--ranks",
        "--groups",
        "--size",
        "--dtype",
        "--op",
        "--integer-as-fp32",
        "--seed",
        "--json",
    ):
        assert flag in ran.out


def test_top_help_and_version(rota: Rota) -> None:
    """Without a command the help is printed; the version says which arithmetic is in use."""
    assert rota().out == rota("--help").out
    assert rota("--help").out.count("  rota run") == 2
    assert rota("--version").out.startswith("rota 0.")
