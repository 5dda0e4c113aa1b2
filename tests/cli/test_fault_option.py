"""`rota run --fault`: what can go wrong, what the device then says, and what is refused before it is tried."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Ran

from rota.errors import UsageError
from rota.faults import FORMS, Fault, FaultKind, parse_fault

Rota = Callable[..., Ran]
RING = ("--ranks", "4", "--size", "4K", "--algorithm", "RING")
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
  %b = bf16[64]{0} all-gather(%a), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c = bf16[64]{0} all-reduce(%b), replica_groups={{0,1,2,3}}, to_apply=%add
}
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return the path of a program of three collectives on four ranks."""
    path = tmp_path / "m.hlo"
    path.write_text(HLO)
    return str(path)


def run(rota: Rota, *faults: str, source: tuple[str, ...] = ("all_reduce", *RING)) -> Ran:
    """Run with faults."""
    return rota("run", *source, *(part for fault in faults for part in ("--fault", fault)))


def sentence(ran: Ran) -> str:
    """Return the first line of what the device says."""
    said = [line for line in ran.err.splitlines() if line.startswith("rota: ") and not line.startswith("rota: fault ")]
    return said[0].removeprefix("rota: ")


# --- words ------------------------------------------------------------------------------------------------------------


def test_help_lists_every_kind_in_one_line(rota: Rota) -> None:
    """Without a SOURCE, and nothing is run."""
    ran = rota("run", "--fault", "help")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert [line.partition(":")[0] for line in lines] == [kind.value for kind in FaultKind]
    assert all(len(line.split("  ")) > 1 for line in lines)
    assert "--fault" in rota("run", "--help").out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo", "expected KIND:key=value,... with one of drop, double"),
        ("foo:rank=1", "--fault help lists them"),
        ("drop", "rank= is missing, expected drop:rank=R[,collective=K][,nth=N]"),
        ("drop:", "rank= is missing"),
        ("drop:rank", "got 'rank', expected drop:rank=R"),
        ("drop:rank=1,rank=2", "got 'rank=2'"),
        ("drop:rank=1,ticks=2", "got 'ticks=2'"),
        ("drop:rank=x", "rank=x, expected a whole number below 2^31"),
        ("drop:rank=-1", "rank=-1, expected a whole number"),
        ("drop:rank=²", "expected a whole number"),
        ("delay:rank=1", "ticks= is missing"),
        ("late:rank=1,ticks=99999999999999999999999", "expected a whole number below 2^31"),
        ("flip:rank=1,section=text,byte=0,bit=0", "section text, expected one of tx, rx, ctrl"),
        ("flip:rank=1,section=tx,byte=0,bit=8", "bit 8, expected 0 to 7"),
        ("flip:rank=1,section=tx,byte=99999999,bit=0", "rank 1 has "),
        ("swap:rank=1,collectives=0", "expected two numbers, for example 0+1"),
        ("swap:rank=1,collectives=0+0", "expected two different ones"),
        ("swap:rank=1,collectives=0+1", "no collective 1 in the program, which has 1 collective, numbered from 0"),
        ("skip:rank=1,collective=7", "no collective 7"),
        ("drop:rank=4", "no rank 4 in the program, which has 0 to 3"),
        ("drop:rank=1,collective=1", "no collective 1"),
        ("drop:rank=1,nth=9999", "signals, numbered from 0"),
        ("credits:rank=1,value=2147483647", "expected at most 1073741823"),
        ("flip:rank=1,section=network,byte=0,bit=0", "rank 1 has 0 bytes of network"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(rota: Rota, text: str, words: str) -> None:
    """Exit code 2 and nothing on stdout; the sentence says what is expected."""
    ran = run(rota, text)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"rota: --fault {text[:8]}")
    assert len(ran.err.splitlines()) == 1
    assert words in ran.err


def test_faults_that_do_not_go_together(rota: Rota, program: str) -> None:
    """What no loader checks cannot be checked for a flipped bit; what is left out cannot be swapped."""
    skip, flip = "skip:rank=1,collective=1", "flip:rank=2,section=tx,byte=0,bit=0"
    for faults, words in (
        ((skip, flip), "does not go with skip or swap"),
        ((skip, "drop:rank=1,collective=0"), "collective= does not go with skip or swap"),
        ((skip, "swap:rank=1,collectives=0+1"), "rank 1 skips one of them"),
    ):
        ran = run(rota, *faults, source=(program,))
        assert ran.code == 2
        assert words in ran.err
    ran = run(rota, "credits:rank=1", source=("all_reduce", "--ranks", "4", "--algorithm", "MESH"))
    assert (ran.code, ran.out) == (2, "")
    assert "rank 1 starts with no credits" in ran.err
    ran = run(rota, "skip:rank=9,collective=0", source=("allr", "--groups", "0-3;4-7", "--size", "4K"))
    assert "no rank 9 in the program, which has 0 to 7" in ran.err
    ran = rota("run", "sb2sb", "--count", "8", "--fault", "drop:rank=0")
    assert ran.code == 2
    assert "--fault" in ran.err


@pytest.mark.parametrize("kind", FaultKind)
def test_what_a_fault_prints_is_the_fault(kind: FaultKind) -> None:
    """Every key of every kind comes back."""
    values = {"section": "rx", "collectives": "3+1"}
    keys = (*FORMS[kind].needs, *FORMS[kind].takes)
    text = f"{kind.value}:" + ",".join(f"{key}={values.get(key, i)}" for i, key in enumerate(keys))
    fault = parse_fault(text)
    assert isinstance(fault, Fault)
    assert parse_fault(str(fault)) == fault


TEXTS = st.one_of(
    st.text(max_size=40),
    st.builds(
        lambda kind, pairs: f"{kind}:{','.join(f'{key}={value}' for key, value in pairs)}",
        st.sampled_from([kind.value for kind in FaultKind]),
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["rank", "collective", "nth", "ticks", "section", "byte", "bit", "collectives", "tick"]
                ),
                st.one_of(
                    st.integers(-2, 1 << 40).map(str), st.sampled_from(["tx", "0+1", "", "+", "\u0663", "1" * 30])
                ),
            ),
            max_size=5,
        ),
    ),
)


@given(text=TEXTS)
def test_any_text_is_a_fault_or_a_sentence(text: str) -> None:
    """Whatever is written: a fault that says the same, or one sentence."""
    try:
        fault = parse_fault(text)
    except UsageError:
        return
    assert parse_fault(str(fault)) == fault


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("drop:rank=2", "the signal of rank 2 channel 0 row "),
        ("drop:rank=2,collective=0,nth=0", "the signal of rank 2 channel 1 row 0 of operation 0 to semaphore 8 of "),
        ("double:rank=2", " away from its initial value: the signal of rank 2 channel 0 row "),
        ("kill:rank=2,tick=4", "rank 2 was killed at tick 4; ranks 0, 1, 3 wait for it"),
        ("kill:rank=2", "rank 2 was killed at tick "),
        ("credits:rank=2", "rank 2 channel 1 waits for credit (semaphore 9 of TOP_SP 2) to reach 2, it is 0; rank 1, "),
        ("flip:rank=1,section=ctrl,byte=0,bit=0", "the loader refuses the program with its faults: image of rank 1: "),
        ("flip:rank=1,section=rx,byte=3,bit=7", "image of rank 1: "),
    ],
)
def test_the_device_says_what_is_wrong(rota: Rota, fault: str, words: str) -> None:
    """Exit code 1, no table, and the rank at fault in the first line."""
    ran = run(rota, fault)
    assert (ran.code, ran.out) == (1, "")
    assert words in sentence(ran)


@pytest.mark.parametrize(
    "fault", ["late:rank=1,ticks=1000000000", "delay:rank=1,ticks=1000000000", "credits:rank=1,value=3"]
)
def test_what_does_no_harm(rota: Rota, fault: str) -> None:
    """A late rank, a late signal, a credit less: every result is right, and that is said."""
    ran = run(rota, fault)
    assert ran.code == 0
    assert " equal " in ran.out
    assert "rota: --fault: every result is right nevertheless\n" in ran.err


def test_a_wrong_result_is_reported(rota: Rota) -> None:
    """Bytes read from another place: nothing is stuck, and the comparison says no."""
    wrong = []
    for byte in range(8, 400, 16):  # of the addresses of descriptors
        ran = run(rota, f"flip:rank=1,section=tx,byte={byte},bit=7")
        wrong += [ran] if ran.out else []
        assert ran.code == 1
    assert wrong
    assert all(" DIFFER " in ran.out for ran in wrong)


def test_several_faults_and_what_was_done(rota: Rota) -> None:
    """Each is named with what it meant; the last to die is not the first to be blamed."""
    ran = run(rota, "delay:rank=1,ticks=3", "drop:rank=3,nth=1", "late:rank=0,ticks=5")
    assert ran.code == 1
    notes = [line for line in ran.err.splitlines() if line.startswith("rota: fault ")]
    assert notes[0].startswith("rota: fault delay:rank=1,ticks=3: the signal of rank 1 channel 0 row ")
    assert notes[1].startswith("rota: fault drop:rank=3,nth=1: the signal of rank 3 channel 1 row 0 of operation 0 to ")
    assert sentence(ran).startswith("the signal of rank 3 channel 1 row 0 of operation 0 to ")


def test_ranks_are_those_of_the_machine(rota: Rota) -> None:
    """In what is asked and in what is said."""
    asked = ("allr", "--groups", "4-7", "--size", "4K")
    ran = run(rota, "kill:rank=6,tick=0", source=asked)
    assert sentence(ran) == "rank 6 was killed at tick 0; ranks 4, 5, 7 wait for it"
    assert "no rank 2 in the program, which has 4 to 7" in run(rota, "kill:rank=2", source=asked).err


# --- programs that differ ---------------------------------------------------------------------------------------------


def test_programs_that_differ_are_refused_before_anything_runs(rota: Rota, program: str) -> None:
    """Exit code 1 with the verifier's finding: fewer operations, another order, a rank that is missing."""
    for fault, rule in (
        ("skip:rank=2,collective=1", "order_mismatch"),
        ("skip:rank=2,collective=2", "missing_rank"),
        ("swap:rank=2,collectives=0+1", "order_mismatch"),
    ):
        ran = run(rota, fault, source=(program,))
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith(f"rota: {rule}: group [0, 1, 2, 3] call ")
        assert "rank 2" in ran.err
        assert "--no-verify runs it nevertheless" in ran.err


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "skip:rank=2,collective=1",
            "rank 2 never entered group [0..3] in operation 1; its program has 2 operations, the others 3",
        ),
        (
            "skip:rank=2,collective=2",
            "rank 2 never entered group [0..3] in operation 2; its program has 2 operations, the others 3",
        ),
        (
            "swap:rank=2,collectives=0+1",
            "rank 2 has its operations in another order than the others: in operation 0 rank ",
        ),
    ],
)
def test_without_the_proof_the_device_says_it(rota: Rota, program: str, fault: str, words: str) -> None:
    """The same programs end in the stuck report, which says which collectives the operations are."""
    ran = rota("run", program, "--no-verify", "--fault", fault)
    assert (ran.code, ran.out) == (1, "")
    assert sentence(ran).startswith(words)
    number = 1 if "collective=1" in fault else 2 if "collective=2" in fault else 0
    kind = ("all_reduce bf16 sum 16", "all_gather bf16 - 64", "all_reduce bf16 sum 64")[number]
    assert f"\n  operation {number} is of collective {number}: {kind} 0,1,2,3\n" in ran.err
    assert "\n  fix: " in ran.err


def test_a_signal_of_one_collective(rota: Rota, program: str) -> None:
    """Collectives are numbered as in the program, and the device's operations with them."""
    for collective in range(3):
        ran = run(rota, f"drop:rank=1,collective={collective}", source=(program, "--algorithm", "RING"))
        assert f"of operation {collective} to semaphore" in ran.err.splitlines()[0]


# --- images on disk ---------------------------------------------------------------------------------------------------


def test_images_on_disk_take_faults_too(rota: Rota, program: str, tmp_path: Path) -> None:
    """All of the run and of the images; programs are lowered already. The files stay as they are."""
    out = tmp_path / "out"
    assert rota("lower", program, "--algorithm", "RING", "-o", str(out)).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    source = (str(out),)
    assert "was dropped" in run(rota, "drop:rank=1,collective=1", source=source).err
    assert "was killed at tick 3" in run(rota, "kill:rank=1,tick=3", source=source).err
    assert "waits for credit" in sentence(run(rota, "credits:rank=1", source=source))
    assert "the loader refuses" in run(rota, "flip:rank=1,section=ctrl,byte=0,bit=0", source=source).err
    late = run(rota, "late:rank=1,ticks=20", source=source)
    assert (late.code, late.out.count("  right ")) == (0, 3)
    assert "every result is right nevertheless" in late.err
    skip = run(rota, "skip:rank=1,collective=1", source=source)
    assert skip.code == 1
    assert "rank 1" in skip.err
    ran = rota("run", str(out), "--no-verify", "--fault", "skip:rank=1,collective=1")
    assert (ran.code, ran.out) == (2, "")
    assert "is lowered already; give the SOURCE instead" in ran.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_slow_rank_of_a_permute_shows_in_the_trace(rota: Rota, tmp_path: Path) -> None:
    """Results are right; the first and the last ticks of the ranks say who was late, and who waited for it."""
    trace = tmp_path / "t.jsonl"
    pairs = ("permute", "--pairs", "0>1,1>2,2>3,3>0", "--size", "4K", "--trace", str(trace), "--json")
    ran = run(rota, "late:rank=2,ticks=500", source=pairs)
    document = json.loads(ran.out)
    assert ran.code == 0
    spans = {rank: span for span in document["trace"]["spans"] for rank in span["ranks"]}
    assert [rank for rank in range(4) if spans[rank]["first"] >= 500] == [2]
    assert spans[3]["last"] > 500, "it receives from rank 2"
