"""Machine files: what they hold, and how a bad name is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rota.errors import UsageError
from rota.facts import CONVENTION
from rota.machine.platform import Family, known_platforms, load_platform

TRN1, TRN2 = "trn1.32xlarge", "trn2.48xlarge"


@pytest.mark.parametrize(
    ("name", "row"),
    [(TRN1, (2, "sunda", 1, 2, 32)), (TRN2, (5, "cayman", 2, 4, 64))],
)
def test_platform_row(name: str, row: tuple[int, str, int, int, int]) -> None:
    """Platforms §1: family number, architecture, logical core size, ranks per chip and ranks of an instance."""
    platform = load_platform(name)
    assert platform.name == name
    assert (platform.family, platform.arch, platform.lnc, platform.ranks_per_chip, platform.ranks) == row
    assert (platform.rows, platform.columns, platform.chips) == (4, 4, 16)


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
    ],
)
def test_parameters(parameter: str, trn1: int, trn2: int, unit: str) -> None:
    """Platforms §2, §3 and §7: rates, engines and latencies, each with unit and source."""
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


@pytest.mark.parametrize("name", ["trn9", "", "../platform", "trn2.48xlarge.toml", "x" * 1000])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    """A name that is no machine is refused with the machines there are."""
    assert known_platforms() == (TRN1, TRN2)
    with pytest.raises(UsageError, match=r"expected one of trn1\.32xlarge, trn2\.48xlarge$"):
        load_platform(name)


def test_an_unknown_parameter_lists_the_known_ones() -> None:
    """Asking for a parameter that the machine file lacks names those it has."""
    with pytest.raises(UsageError, match=r"trn1\.32xlarge has no parameter 'price'.*link_bytes_per_second"):
        load_platform(TRN1).parameter("price")


def test_machine_loads_no_numpy() -> None:
    """Importing the machine and wiring a group loads no numpy, so that a command starts fast."""
    program = (
        "import sys; from rota.machine.group import wire; from rota.machine.platform import load_platform; "
        "wire(load_platform('trn2.48xlarge'), range(64)); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
