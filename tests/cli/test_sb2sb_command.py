"""`rota run sb2sb` and `rota lower sb2sb`: the move of a tensor in the state buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran

from rota.device import sb2sb as device
from rota.emit.sb2sb import Move, StateTensor, sb2sb_streams
from rota.isa.dtypes import Dtype

Rota = Callable[..., Ran]
MOVE = ("sb2sb", "--dtype", "bf16", "--count", "600")


def run(rota: Rota, *arguments: str) -> dict[str, Any]:
    """Return the document of a move that is exact."""
    ran = rota("run", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    document: dict[str, Any] = json.loads(ran.out)
    assert document["schema"] == 1
    assert document["exact"] is True
    return document


def streams(target: int, offset: int) -> tuple[bytes, ...]:
    """Return the words of the move that `MOVE` means."""
    tensors = [
        StateTensor(core=c, offset=at, num=(1, 1, 600), dtype=Dtype.BFLOAT16) for c, at in ((0, 0), (target, offset))
    ]
    return sb2sb_streams([[Move(*tensors)]], arch="cayman")


def test_to_the_partner(rota: Rota) -> None:
    """600 elements of 128 partitions: three words a core, of which one only receives; the same place by default."""
    document = run(rota, *MOVE)
    assert (document["platform"], document["lnc"]) == ("trn2.48xlarge", 2)
    assert (document["words"], document["bytes"]) == ({"0": 3, "1": 3}, 600 * 2 * 128)
    assert document["from"] == {"core": 0, "partition": 0, "offset": 0}
    assert document["to"] == {"core": 1, "partition": 0, "offset": 0}
    assert run(rota, *MOVE, "--from", "5")["to"]["core"] == 4
    assert run(rota, *MOVE, "--offset", "6")["to"]["offset"] == 6


def test_on_one_core(rota: Rota) -> None:
    """The target is the next 64 bytes behind the source, unless it is said; the partner has no words."""
    document = run(rota, *MOVE, "--from", "2", "--to", "2", "--offset", "10")
    assert (document["to"], document["words"]) == ({"core": 2, "partition": 0, "offset": 1216}, {"2": 3, "3": 0})
    assert run(rota, *MOVE, "--to", "0", "--to-offset", "1200")["to"]["offset"] == 1200
    alone = run(rota, *MOVE, "--lnc", "1", "--from", "3")
    assert (alone["to"]["core"], alone["words"]) == (3, {"3": 3})


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "int8", "fp16", "fp32", "uint64"])
def test_other_types_and_places(rota: Rota, dtype: str) -> None:
    """Any element type with a size, some partitions to others."""
    more = ("--channels", "32", "--partition", "64", "--to-partition", "32", "--to-offset", "24", "--seed", "3")
    document = run(rota, "sb2sb", "--dtype", dtype, "--count", "257", *more)
    assert document["to"] == {"core": 1, "partition": 32, "offset": 24}
    assert document["words"] == {"0": 2, "1": 2}


def test_text_and_log(rota: Rota) -> None:
    """One row for awk, and behind it the firmware's lines, of every word of every core."""
    ran = rota("run", *MOVE, "--log")
    head, names, row, *log = ran.out.splitlines()
    assert (head[0], names.split(), row.split()) == (
        "#",
        ["#", "words", "bytes", "exact"],
        ["0:3,1:3", "153600", "yes"],
    )
    buffers = [device.empty_state_buffer("cayman")] * 2
    ran_again = device.run_sb2sb(streams(1, 0), buffers, arch="cayman")
    assert log == [line for lines in ran_again.log for line in lines]
    assert sum(line.endswith("Decode : SB2SB_Collective") for line in log) == 6
    document = run(rota, *MOVE, "--log")
    assert document["log"] == {str(core): list(lines) for core, lines in enumerate(ran_again.log)}
    assert rota("run", *MOVE).out.splitlines() == [head, names, row]


def test_a_wrong_byte_is_exit_1(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device leaves is held against plain indexing."""

    def nothing(_: object, buffers: Any, **__: object) -> device.Exchanged:
        return device.Exchanged(tuple(buffers), device.np.zeros((2, 256), device.np.int64), ((), ()))

    monkeypatch.setattr(device, "run_sb2sb", nothing)
    ran = rota("run", *MOVE)
    assert (ran.code, ran.out.splitlines()[-1].split()[-1]) == (1, "NO")
    assert json.loads(rota("run", *MOVE, "--json").out)["exact"] is False


def test_lower_writes_a_file_a_core(rota: Rota, tmp_path: Path) -> None:
    """The words of each core that has some; `rota disasm` shows them, and `rota asm` gives the bytes back."""
    out = tmp_path / "move"
    assert rota("lower", *MOVE, "-o", str(out)).code == 0
    files = [out / f"core-{core}.bin" for core in (0, 1)]
    assert tuple(path.read_bytes() for path in files) == streams(1, 0)
    for path in files:
        listing = rota("disasm", str(path))
        assert (listing.code, listing.out.count("Sb2sbCollective")) == (0, 3)
        (tmp_path / "text").write_text(listing.out)
        assert rota("asm", str(tmp_path / "text"), "-o", str(tmp_path / "back")).code == 0
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert "src_num=1,1,88" in rota("disasm", str(files[0])).out
    document = json.loads(rota("lower", *MOVE, "--to", "0", "-o", str(out), "--json").out)
    assert (document["files"], document["words"]) == (["core-0.bin"], {"0": 3, "1": 0})
    assert sorted(path.name for path in out.iterdir()) == ["core-0.bin", "sb2sb.json"], "the earlier one is replaced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "move", "text"]
    assert "holds words of sb2sb; `rota disasm`" in rota("run", str(out)).err


def test_lower_overwrites_only_its_own(rota: Rota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of something else is left alone; one that cannot be replaced stays what it was."""
    foreign, out = tmp_path / "foreign", tmp_path / "out"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("x")
    assert "holds more than words" in rota("lower", *MOVE, "-o", str(foreign)).err
    rota("lower", "allr", "--ranks", "2", "--size", "1K", "-o", str(out))
    before = sorted(path.name for path in out.iterdir())
    assert rota("lower", *MOVE, "-o", str(out)).code == 2
    assert sorted(path.name for path in out.iterdir()) == before
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    move = tmp_path / "move"
    assert rota("lower", *MOVE, "-o", str(move)).code == 0
    names = sorted(path.name for path in move.iterdir())

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    ran = rota("lower", *MOVE, "--to", "0", "-o", str(move))
    assert (ran.code, ran.out) == (2, "")
    assert "No space left on device" in ran.err
    assert sorted(path.name for path in move.iterdir()) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "move", "out"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["needs --count"]),
        (("--count", "0"), ["--count 0", "at least 1"]),
        (("--count", "9", "--to", "5"), ["--to 5: expected core 0 or its partner 1"]),
        (("--count", "9", "--to", "1", "--lnc", "1"), ["--to 1: expected core 0"]),
        (("--count", "9", "--from", "9"), ["core", "0 to 7"]),
        (("--count", "9", "--dtype", "fp33"), ["fp33", "bf16"]),
        (("--count", "9", "--channels", "129"), ["active channels"]),
        (("--count", "9", "--partition", "5"), ["start partition"]),
        (("--count", "9", "--offset", "-2"), ["state buffer"]),
        (("--count", "1000000"), ["state buffer"]),
        (("--count", "9", "--to", "0", "--to-offset", "4"), ["order", "share bytes"]),
        (("--count", "9", "--platform", "trn1.32xlarge"), ["core version", "sunda"]),
        (("--count", "9", "--platform", "trn9"), ["trn9"]),
        (("--count", "9", "--size", "4K"), ["--size: goes with collectives"]),
        (("--count", "9", "--in-place"), ["--in-place: goes with collectives"]),
        (("--count", "9", "--seed", "-1"), ["--seed -1"]),
    ],
)
def test_refused_with_one_sentence(rota: Rota, tmp_path: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    """What makes no move gets one sentence, exit code 2 and no output, from both commands."""
    for command in (("run",), ("lower", "-o", str(tmp_path / "out"))):
        ran = rota(*command, "sb2sb", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("rota: ")
        assert len(ran.err.splitlines()) == 1
        assert all(word in ran.err for word in words), ran.err
    assert not list(tmp_path.iterdir())


def test_options_that_are_only_for_a_move(rota: Rota, tmp_path: Path) -> None:
    """A collective has no cores, and `lower` no log of a move."""
    for option in (
        "--from",
        "--to",
        "--count",
        "--channels",
        "--partition",
        "--to-partition",
        "--offset",
        "--to-offset",
    ):
        ran = rota("run", "allr", "--ranks", "2", option, "0")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"rota: {option}: goes with sb2sb, the move of a tensor in the state buffer\n"
    assert "--log" in rota("lower", *MOVE, "--log", "-o", str(tmp_path / "out")).err
    for option in ("--stages", "--neff"):
        more = (option, "x") if option == "--neff" else (option,)
        assert f"{option}: goes with collectives" in rota("lower", *MOVE, *more, "-o", str(tmp_path / "out")).err
    assert not list(tmp_path.iterdir())
