"""Machines: what a name, an LNC, a number of nodes and a pod mode make, and how bad ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rota.errors import UnsupportedError, UsageError
from rota.facts import CONVENTION
from rota.isa.enums import PodType
from rota.machine.platform import Family, Layout, Shape, known_platforms, load_platform
from rota.machine.topology import pod_of

TRN1, TRN2, TRN2U, TRN3, GEN1 = "trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3pds98", "trn3pds98-gen1"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("inf2.24xlarge", (4, "sunda", Shape.CHAIN, 1, 2, 6, 12)),
        ("inf2.48xlarge", (4, "sunda", Shape.RING, 1, 2, 12, 24)),
        ("trn1.2xlarge", (2, "sunda", Shape.CUBE, 1, 2, 1, 2)),
        (TRN1, (2, "sunda", Shape.CUBE, 1, 2, 16, 32)),
        ("trn1n.32xlarge", (3, "sunda", Shape.CUBE, 1, 2, 16, 32)),
        ("trn2.3xlarge", (5, "cayman", Shape.CUBE, 2, 4, 1, 4)),
        (TRN2, (5, "cayman", Shape.CUBE, 2, 4, 16, 64)),
        (TRN2U, (9, "cayman", Shape.CUBE, 2, 4, 16, 64)),
        (TRN3, (15, "mariana", Shape.SWITCH, 2, 4, 144, 576)),
        (GEN1, (15, "mariana", Shape.SWITCH, 2, 4, 64, 256)),
    ],
)
def test_platform_row(name: str, row: tuple[int, str, Shape, int, int, int, int]) -> None:
    """Platforms §1: family, architecture, topology, default LNC, ranks per chip, chips and ranks of one instance."""
    it = load_platform(name)
    assert it.name == name
    assert (it.family, it.arch, it.shape, it.lnc, it.ranks_per_chip, it.chip_count, it.ranks) == row
    assert it.node_ranks * it.nodes == it.ranks


def test_every_built_in_machine_has_a_row() -> None:
    """Platforms §1: the machines of the table that have one file each."""
    assert known_platforms() == (
        *("inf2.24xlarge", "inf2.48xlarge", "trn1.2xlarge", TRN1, "trn1n.32xlarge"),
        *("trn2.3xlarge", TRN2, TRN2U, TRN3, GEN1),
    )


@pytest.mark.parametrize(("name", "ranks"), [("trn2.3xlarge", 8), (TRN2, 128), (TRN2U, 128), (TRN3, 1152), (GEN1, 512)])
def test_one_core_a_rank(name: str, ranks: int) -> None:
    """Platforms §1 and §3.7: LNC 2 is the default from Trn2 on; LNC 1 doubles the ranks."""
    platform = load_platform(name, lnc=1)
    assert (platform.lnc, platform.lncs, platform.ranks, platform.ranks_per_chip) == (1, (2, 1), ranks, 8)
    assert load_platform(name, lnc=2) == load_platform(name)


def test_lanes_of_an_s_engine() -> None:
    """Topology §2: at LNC 1 both cores of an s-engine own its port; without owners each lane stands for itself."""
    lanes = {(name, lnc): load_platform(name, lnc=lnc).lanes_per_engine for name in (TRN2, TRN3) for lnc in (1, 2)}
    assert lanes == {(TRN2, 1): 2, (TRN2, 2): 1, (TRN3, 1): 1, (TRN3, 2): 1}
    assert load_platform(TRN1).lanes_per_engine == 1
    assert load_platform(TRN2, lnc=1).port_lane == load_platform(TRN2).port_lane


@pytest.mark.parametrize("name", [TRN2, TRN3, "trn2.3xlarge"])
def test_numbers_of_a_rank_halve_at_lnc_1(name: str) -> None:
    """Platforms §2: HBM, engines, SBUF and collective cores belong to a physical core, of which a rank has LNC."""
    two, one = load_platform(name), load_platform(name, lnc=1)
    for key in ("hbm_bytes_per_second", "hbm_bytes", "sbuf_bytes", "dma_engines", "cc_cores"):
        assert two.parameter(key) == 2 * one.parameter(key)
    assert two.parameter("dma_engine_bytes_per_second") == one.parameter("dma_engine_bytes_per_second")


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        (TRN1, (0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10)),
        (TRN2, (0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10)),
    ],
)
def test_routing_ids(name: str, devices: tuple[int, ...]) -> None:
    """Platforms §3.2 and §3.3: routing id to device on v2 and v3."""
    assert load_platform(name).routing_ids == devices


@pytest.mark.parametrize(
    ("parameter", "trn1", "trn2", "unit"),
    [
        ("link_bytes_per_second", 48 * 10**9, 128 * 10**9, "B/s"),
        ("link_efficiency_permille", 680, 1000, "permille"),
        ("hbm_bytes_per_second", 410 * 10**9, 725 * 10**9, "B/s"),
        ("dma_engine_bytes_per_second", 17 * 10**9, 23 * 10**9, "B/s"),
        ("dma_engines", 16, 32, "engines"),
        ("hop_latency_ps", 1_500_000, 1_500_000, "ps"),
        ("onchip_hop_latency_ps", 1_500_000, 1_500_000, "ps"),
        ("network_bytes_per_second", 6_250 * 10**6, 25 * 10**9, "B/s"),
        ("network_hop_latency_ps", 15_000_000, 15_000_000, "ps"),
        ("network_efficiency_permille", 510, 720, "permille"),
    ],
)
def test_parameters(parameter: str, trn1: int, trn2: int, unit: str) -> None:
    """Platforms §2, §3, §4 and §7: rates, engines and latencies, each with unit and source."""
    for name, value in ((TRN1, trn1), (TRN2, trn2)):
        platform = load_platform(name)
        entry = platform.parameters[parameter]
        assert (platform.parameter(parameter), entry.unit, entry.source.page) == (value, unit, "platforms")
        assert entry.note


def test_choices_are_marked() -> None:
    """A number no source gives is a convention: the Trn2 link efficiency and the midpoint of the hop latency."""
    trn2 = load_platform(TRN2)
    choices = {key for key, entry in trn2.parameters.items() if entry.source.confidence is CONVENTION}
    assert choices == {"link_efficiency_permille", "hop_latency_ps", "onchip_hop_latency_ps"}


def test_families() -> None:
    """Platforms §1: the runtime's instance numbers run from TRN1 = 2 to TRN3PDS98 = 15."""
    names = "TRN1 TRN1N INF2 TRN2 TRN2N INF2E TRN2P TRN2U TRN2E TRN2EU TRN2AC TRN2UAC TRN3 TRN3PDS98"
    assert " ".join(family.name for family in Family) == names
    assert [family.value for family in Family] == list(range(2, 16))


def test_ports_belong_to_ranks_on_trn2_only() -> None:
    """Topology §2: Trn1 has no port ownership; platforms §3.3: a Trn2 chip has one port for each of its four ranks."""
    assert load_platform(TRN1).port_lane is None
    port_lane = load_platform(TRN2).port_lane
    assert port_lane is not None
    assert all(sorted(lanes) == [0, 1, 2, 3] for lanes in port_lane)
    assert load_platform("trn2.3xlarge").port_lane == ((),)


# --- nodes and pods ---------------------------------------------------------------------------------------------------


def test_nodes() -> None:
    """A node is an instance, or a server of a switch machine; ranks run through all nodes."""
    trn2, trn3 = load_platform(TRN2, nodes=3), load_platform(TRN3, nodes=2)
    assert (trn2.instances, trn2.nodes, trn2.chips, trn2.chip_count, trn2.ranks) == (3, 3, 16, 48, 192)
    assert (trn2.pod_type, trn2.pod_nodes) == (PodType.NONE, 1)
    assert (trn3.instances, trn3.servers, trn3.nodes, trn3.chips, trn3.ranks) == (2, 36, 72, 4, 1152)
    assert (trn3.pod_type, trn3.pod_nodes, trn3.servers_per_rack) == (PodType.SWITCH, 36, 18)
    assert load_platform(GEN1).servers_per_rack == 2


@pytest.mark.parametrize(
    ("nodes", "mode", "pods"),
    [
        (1, 0, [[0]]),
        (2, 0, [[0, 1]]),
        (3, 0, [[0], [1], [2]]),
        (4, 0, [[0, 1, 2, 3]]),
        (6, 0, [[0], [1], [2], [3], [4], [5]]),
        (8, 0, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (6, 2, [[0, 1], [2, 3], [4, 5]]),
        (4, 3, [[0, 2], [1, 3]]),
        (8, 3, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (2, 3, [[0, 1]]),
        (4, 4, [[0], [1], [2], [3]]),
    ],
)
def test_pods(nodes: int, mode: int, pods: list[list[int]]) -> None:
    """Platforms §1 and §3.4: X4 pods of four, X2H {0,0,1,1} and X2V {0,1,0,1} of two, X1 none; automatic by size."""
    platform = load_platform(TRN2U, nodes=nodes, pod_mode=mode)
    found = [[node for node in range(nodes) if pod_of(platform, node) == pod] for pod in range(len(pods))]
    assert found == pods
    assert platform.pod_nodes == len(pods[0])
    assert platform.pod_type is (PodType.P2P if len(pods[0]) > 1 else PodType.NONE)
    assert platform.pod_mode == mode


@pytest.mark.parametrize(
    ("nodes", "mode", "message"),
    [
        (3, 1, r"mode 1 \(X4\): expected a multiple of 4 nodes, got 3"),
        (2, 1, r"mode 1 \(X4\): expected a multiple of 4 nodes, got 2"),
        (5, 2, r"mode 2 \(X2H\): expected a multiple of 2 nodes, got 5"),
        (6, 3, r"mode 3 \(X2V\): expected 2, or a multiple of 4, nodes, got 6"),
        (4, 5, r"mode: expected 0 \(automatic\), 1 \(X4\), 2 \(X2H\), 3 \(X2V\), 4 \(X1\), got 5"),
        (4, -1, r"mode: .*got -1"),
        (0, 0, r"nodes: expected 1 to 1024 of trn2u\.48xlarge, got 0"),
        (10**30, 0, r"nodes: expected 1 to 1024"),
    ],
)
def test_nodes_that_form_no_pods(nodes: int, mode: int, message: str) -> None:
    """A pod mode that does not divide the nodes, or is none, is refused with what would."""
    with pytest.raises(UsageError, match=message):
        load_platform(TRN2U, nodes=nodes, pod_mode=mode)


def test_a_mode_without_pods() -> None:
    """Platforms §1: UltraServer modes are those of Trn2 UltraServers; X1 is what every other instance is."""
    for name, mode in ((TRN2, 1), (TRN1, 3), (TRN3, 4)):
        with pytest.raises(UnsupportedError, match=rf"{name} is no UltraServer of instances; use 0"):
            load_platform(name, pod_mode=mode)
    assert load_platform(TRN2, nodes=4, pod_mode=4).pod_nodes == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("trn1.2xlarge", "no EFA"),
        ("trn2.3xlarge", "no direct memory access"),
        ("inf2.24xlarge", "stay on one instance"),
        ("inf2.48xlarge", "stay on one instance"),
    ],
)
def test_machines_without_network(name: str, reason: str) -> None:
    """Platforms §1 and §3.1: no EFA on the one-chip instances, and Inf2 collectives are single-instance only."""
    platform = load_platform(name)
    assert not platform.network
    with pytest.raises(UnsupportedError, match=rf"2 nodes of {name}: .*{reason}.*; use 1") as caught:
        load_platform(name, nodes=2)
    assert caught.value.source is not None


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trn9", "", "..", "x" * 1000])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    """A name that is no machine is refused with the machines there are."""
    with pytest.raises(UsageError, match=r"is not known: expected one of inf2\.24xlarge, .*trn3pds98-gen1"):
        load_platform(name)


def test_a_name_with_a_slip_gets_a_suggestion() -> None:
    """The nearest known name is suggested."""
    with pytest.raises(UsageError, match=r"do you mean trn2\.48xlarge\?"):
        load_platform("trn2.48xlrage")


@pytest.mark.parametrize("name", ["../platform", "trn2.48xlarge.toml", "no/such\0file", "/"])
def test_a_path_that_is_no_file(name: str) -> None:
    """A name with a slash, or that ends in .toml, is a file of the user."""
    with pytest.raises(UsageError, match="machine file"):
        load_platform(name)


@pytest.mark.parametrize(("name", "lnc", "expected"), [(TRN2, 3, "1 or 2"), (TRN2, 0, "1 or 2"), (TRN1, 2, "1")])
def test_an_lnc_the_machine_lacks(name: str, lnc: int, expected: str) -> None:
    """Platforms §3.7: LNC is 1 or 2 from Trn2 on, and 1 before."""
    with pytest.raises(UsageError, match=rf"LNC {lnc}: expected {expected} on {name}"):
        load_platform(name, lnc=lnc)


def test_an_unknown_parameter_lists_the_known_ones() -> None:
    """Asking for a parameter that the machine file lacks names those it has."""
    with pytest.raises(UsageError, match=r"trn1\.32xlarge has no parameter 'price'.*link_bytes_per_second"):
        load_platform(TRN1).parameter("price")


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_lane_sets() -> None:
    """Topology §4: half a chip is lanes 0-3 or 4-7; its complement has lanes k and k + 4 of every chip."""
    source = load_platform(TRN2).layouts[0].source
    half, across = Layout("half", (), 4, source), Layout("across", (), 2, source, lane_step=4)
    assert half.lane_sets(8) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert across.lane_sets(8) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert Layout("one", (), 1, source).lane_sets(2) == ((0,), (1,))


@pytest.mark.parametrize(
    ("lnc", "partitions"),
    [
        (2, "64x1 16x4 16x4_in_columns 4x16 32x2_Logic2 8x8"),
        (1, "128x1 32x4 32x4_in_columns 8x16 64x2_Logic2 4x32"),
    ],
)
def test_documented_splits(lnc: int, partitions: str) -> None:
    """Platforms §5, topology §4: the splits of a Trn2 node; LNC 1 has no 16x8, and 4x32 in place of it."""
    layouts = load_platform(TRN2, lnc=lnc).layouts
    names = dict.fromkeys(layout.partition.replace(" ", "_") for layout in layouts)
    assert sorted(names) == sorted(partitions.split())
    for layout in layouts:
        ranks = layout.lanes << len(layout.bits)
        sizes = [int(size) for size in layout.partition.split()[0].split("x")]
        assert ranks == sizes[layout.role == "dp"]


def test_a_layout_file_needs_no_lnc(tmp_path: Path) -> None:
    """A layout without `lnc` is one of every logical core size."""
    path = tmp_path / "mine.toml"
    row = '[[layouts]]\nname = "{tp}x{dp}"\nbits = [0]\nlanes = "all"\n'
    path.write_text(f'base = "{TRN2}"\n{row}', encoding="utf-8")
    names = [load_platform(str(path), lnc=lnc).layouts[0].name for lnc in (2, 1)]
    assert names == ["8x8", "16x8"]


def test_machine_loads_no_numpy() -> None:
    """Importing the machine and wiring a group loads no numpy, so that a command starts fast."""
    program = (
        "import sys; from rota.machine.group import wire; from rota.machine.platform import load_platform; "
        "wire(load_platform('trn2.48xlarge'), range(64)); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
