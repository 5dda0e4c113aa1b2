"""`rota check`: groups, pairs and programs; legal or not, why, the runtime's words, and what is near."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran

Rota = Callable[..., Ran]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEYS = {"legal", "reason", "runtime_message", "warnings", "channels", "suggestions", "notes"}
UNSUPPORTED = "Unsupported topology. Supported number of Neuron Cores is 1, 2, 8, 16 or a multiple of 32"
POD_MESH = "node_n == 1 || (rank_n == 4 && enable_pod)"


def one(ran: Ran) -> dict[str, Any]:
    """Return the document about one group or one list of pairs; the exit code says the same."""
    document: dict[str, Any] = json.loads(ran.out)
    assert document.pop("schema") == 1
    assert set(document) == KEYS
    assert document["reason"]
    assert ran.code == (0 if document["legal"] else 1)
    assert ran.err == ""
    return document


@pytest.fixture
def check(rota: Rota) -> Callable[..., dict[str, Any]]:
    """Run `rota check` about one thing, and return what it says."""
    return lambda platform, *arguments: one(rota("check", "--platform", platform, *arguments, "--json"))


Check = Callable[..., dict[str, Any]]


# --- asked by users ---------------------------------------------------------------------------------------------------


def test_the_whole_of_an_inf2(check: Check) -> None:
    """24 ranks of inf2.48xlarge are a ring of two channels, 12 of inf2.24xlarge a folded chain of one."""
    for platform, ranks, channels in (("inf2.48xlarge", "24", 2), ("inf2.24xlarge", "12", 1)):
        found = check(platform, "--ranks", ranks)
        assert (found["legal"], found["channels"], found["warnings"]) == (True, channels, []), platform


def test_a_group_of_24_on_a_machine_of_12(check: Check) -> None:
    """A rank that the machine does not have is named, and the whole machine is offered."""
    found = check("inf2.24xlarge", "--groups", "0-23")
    assert not found["legal"]
    assert "rank 12 is not on inf2.24xlarge" in found["reason"]
    assert list(range(12)) in found["suggestions"]


@pytest.mark.parametrize(
    ("groups", "legal", "channels", "near"),
    [
        ("0-2", False, 0, [[0, 1], [0, 1, 2, 3]]),
        ("0-3", True, 1, []),
        ("0-5", True, 1, [list(range(4)), list(range(8))]),
        ("0-11", True, 2, [list(range(8)), list(range(16))]),
        ("0-23", True, 2, [list(range(16)), list(range(32))]),
    ],
)
def test_odd_counts_on_trn1(check: Check, groups: str, legal: bool, channels: int, near: list[list[int]]) -> None:
    """3 ranks are refused, 4 adjacent ones are fine, 6, 12 and 24 are wired with the runtime's words as a warning."""
    found = check("trn1.32xlarge", "--groups", groups)
    assert (found["legal"], found["channels"], found["suggestions"]) == (legal, channels, near)
    assert found["runtime_message"] == (UNSUPPORTED if near else None)
    assert bool(found["warnings"]) == (legal and bool(near))


def test_stride_two_on_trn1(check: Check) -> None:
    """Every second of 16 ranks: a warning with both channel counts, as the runtime's message has them."""
    found = check("trn1.32xlarge", "--groups", "0,2,4,6,8,10,12,14")
    assert found["legal"]
    assert found["runtime_message"] == "global comm (2) has less channels than this replica group (2)"
    assert "0-15, get 2 and it gets 2" in found["warnings"][0]


def test_pairs_that_leave_ranks_idle(check: Check) -> None:
    """{(0,1),(1,0)} is a ring; the ranks outside are idle, and what they are told is said."""
    for text in ("0>1,1>0", "{0,1},{1,0}", "[[0,1],[1,0]]"):
        found = check("trn1.32xlarge", "--pairs", text)
        assert (found["legal"], found["channels"]) == (True, 1)
        assert found["runtime_message"] == "replica groups (0/1) does not have myself 2"
        assert "ranks 2-31 are in no pair and idle" in found["notes"][0]


def test_an_open_chain_of_pairs(check: Check) -> None:
    """{(0,1)} alone is no ring, and the pair that closes it is named."""
    found = check("trn1.32xlarge", "--pairs", "0>1")
    assert not found["legal"]
    assert "open chain from rank 0 to rank 1" in found["reason"]
    assert "add 1>0" in found["reason"]


def test_two_nodes_without_a_network(rota: Rota, check: Check) -> None:
    """2 nodes of trn1.2xlarge are refused, and why; `run` refuses them with the same sentence."""
    found = check("trn1.2xlarge", "--nodes", "2", "--ranks", "4")
    assert not found["legal"]
    assert "no EFA" in found["reason"]
    ran = rota("run", "allr", "--platform", "trn1.2xlarge", "--nodes", "2")
    assert (ran.code, ran.err) == (2, f"rota: {found['reason']}\n")


def test_ascending_32_by_2_and_the_layout_that_is_legal(rota: Rota) -> None:
    """Trn2's 32x2 in ascending order has illegal groups across it; the layout that is legal is named, and passes."""
    ran = rota("check", "--platform", "trn2.48xlarge", "--groups", "0-31;32-63", "--json")
    document = json.loads(ran.out)
    first, second = document["collectives"]
    assert first["suggestions"][:2] == [[*range(16), *range(48, 64)], list(range(16, 48))]
    notes = " ".join(first["notes"] + second["notes"])
    assert "32x2 Logic2: TP 0-15,48-63;16-47" in notes
    assert "such as 0,32, are not legal" in notes
    ran = rota("check", "--platform", "trn2.48xlarge", "--groups", "0-15,48-63;16-47", "--json")
    assert ran.code == 0
    assert not any(each["warnings"] or each["notes"] for each in json.loads(ran.out)["collectives"])


def test_all_to_all_over_two_nodes(check: Check) -> None:
    """4 ranks on each of 2 nodes are a legal group, and all-to-all on it is refused with the runtime's condition."""
    where = ("--nodes", "2", "--groups", "0-3,64-67")
    assert check("trn2.48xlarge", *where)["legal"]
    found = check("trn2.48xlarge", *where, "all_to_all")
    assert not found["legal"]
    assert found["runtime_message"] == POD_MESH
    assert check("trn2.48xlarge", *where, "all_reduce")["legal"]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", ["0-5", "0-64", "0,32", "0,8,16,24,32,40,48,56", "0-2"])
def test_run_and_lower_refuse_with_the_same_sentence(rota: Rota, check: Check, tmp_path: Path, groups: str) -> None:
    """What `check` calls illegal `run`, `lower` and `explain` refuse, exit 2, with the reason `check` gives."""
    reason = check("trn2.48xlarge", "--groups", groups)["reason"]
    for command in (("run",), ("explain",), ("lower", "-o", str(tmp_path / "out"))):
        ran = rota(*command, "allr", "--groups", groups)
        assert (ran.code, ran.out) == (2, ""), command
        assert ran.err.startswith(f"rota: {reason}"), command
    assert not list(tmp_path.iterdir())


def test_text_says_what_json_says(rota: Rota) -> None:
    """One short paragraph: what was asked, the verdict with its reason, the runtime's words, what is near."""
    ran = rota("check", "--platform", "trn1.32xlarge", "--groups", "0-2")
    first, verdict, runtime, nearest = ran.out.splitlines()
    assert (ran.code, ran.err) == (1, "")
    assert first == "group 0-2 on trn1.32xlarge (LNC 1), ranks 0-31"
    assert verdict.split()[0] == "illegal"
    assert runtime.split(maxsplit=1) == ["runtime", f'"{UNSUPPORTED}"']
    assert nearest.split(maxsplit=1) == ["nearest", "0-1 or 0-3"]
    assert "§" not in ran.out
    assert "[topology §4, high]" in rota("check", "--platform", "trn1.32xlarge", "--groups", "0-2", "--sources").out


def test_several_groups_get_an_answer_each(rota: Rota) -> None:
    """One record a group, with an operation or without; one that is illegal makes the exit code 1."""
    for source in ((), ("allr",)):
        ran = rota("check", *source, "--groups", "0-3;8-13", "--json")
        document = json.loads(ran.out)
        assert ran.code == 1
        assert (document["schema"], document["legal"]) == (1, False)
        assert [(each["groups"], each["legal"]) for each in document["collectives"]] == [
            ([[0, 1, 2, 3]], True),
            ([[8, 9, 10, 11, 12, 13]], False),
        ]
        assert all(set(each) == KEYS | {"file", "line", "kind", "groups", "pairs"} for each in document["collectives"])


def test_any_group_is_let_through(check: Check) -> None:
    """--any-group makes the reason a warning: legal, with no channel."""
    found = check("trn2.48xlarge", "--groups", "0-5", "--any-group")
    assert (found["legal"], found["channels"]) == (True, 0)
    assert "any group is allowed" in found["warnings"][0]


def test_any_group_never_runs_what_cannot_be_composed(rota: Rota) -> None:
    """Past the machine's rules, a group without a ring is still not run by one."""
    ran = rota("run", "allr", "--groups", "0-5", "--any-group", "--size", "16M")
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1


HLO = """\
HloModule kinds, num_partitions=8

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %r = bf16[] add(%x, %y)
}

ENTRY %main (p: bf16[64]) -> bf16[64] {
  %p = bf16[64]{0} parameter(0)
  %a = bf16[64]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, IDS, to_apply=%add
  %b = bf16[64]{0} all-to-all(%p), channel_id=2, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %c = bf16[64]{0} collective-permute(%p), channel_id=3, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %d = bf16[64]{0} collective-permute(%p), channel_id=4, source_target_pairs={{0,1},{1,2}}
  %e = bf16[64]{0} collective-broadcast(%p), channel_id=5, replica_groups={{0,1,2,3}}
  ROOT %f = bf16[64]{0} all-reduce(%p), channel_id=6, replica_groups={{0,1,2,3,4},{5,6,7}}, IDS, to_apply=%add
}
""".replace("IDS", "use_global_device_ids=true")


def test_every_collective_of_a_program(rota: Rota, tmp_path: Path) -> None:
    """One record a collective, of all kinds, with its line; an operation the runtime does not have is illegal, too."""
    path = tmp_path / "kinds.hlo"
    path.write_text(HLO)
    ran = rota("check", str(path), "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["legal"]) == (1, False)
    assert [(each["line"], each["kind"], each["legal"]) for each in document["collectives"]] == [
        (11, "all_reduce", True),
        (12, "all_to_all", True),
        (13, "permute", True),
        (14, "permute", False),
        (15, "broadcast", False),
        (16, "all_reduce", False),
    ]
    assert {each["file"] for each in document["collectives"]} == {str(path)}
    pairs, chain, broadcast, uneven = document["collectives"][2:]
    assert pairs["pairs"] == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert "open chain" in chain["reason"]
    assert broadcast["runtime_message"] == "not supported operation (op_type 2)"
    assert [len(group) for group in uneven["groups"]] == [5, 3]
    assert f"{path}:16: all_reduce groups 0-4;5-7" in rota("check", str(path)).out


def test_the_same_program_explained_and_run(rota: Rota, tmp_path: Path) -> None:
    """What `explain` says is composed, `run` runs; what is refused is refused alike; `lower` writes what has bytes."""
    path = tmp_path / "kinds.hlo"
    path.write_text(HLO)
    ran = rota("explain", str(path), "--json")
    documents = json.loads(ran.out)["collectives"]
    assert ran.code == 1
    assert [(each.get("algorithm"), each["source"]["line"]) for each in documents] == [
        ("SINGLE_STEP_MESH", 11),
        ("MESH", 12),
        ("RING", 13),
        (None, 14),
        (None, 15),
        (None, 16),
        (None, 16),
    ], "groups of two sizes are two requests"
    assert [each["composed"] for each in documents[:3]] == ["SINGLE_STEP_MESH", "MESH", "RING"]
    rows = json.loads(rota("run", str(path), "--json").out)["collectives"]
    assert [row["refused"] is None for row in rows] == [True, True, True, False, False, False, False]
    assert [row["algorithm"] for row in rows[:3]] == [each["composed"] for each in documents[:3]]
    reasons = [row["refused"].removesuffix("; --extensions does it") for row in rows[3:]]
    assert reasons == [each["refused"] for each in documents[3:]]
    ran = rota("lower", str(path), "-o", str(tmp_path / "out"))
    assert ran.code == 1
    lowered = json.loads((tmp_path / "out" / "manifest.json").read_bytes())["collectives"]
    assert [each["algorithm"] for each in lowered] == [each["composed"] for each in documents[:3]]


def test_the_examples_are_legal(rota: Rota) -> None:
    """The committed programs of a real compiler pass."""
    for name, count in (("data_parallel.hlo", 1), ("tensor_parallel.hlo", 17)):
        ran = rota("check", str(EXAMPLES / name), "--json")
        assert ran.code == 0
        assert len(json.loads(ran.out)["collectives"]) == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["name what to check", "--pairs"]),
        (["--groups", "0-3;3-7"], ["rank 3"]),
        (["--groups", "0-x"], ["0-x"]),
        (["--groups", "0-3", "--pairs", "0>1"], ["--groups and --pairs"]),
        (["--groups", "0-3", "--ranks", "4"], ["--ranks and --groups"]),
        (["--pairs", "0>1,0>2"], ["rank 0 is the source"]),
        (["--groups", "0-3", "--size", "1K"], ["--size", "operation"]),
        (["--groups", "0-3", "--platform", "trn2.48xl"], ["trn2.48xl", "trn2.48xlarge"]),
        (["--groups", "0-3", "--lnc", "3"], ["LNC 3", "1 or 2"]),
        (["--groups", "0-3", "--nodes", "0"], ["0"]),
        (["--groups", "0-3", "--set", "NEURON_RT_DBG_RHD_CC=0"], ["NEURON_RT_DBG_RDH_CC"]),
        (["permute", "--groups", "0-3"], ["--pairs"]),
        (["allr", "--pairs", "0>1,1>0"], ["--groups"]),
        (["nowhere.hlo"], ["nowhere.hlo", "no file"]),
    ],
)
def test_a_bad_command_is_one_sentence(rota: Rota, arguments: list[str], words: list[str]) -> None:
    """What is no question gets one sentence on stderr, exit code 2, and no output."""
    ran = rota("check", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("rota: ")
    assert len(ran.err.splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err


def test_the_environment_counts(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known variables of the process are read, --set goes before them, and --lnc before both."""
    monkeypatch.setenv("NEURON_RT_VIRTUAL_CORE_SIZE", "1")
    assert "(LNC 1), ranks 0-127" in rota("check", "--groups", "0-7").out
    assert "(LNC 2)" in rota("check", "--groups", "0-7", "--set", "VIRTUAL_CORE_SIZE=2").out
    assert "(LNC 2)" in rota("check", "--groups", "0-7", "--lnc", "2").out
    monkeypatch.setenv("NEURON_RT_VIRTUAL_CORE_SIZE", "three")
    assert "NEURON_RT_VIRTUAL_CORE_SIZE" in rota("check", "--groups", "0-7").err
