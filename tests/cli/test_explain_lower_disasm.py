"""`rota explain`, `rota lower`, `rota disasm` and `rota asm`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

from rota.device.load import load_image
from rota.request import parse_request

Rota = Callable[..., Ran]


def test_explain_names_rule_and_source(rota: Rota) -> None:
    """Every line of the decision says why, and with --sources where that is from."""
    asked = (
        "explain",
        "all_reduce",
        "--platform",
        "trn1.32xlarge",
        "--ranks",
        "32",
        "--size",
        "64M",
        "--dtype",
        "fp32",
    )
    ran = rota(*asked, "--sources")
    assert ran.code == 0
    assert "§" not in rota(*asked).out, "without it there are none"
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
    assert (document["algorithm"], document["composed"]) == ("SINGLE_STEP_MESH", "SINGLE_STEP_MESH")
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
    asked = ("lower", "all_reduce", "--ranks", "4", "--size", "64K", "--algorithm", "RING", "-o", str(out))
    entry = json.loads(rota(*asked, "--json").out)
    rows = 4 * 2 * 2 * 2 * 4  # ranks, channels, halves, 2N
    assert (entry["images"], entry["rows"]) == (4, rows)
    listing = rota("disasm", str(out / "rank-000.img"))
    assert listing.code == 0
    records = {line.split()[1] for line in listing.out.splitlines()}
    assert {"image", "section", "meta", "ring_control", "slot", "end", "channel", "program"} <= records
    assert {"tx", "rx", "feed", "preset", "buffer", "PseudoTriggerCol", "digest"} <= records
    document = json.loads(rota("disasm", str(out / "rank-000.img"), "--json").out)
    repeats = sum(record["fields"].get("repeat", 0) for record in document["records"] if "fields" in record)
    assert repeats == rows // 4
    kinds = [record["record"] for record in document["records"]]
    totals = json.loads(rota("disasm", str(out), "--json").out)["images"]
    assert (kinds.count("tx"), kinds.count("rx")) == (totals[0]["tx"], totals[0]["rx"])
    assert sum(total["tx"] for total in totals) == entry["tx"]
    words = rota("disasm", str(out / "words.bin"))
    assert "kind=ALL_REDUCE" in words.out
    assert "elements=32768" in words.out
    assert all(load_image(path.read_bytes()).ranks == 4 for path in out.glob("*.img"))


def test_what_is_lowered_is_what_is_selected(rota: Rota, tmp_path: Path) -> None:
    """A mesh is a mesh: events and a mesh entry, no channel."""
    out = tmp_path / "out"
    document = json.loads(rota("lower", "all_reduce", "--ranks", "4", "--size", "64K", "-o", str(out), "--json").out)
    (collective,) = document["collectives"]
    assert collective["selected"] == collective["algorithm"] == "MESH"
    records = {line.split()[1] for line in rota("disasm", str(out / "rank-000.img")).out.splitlines()}
    assert {"mesh_control", "event"} <= records
    assert "channel" not in records


def test_lower_makes_one_program_of_a_file(rota: Rota, tmp_path: Path) -> None:
    """All collectives in one directory: one image a rank, and a manifest that says what they are."""
    path = Path(__file__).resolve().parents[2] / "examples" / "tensor_parallel.hlo"
    out = tmp_path / "out"
    ran = rota("lower", str(path), "-o", str(out), "--seed", "5", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert sorted(each.name for each in out.iterdir()) == sorted(
        ["manifest.json", "words.bin", *(f"rank-{rank:03d}.img" for rank in range(64))]
    )
    document, manifest = json.loads(ran.out), json.loads((out / "manifest.json").read_text())
    assert document["schema"] == manifest["schema"] == 2
    assert (manifest["platform"], manifest["nodes"], manifest["lnc"], manifest["seed"]) == ("trn2.48xlarge", 1, 2, 5)
    assert [image["rank"] for image in manifest["images"]] == list(range(64))
    assert len(manifest["collectives"]) == 17
    for collective in manifest["collectives"]:
        assert {"request", "selected", "algorithm", "input", "output"} <= set(collective)
    assert (document["collectives"], document["resources"]) == (manifest["collectives"], manifest["resources"])
    found = manifest["resources"]
    assert (found["collectives"], document["images"]) == (17, 64)
    assert document["tx"] + document["rx"] == found["descriptors"]
    requests = [parse_request(collective["request"]) for collective in manifest["collectives"]]
    groups = {group for request in requests for group in request.groups if 0 in group}
    assert found["communicators"] == len(groups) == 3
    assert len(rota("disasm", str(out)).out.splitlines()) == 1 + 64
    listing = rota("disasm", str(out / "words.bin"))
    assert listing.code == 0
    assert listing.out.count("PseudoTriggerCol") == 17


def test_lower_says_what_the_program_takes(rota: Rota, tmp_path: Path) -> None:
    """A line of totals, and comments for its resources."""
    path = Path(__file__).resolve().parents[2] / "examples" / "tensor_parallel.hlo"
    lines = rota("lower", str(path), "-o", str(tmp_path / "out")).out.splitlines()
    assert lines[0].split() == ["#", "images", "rows", "tx", "rx", "bytes", "directory"]
    assert lines[1].split()[0] == "64"
    assert all(line.startswith("# ") for line in lines[2:])
    assert lines[2].startswith("# program: 17 collectives in ")
    assert "communicators" in lines[3]


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
    """An HLO file, a missing file, a listing, a file of no kind: exit code 2 and one sentence."""
    path = Path(__file__).resolve().parents[2] / "examples" / "data_parallel.hlo"
    assert "text" in rota("disasm", str(path)).err
    assert rota("disasm", str(tmp_path / "missing")).code == 2
    assert rota("disasm", str(tmp_path / "missing"), "--as", "tx").code == 2
    (tmp_path / "thesis.txt").write_text("once upon a time")
    ran = rota("disasm", str(tmp_path / "thesis.txt"))
    assert (ran.code, ran.out) == (2, "")
    (tmp_path / "words.txt").write_text("; rota stream 1\n" + " " * 48)
    assert "`rota asm`" in rota("disasm", str(tmp_path / "words.txt")).err


def test_disasm_shows_a_damaged_image(rota: Rota, tmp_path: Path) -> None:
    """The listing goes on, the damage is named in its place, and the exit code is 1; so in the list of a directory."""
    out = tmp_path / "out"
    rota("lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(out))
    image = bytearray((out / "rank-000.img").read_bytes())
    image[700] ^= 1
    (out / "rank-000.img").write_bytes(image)
    ran = rota("disasm", str(out / "rank-000.img"))
    assert ran.code == 1
    assert ran.out.splitlines()[-1].split()[1] == "digest"
    assert "SHA-256" in ran.out.splitlines()[-1]
    document = json.loads(rota("disasm", str(out / "rank-000.img"), "--json").out)
    assert document["damaged"] == sum(record.get("damaged", False) for record in document["records"]) > 0
    ran = rota("disasm", str(out))
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["#", "-", "1"]
    assert "SHA-256" in ran.out.splitlines()[1]
    images = json.loads(rota("disasm", str(out), "--json").out)["images"]
    assert ["damaged" in image for image in images] == [True, False]


def test_asm_turns_a_listing_into_the_bytes(rota: Rota, tmp_path: Path) -> None:
    """Images, streams with damage, and bare parts under `--as` come back byte for byte."""
    out = tmp_path / "out"
    rota("lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(out))
    image, words = (out / "rank-000.img").read_bytes(), (out / "words.bin").read_bytes()
    damaged = words + bytes(64) + words[:63]
    for name, data, options, code in (
        ("image", image, (), 0),
        ("image raw", image, ("--raw",), 0),
        ("words", words, (), 0),
        ("damaged", damaged, (), 1),
        ("stream", image, ("--as", "stream"), 1),
        ("slot", image[1024:1088], ("--as", "slot", "--raw"), 0),
        ("tx", image, ("--as", "tx"), 1),
    ):
        (tmp_path / "data").write_bytes(data)
        ran = rota("disasm", str(tmp_path / "data"), *options)
        assert ran.code == code, name
        (tmp_path / "text").write_text(ran.out)
        ran = rota("asm", str(tmp_path / "text"), "-o", str(tmp_path / "back"))
        assert (ran.code, ran.out, ran.err) == (0, "", ""), name
        assert (tmp_path / "back").read_bytes() == data, name
    assert "truncated: 63 of 64 bytes" in rota("disasm", str(_file(tmp_path, damaged))).out
    ran = rota("asm", str(tmp_path / "text"), "-o", str(tmp_path / "back"), "--json")
    assert json.loads(ran.out) == {"schema": 1, "file": str(tmp_path / "back"), "bytes": len(image)}


def _file(directory: Path, data: bytes) -> Path:
    path = directory / "data"
    path.write_bytes(data)
    return path


def test_asm_refuses_in_one_sentence(rota: Rota, tmp_path: Path) -> None:
    """Text that means nothing, bytes that are no text, and files that cannot be read or written: exit code 2."""
    (tmp_path / "text").write_text("; rota stream 1\nNop colour=3\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "good").write_text("; rota stream 1\nNop\n")
    for source, target, message in (
        ("text", "back", "line 2: Nop has no field 'colour'"),
        ("bytes", "back", "is no text"),
        ("missing", "back", "cannot be read"),
        ("good", "no/such/place", "cannot be written"),
    ):
        ran = rota("asm", str(tmp_path / source), "-o", str(tmp_path / target))
        assert (ran.code, ran.out) == (2, ""), source
        assert message in ran.err
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "back").exists()


def test_colour_is_for_terminals(rota: Rota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes appear on a terminal, unless NO_COLOR is set, and never in JSON or in a file."""
    path = _file(tmp_path, bytes(64))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in rota("disasm", str(path)).out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[31m" in rota("disasm", str(path)).out
    assert "\x1b" not in rota("disasm", str(path), "--json").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rota("disasm", str(path)).out


@pytest.mark.parametrize("command", ["run", "explain", "lower", "check", "verify"])
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
        "--nodes",
        "--lnc",
        "--set",
        "--any-group",
        "--staging",
    ):
        assert flag in ran.out


def test_top_help_and_version(rota: Rota) -> None:
    """Without a command the help is printed; the version says which arithmetic is in use."""
    assert rota().out == rota("--help").out
    assert rota("--help").out.count("  rota run") == 2
    assert rota("--version").out.startswith("rota 0.")
