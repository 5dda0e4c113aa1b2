"""`rota explain`: the algorithm by size, what would change a decision, settings, legs and log lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Ran

Rota = Callable[..., Ran]
TRN2 = ("allr", "--platform", "trn2.48xlarge", "--ranks", "64", "--dtype", "bf16")
KIB, MIB = 1 << 10, 1 << 20


def document_of(ran: Ran) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    assert (ran.code, ran.err, document["schema"]) == (0, "", 1)
    return document


# --- by size ----------------------------------------------------------------------------------------------------------


def test_trn2_node_by_size(rota: Rota) -> None:
    """64 ranks of trn2.48xlarge: single-step mesh, mesh, RDH and KangaRing in that order, at the documented windows."""
    document = document_of(rota("explain", *TRN2, "--sweep", "1K:1G", "--json"))
    assert [(each["from"], each["to"], each["algorithm"]) for each in document["switches"]] == [
        (KIB, 32 * KIB, "SINGLE_STEP_MESH"),
        (32 * KIB + 2, MIB, "MESH"),
        (MIB + 2, 56 * MIB, "INTRA_RDH"),
        (56 * MIB + 2, 1 << 30, "KANGARING"),
    ]
    assert [each["size"] for each in document["sweep"]] == [KIB << i for i in range(21)]


def test_trn1_by_size(rota: Rota) -> None:
    """32 ranks of trn1: single-step mesh to 32 KiB, mesh to 8 MiB, then ring."""
    document = document_of(
        rota("explain", "allr", "--platform", "trn1.32xlarge", "--ranks", "32", "--sweep", "8:1G", "--json")
    )
    assert [(each["to"], each["algorithm"]) for each in document["switches"]] == [
        (32 * KIB, "SINGLE_STEP_MESH"),
        (8 * MIB, "MESH"),
        (1 << 30, "RING"),
    ]


def test_the_sweep_is_what_explain_says(rota: Rota) -> None:
    """At, one element below and one above each end, a single `explain` names the same algorithm."""
    document = document_of(rota("explain", *TRN2, "--sweep", "1K:64M", "--json"))
    for each in document["switches"]:
        for size in (each["from"], each["to"]):
            found = document_of(rota("explain", *TRN2, "--size", str(size), "--json"))
            assert found["algorithm"] == each["algorithm"], size


def test_four_nodes_by_size(rota: Rota) -> None:
    """4 x trn2: HIER at every size, with the legs of its slots, which change with the size."""
    document = document_of(
        rota("explain", "allr", "--platform", "trn2.48xlarge", "--nodes", "4", "--sweep", "1M:4G", "--json")
    )
    assert {each["algorithm"] for each in document["switches"]} == {"HIER"}
    legs = [each["legs"] for each in document["switches"]]
    assert all(set(each) == {"intra_redsct", "inter_allr", "intra_allg"} for each in legs)
    assert [each["inter_allr"] for each in legs][:: len(legs) - 1] == ["MESH", "RING"]
    inner = list(dict.fromkeys(each["intra_redsct"] for each in legs))
    assert inner == ["MESH", "INTRA_RDH", "KANGARING"]


def test_the_picture(rota: Rota) -> None:
    """One row for each algorithm; the rows together cover every column once; below, the exact sizes."""
    ran = rota("explain", *TRN2, "--sweep", "1K:1G")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert all(line.isascii() for line in lines)
    assert max(map(len, lines)) <= 100
    bars = [line for line in lines if re.fullmatch(r"  \w+ +=+", line)]
    assert [bar.split()[0] for bar in bars] == ["SINGLE_STEP_MESH", "MESH", "INTRA_RDH", "KANGARING"]
    covered = sorted(column for bar in bars for column, mark in enumerate(bar) if mark == "=")
    assert covered == list(range(covered[0], covered[0] + len(covered)))
    assert lines[1].index("1M") == bars[2].index("="), "RDH begins at the mark of 1M"
    assert lines[-2].split() == ["58720258", "1G", "KANGARING"]


def test_the_picture_of_a_hierarchy(rota: Rota) -> None:
    """Below HIER stand its legs, one row for each algorithm of a leg."""
    out = rota("explain", "allg", "--platform", "trn2.48xlarge", "--nodes", "2", "--sweep", "1M:1G").out
    rows = [line.split() for line in out.splitlines() if "=" in line and not line.startswith("#")]
    assert rows[0][0] == "HIER"
    assert {row[0] for row in rows[1:] if row[-1].startswith("=")} == {"inter_allg", "intra_allg"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep", "1K"], ["LOW:HIGH"]),
        (["--sweep", "1M:1K"], ["below"]),
        (["--sweep", "1K:1X"], ["1X"]),
        (["--sweep", "1K:1M", "--size", "1K"], ["--size"]),
        (["--sweep", "1:2", "--dtype", "fp32"], ["no size"]),
    ],
)
def test_a_bad_sweep_is_one_sentence(rota: Rota, arguments: list[str], words: list[str]) -> None:
    """Bounds that are none get one sentence and exit code 2."""
    ran = rota("explain", "allr", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert all(word in ran.err for word in words), ran.err


# --- one decision -----------------------------------------------------------------------------------------------------


def test_what_would_change_it(rota: Rota) -> None:
    """The sizes below and above at which another algorithm takes over, and the settings that turn this one away."""
    document = document_of(rota("explain", *TRN2, "--size", "512K", "--json"))
    changes = {each["what"]: each["algorithm"] for each in document["changes"]}
    assert changes["up to 32K"] == "SINGLE_STEP_MESH"
    assert changes["above 1M"] == "INTRA_RDH"
    assert changes["NEURON_RT_DBG_MESH_CC=0"] == "KANGARING"
    for what, algorithm in changes.items():
        if what.startswith("NEURON"):
            found = document_of(rota("explain", *TRN2, "--size", "512K", "--set", what, "--json"))
            assert found["algorithm"] == algorithm, what
    assert "instead    above 1M -> INTRA_RDH" in rota("explain", *TRN2, "--size", "512K").out.splitlines()


def test_the_row_that_was_read(rota: Rota) -> None:
    """A row says what its twin holds; `staging` picks the twin, and the switch's plain rows hold nothing."""
    asked = ("explain", "allr", "--platform", "trn3pds98", "--groups", "[[0,1,4,5]]", "--size", "64K")
    document = document_of(rota(*asked, "--json"))
    assert (document["algorithm"], document["staging"]) == ("SINGLE_STEP_MESH", "static")
    read = [row for row in document["limits"] if row["read"]]
    assert (read[0]["twin"], read[0]["up_to"], read[0]["other"]["up_to"]) == ("sbuf", 128 * KIB, 0)
    document = document_of(rota(*asked, "--staging", "device", "--json"))
    assert document["staging"] == "device"
    assert not any(row["read"] for row in document["limits"])
    assert "the _sbuf rows are read" in rota(*asked).out


def test_one_chip_of_the_switch(rota: Rota) -> None:
    """4 ranks of trn3pds98 are one chip, which takes the on-chip path; the 2 x 2 box does not."""
    for where, alone in ((("--ranks", "4"), True), (("--groups", "[[0,1,4,5]]"), False)):
        out = rota("explain", "allr", "--platform", "trn3pds98", *where).out
        assert ("takes the on-chip path" in out) is alone


def test_settings_that_differ_are_shown(rota: Rota) -> None:
    """Text names what is not the default; JSON has every variable by its real name."""
    asked = ("explain", *TRN2, "--size", "8M")
    assert "setting" not in rota(*asked).out
    ran = rota(*asked, "--set", "RDH_CC=0")
    assert "setting    NEURON_RT_DBG_RDH_CC=0" in ran.out.splitlines()
    assert "selected   KANGARING" in ran.out.splitlines()
    document = document_of(rota(*asked, "--set", "NEURON_RT_DBG_RDH_CC=0", "--json"))
    assert document["settings"]["NEURON_RT_DBG_RDH_CC"] == 0
    assert document["settings"]["NEURON_RT_CC_CHUNK_SIZE"] in ("2M", 2 * MIB)


def test_the_legs_of_a_hierarchy(rota: Rota) -> None:
    """All five slots are named; those the operation has say what was asked for them."""
    document = document_of(
        rota("explain", "allr", "--platform", "trn2.48xlarge", "--nodes", "4", "--size", "64M", "--json")
    )
    assert list(document["legs"]) == ["intra_allg", "intra_redsct", "inter_allr", "inter_allg", "inter_redsct"]
    used = {each["slot"]: each for each in document["leg_details"] if each["used"]}
    assert set(used) == {"intra_redsct", "inter_allr", "intra_allg"}
    assert all(each["verdicts"] and each["size"] for each in used.values())
    assert (document["composed"], document["composed_because"]) == ("HIER", None)


def test_the_runtimes_own_lines(rota: Rota) -> None:
    """The log lines of the seeds, with our values: the legs of a hierarchy, and the line of an all-reduce."""
    hier = document_of(
        rota("explain", "allr", "--platform", "trn2.48xlarge", "--nodes", "4", "--size", "64M", "--json")
    )["log"]
    pattern = (
        r"\[nec_dev 0\] Hier algorithm selections - alg_intra_allg \d+ alg_intra_redsct \d+ "
        r"alg_inter_allr \d+ alg_inter_allg \d+ alg_inter_redsct \d+"
    )
    assert [bool(re.fullmatch(pattern, line)) for line in hier] == [True]
    first, second = document_of(rota("explain", *TRN2, "--size", "512K", "--json"))["log"]
    assert first == "[nec_dev 0] allreduce: comm(%p) alg(2) dtype(6), optype(0), channel_n(1)"
    assert second.split()[:2] == ["pipeline", "slice_n(1)"]
    ran = rota("explain", *TRN2, "--size", "512K")
    assert any(line.startswith("log        [nec_dev 0] allreduce:") for line in ran.out.splitlines())
    assert document_of(rota("explain", "allg", "--size", "64K", "--json"))["log"] == []


def test_groups_that_differ_are_explained_apart(rota: Rota) -> None:
    """Groups of two sizes are two documents, none of them lost."""
    document = document_of(rota("explain", "allr", "--groups", "0-15;16-19", "--json"))
    assert [len(each["request"]["groups"][0]) for each in document["collectives"]] == [16, 4]


def test_pairs_of_a_permute(rota: Rota) -> None:
    """A permute goes by pairs, takes a ring, and is composed; a chain is refused as `check` does."""
    document = document_of(rota("explain", "permute", "--pairs", "0>1,1>0", "--json"))
    assert (document["algorithm"], document["composed"]) == ("RING", "RING")
    assert document["request"]["pairs"] == [[0, 1], [1, 0]]
    for more, words in (
        (("--pairs", "0>1"), "open chain"),
        ((), "name them with --pairs"),
        (("--pairs", "0>1,1>0", "--ranks", "2"), "leave --ranks and --groups out"),
    ):
        ran = rota("explain", "permute", *more)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err


def test_refused_by_the_runtime(rota: Rota) -> None:
    """What the runtime has no algorithm for is refused with its reason, exit 2."""
    for arguments, words in (
        (("broadcast",), "not supported operation (op_type 2)"),
        (("all_to_all", "--nodes", "2", "--groups", "0-3,64-67"), "node_n == 1 || (rank_n == 4 && enable_pod)"),
        (("all_to_all", "--set", "MESH_CC=0"), "alltoall cannot be supported without Mesh algorithm"),
    ):
        ran = rota("explain", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err


# --- what run and lower say of it -------------------------------------------------------------------------------------


def test_nothing_is_substituted(rota: Rota, tmp_path: Any) -> None:
    """`run` and `lower` compose what the runtime takes, and have nothing to say about it."""
    asked = ("allr", "--ranks", "4", "--size", "64K", "--json")
    ran = rota("run", *asked)
    (row,) = json.loads(ran.out)["collectives"]
    assert (row["selected"], row["algorithm"]) == ("MESH", "MESH")
    assert ran.err == ""
    lowered = rota("lower", *asked, "-o", str(tmp_path / "out"))
    (entry,) = json.loads(lowered.out)["collectives"]
    assert (entry["selected"], entry["algorithm"]) == ("MESH", "MESH")
    assert lowered.err == ""


def test_settings_reach_what_is_run(rota: Rota) -> None:
    """With the mesh off the ring is the runtime's own choice, and nothing is substituted."""
    ran = rota("run", "allr", "--ranks", "4", "--size", "64K", "--set", "NEURON_RT_DBG_MESH_CC=0", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert (row["selected"], row["algorithm"], ran.err) == ("RING", "RING", "")


def test_lnc_1_runs(rota: Rota) -> None:
    """--lnc 1 doubles the ranks of a chip, and a node of them runs."""
    ran = rota("run", "allr", "--lnc", "1", "--ranks", "8", "--size", "4K", "--algorithm", "RING", "--json")
    (row,) = json.loads(ran.out)["collectives"]
    assert (ran.code, row["ranks"], row["device_matches"]) == (0, 8, True)
