"""`rota explain --phases`: the phases of a mesh over the switch."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.conftest import Ran

Rota = Callable[..., Ran]

SWITCH = ("explain", "all_reduce", "--platform", "trn3pds98", "--ranks", "64", "--size", "1M", "--phases")


def test_the_phases_of_the_latency_opt_all_reduce(rota: Rota) -> None:
    """Switch_schedule §3 and §4: events 2 8 9 10 3 11 0, then the two barriers; a box of 4 sleds of 4 chips of 4."""
    ran = rota(*SWITCH, "--json")
    assert ran.code == 0, ran.err
    phases = json.loads(ran.out)["phases"]
    assert [each["wait_val"] for each in phases] == [3, 4, 4, 1, 15, 48, 1, 0, 0]
    assert [each["num_fold"] for each in phases] == [0, 4, 4, 8, 2, 2, 1, 0, 0]
    assert [each["copy_mode"] for each in phases][:5] == [None, 4, 4, 0, None]
    assert phases[2]["src"] == [0, 4, 8, 12]


def test_the_table_and_the_log_lines(rota: Rota) -> None:
    """The table names every event; the lines are those of the builders."""
    ran = rota(*SWITCH)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("phases "))
    assert lines[start] == "phases     slot 4, latency-opt all-reduce, in the order in which they are built"
    assert lines[start + 2].split()[-6:] == ["EVT_LOCAL_HNDSHK", "0", "0", "3", "4", "-"]
    assert "Building inter-axis dimr1w reduce event: src-0,4,8,12 dst-0,16,32,48 recv-0,16,32,48" in lines


def test_what_has_no_phases_is_refused(rota: Rota) -> None:
    """One sentence, exit 2."""
    ran = rota("explain", "all_reduce", "--ranks", "64", "--size", "1M", "--phases")
    assert ran.code == 2
    assert "only a mesh over a switch is built of phases" in ran.err
    assert ran.out == ""
