"""Machine files: what the built-in ones hold, a user's file over a base, and what is said about a damaged one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from rota.errors import UsageError
from rota.facts import CONVENTION, LOW, Source
from rota.machine.platform import PARAMETERS, Shape, known_platforms, load_platform

Write = Callable[[str], str]
FACTS = ("node", "lnc", "routing", "torus", "ports", "pod", "network")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a machine file and returns its path."""

    def write_file(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_file


def whole(name: str) -> str:
    """Return the text of a built-in machine file."""
    return resources.files("rota.machine").joinpath("platforms", f"{name}.toml").read_text(encoding="utf-8")


# --- the built-in files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_platforms())
def test_every_number_has_a_source(name: str) -> None:
    """A number of the specification stands beside its page and section."""
    platform = load_platform(name)
    sources = [entry.source for entry in platform.parameters.values()]
    sources += [layout.source for layout in platform.layouts] + [reading.source for reading in platform.readings]
    sources += platform.sources.values()
    assert {source.page for source in sources} <= {"platforms", "topology"}
    assert all(source.section for source in sources)
    assert {"node", "lnc", "network"} <= platform.sources.keys() <= set(FACTS)


@pytest.mark.parametrize("name", known_platforms())
def test_every_open_reading_has_an_alternative(name: str) -> None:
    """A question is open when it has another answer than the one used."""
    for reading in load_platform(name).readings:
        assert reading.others
        assert reading.used not in reading.others


@pytest.mark.parametrize(
    ("name", "reading", "used"),
    [
        ("trn1n.32xlarge", "link rate", "96 GB/s"),
        ("inf2.48xlarge", "link rate", "48 GiB/s"),
        ("trn2.48xlarge", "HBM rate of a chip", "2.9 TB/s"),
        ("trn2u.48xlarge", "EFA of an UltraServer", "per instance"),
        ("trn2u.48xlarge", "pods of two nodes", "X2V"),
        ("trn3pds98", "link rates", "256, 320 and 128 GB/s"),
        ("trn3pds98", "HBM rate of a chip", "4.9 TB/s"),
        ("trn3pds98-gen1", "link rates", "64 GB/s"),
        ("trn3pds98-gen1", "cables of Gen1", "chip i of server s to chip i of s + 2"),
        ("trn3pds98", "machine of family 15", "each with a file of its own"),
        ("trn3pds98", "most chips of a group", "counted in each rack"),
        ("trn2u.48xlarge", "ports on nodes 1 and 3", "the same on every node"),
        ("trn2.48xlarge", "8 ranks on two chips", "from an even column"),
        ("inf2.48xlarge", "sizes of groups", "the whole node"),
        ("trn1.32xlarge", "machine of the fitted link efficiency", "trn1.32xlarge"),
    ],
)
def test_open_readings(name: str, reading: str, used: str) -> None:
    """Platforms, the marks of open questions: each says which reading this file takes."""
    assert [used in each.used for each in load_platform(name).readings if each.name == reading] == [True]


def test_every_open_reading_is_checked_above() -> None:
    """Each open question of a machine file has a row in the test before."""
    rows = next(mark for mark in test_open_readings.pytestmark if mark.name == "parametrize").args[1]
    names = {reading for _, reading, _ in rows}
    assert {reading.name for name in known_platforms() for reading in load_platform(name).readings} == names


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("trn1n.32xlarge", "link_bytes_per_second", 96 * 10**9),
        ("trn1n.32xlarge", "network_bytes_per_second", 12_500 * 10**6),
        ("inf2.48xlarge", "link_bytes_per_second", 48 * 2**30),
        ("inf2.24xlarge", "link_bytes_per_second", 48 * 2**30),
        ("trn2u.48xlarge", "pod_link_bytes_per_second", 64 * 10**9),
        ("trn3pds98", "server_link_bytes_per_second", 256 * 10**9),
        ("trn3pds98", "rack_link_bytes_per_second", 320 * 10**9),
        ("trn3pds98", "inter_rack_link_bytes_per_second", 128 * 10**9),
        ("trn3pds98", "network_bytes_per_second", 25 * 10**9),
        ("trn3pds98-gen1", "server_link_bytes_per_second", 1024 * 10**9),
        ("trn3pds98-gen1", "inter_rack_link_bytes_per_second", 256 * 10**9),
        ("trn3pds98", "hbm_bytes_per_second", 1225 * 10**9),
        ("trn3pds98", "hbm_bytes", 36 * 2**30),
        ("trn2.48xlarge", "hbm_bytes", 24 * 2**30),
        ("trn1.32xlarge", "hbm_bytes", 16 * 2**30),
        ("trn1.32xlarge", "sbuf_bytes", 24 * 2**20),
        ("trn2.48xlarge", "sbuf_bytes", 2 * 28 * 2**20),
        ("trn3pds98", "sbuf_bytes", 2 * 32 * 2**20),
        ("trn3pds98", "dma_engine_bytes_per_second", 33 * 10**9),
        ("trn1.32xlarge", "cc_cores", 3),
        ("trn2.48xlarge", "cc_cores", 4),
    ],
)
def test_numbers_of_the_tables(name: str, parameter: str, value: int) -> None:
    """Platforms §2, §3 and §7: rates and capacities of one rank or one link, in one direction."""
    assert load_platform(name).parameter(parameter) == value


@pytest.mark.parametrize(
    ("name", "stacks", "rate"),
    [("trn1.32xlarge", 16 * 2, 13_120), ("inf2.48xlarge", 12 * 2, 9_840), ("inf2.24xlarge", 6 * 2, 4_920),
     ("trn2.48xlarge", 64, 46_400), ("trn3pds98-gen1", 256, 313_600), ("trn3pds98", 576, 705_600)],
)  # fmt: skip
def test_hbm_of_a_machine(name: str, stacks: int, rate: int) -> None:
    """Platforms §1: HBM rates of a machine, in GB/s, are those of its ranks together."""
    platform = load_platform(name)
    assert platform.ranks == stacks
    assert platform.ranks * platform.parameter("hbm_bytes_per_second") == rate * 10**9


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [("trn1.32xlarge", 800), ("trn1n.32xlarge", 1_600), ("trn2.48xlarge", 3_200), ("trn2u.48xlarge", 3_200),
     ("trn3pds98-gen1", 12_800), ("trn3pds98", 28_800)],
)  # fmt: skip
def test_network_of_an_instance(name: str, gigabits: int) -> None:
    """Platforms §1: EFA per instance, in Gbit/s, is that of its chips together."""
    platform = load_platform(name)
    assert 8 * platform.chip_count * platform.parameter("network_bytes_per_second") == gigabits * 10**9


def test_files_repeat_no_number() -> None:
    """A machine that differs from another in few numbers is a file of those numbers over its base."""
    for name, base in (("trn1.32xlarge", "trn1.2xlarge"), ("trn1n.32xlarge", "trn1.32xlarge"),
                       ("trn2.48xlarge", "trn2.3xlarge"), ("trn2u.48xlarge", "trn2.48xlarge"),
                       ("inf2.24xlarge", "inf2.48xlarge"), ("trn3pds98-gen1", "trn3pds98")):  # fmt: skip
        own, under = tomllib.loads(whole(name)), tomllib.loads(whole(base))
        assert own["base"] == base
        for key, entry in own["parameters"].items() if "parameters" in own else ():
            assert {"value": entry["value"], "note": entry["note"]} != {
                each: under["parameters"].get(key, {}).get(each) for each in ("value", "note")
            }


def test_largest_file() -> None:
    """A machine file stays small, so that reading it costs a command nothing one would notice."""
    assert max(len(whole(name)) for name in known_platforms()) < 10_000


# --- a user's file ----------------------------------------------------------------------------------------------------


def test_a_file_over_a_base(write: Write) -> None:
    """A file takes every key of its base that it does not have; its name is that of the file."""
    mine = load_platform(write('base = "trn2.48xlarge"\n[parameters.link_bytes_per_second]\nvalue = 64_000_000_000\n'))
    base = load_platform("trn2.48xlarge")
    assert (mine.name, mine.ranks, mine.routing_ids) == ("mine", 64, base.routing_ids)
    assert (mine.layouts, mine.readings) == (base.layouts, base.readings)
    assert mine.parameter("link_bytes_per_second") == 64 * 10**9
    assert mine.parameter("hbm_bytes_per_second") == base.parameter("hbm_bytes_per_second")


def test_a_number_of_the_user_is_not_said_to_be_the_specifications(write: Write) -> None:
    """A new value has the source its file gives, or the file itself; a new note keeps the value's source."""
    path = write(
        'base = "trn2.48xlarge"\n[parameters.link_bytes_per_second]\nvalue = 1\n'
        '[parameters.dma_engines]\nvalue = 2\nsource = { page = "bench", section = "3", confidence = "low" }\n'
        '[parameters.hop_latency_ps]\nnote = "measured too"\n'
    )
    parameters = load_platform(path).parameters
    link, engines, hop = (parameters[key] for key in ("link_bytes_per_second", "dma_engines", "hop_latency_ps"))
    assert (link.source.confidence, link.note, link.unit) == (CONVENTION, "", "B/s")
    assert link.source.section == "parameters.link_bytes_per_second"
    assert (engines.value, engines.source) == (2, Source("bench", "3", LOW))
    assert (hop.value, hop.note, hop.source.page) == (1_500_000, "measured too", "platforms")


def test_a_value_takes_the_place_of_values_by_lnc(write: Write) -> None:
    """A parameter has one value, or one for each LNC; a user's one value holds for both."""
    path = write('base = "trn2.48xlarge"\n[parameters.hbm_bytes]\nvalue = 5\n')
    assert [load_platform(path, lnc=lnc).parameter("hbm_bytes") for lnc in (1, 2)] == [5, 5]


def test_a_base_over_a_base(write: Write) -> None:
    """A base may have a base: a file over trn2u has the torus of trn2."""
    mine = load_platform(write('base = "trn2u.48xlarge"\nname = "lab"\n'), nodes=4)
    assert (mine.name, mine.ranks, mine.pod_nodes) == ("lab", 256, 4)


def test_a_whole_file(write: Write) -> None:
    """Every built-in file without a base is a machine on its own."""
    mine = load_platform(write(whole("trn2.3xlarge").replace('"trn2.3xlarge"', '"copy"')))
    assert mine.name == "copy"
    assert mine.layouts == load_platform("trn2.3xlarge").layouts


def test_another_shape(write: Write) -> None:
    """A ring of eight chips is a base with two keys changed."""
    mine = load_platform(write('base = "inf2.48xlarge"\nlayouts = []\n[node]\ncolumns = 8\n'))
    assert (mine.shape, mine.chips, mine.ranks, mine.layouts) == (Shape.RING, 8, 16, ())


def test_a_cube_of_two_chips(write: Write) -> None:
    """A torus may have any power of two of chips; owners of ports follow the table of s-engines."""
    node = "[node]\ncolumns = 2\n[routing]\ndevices = [0, 1]\n[torus]\nneighbours = [[1], [0]]\n"
    mine = load_platform(write(f'base = "trn2.3xlarge"\n{node}[parameters.link_bytes_per_second]\nvalue = 7\n'))
    assert (mine.chips, mine.ranks, mine.port_lane) == (2, 8, ((3,), (1,)))


# --- damage -----------------------------------------------------------------------------------------------------------

TRN2 = 'base = "trn2.48xlarge"\n'
CABLE = "[parameters.link_bytes_per_second]\n"
DAMAGED = [
    ("name = ", r"mine\.toml: expected TOML, got Invalid value"),
    ("x = " + "9" * 5000, r"expected TOML, got a value that is too large"),
    ("x = " + "[" * 5000, r"expected TOML, got"),
    ("", r"mine\.toml: lnc: expected a table \[lnc\.1\] or \[lnc\.2\], got none"),
    ('base = "trn2"\n', r"base 'trn2' is not known: expected one of .*do you mean trn2\.3xlarge or trn2\.48xlarge"),
    ("base = 3\n", r"base: expected one line of text, got 3"),
    (TRN2 + "speed = 3\n", r"'speed': expected one of name, .*got a key without meaning"),
    (TRN2 + 'name = ""\n', r"name: expected one line of text, got ''"),
    (TRN2 + 'family = "TRN5"\n', r"family: expected one of TRN1, .*do you mean TRN"),
    (TRN2 + 'arch = "v3"\n', r"arch: expected one of sunda, cayman, mariana, got 'v3'"),
    (TRN2 + "lnc = 2\n", r"lnc: expected a table, got 2"),
    (TRN2 + "[lnc.3]\nranks_per_chip = 4\n", r"lnc\.'3': expected one of 1, 2"),
    (TRN2 + "[lnc.2]\nranks_per_chip = 0\n", r"lnc\.2\.ranks_per_chip: expected a whole number from 1 to 64, got 0"),
    (TRN2 + "[lnc.2]\nranks_per_chip = 3\n", r"ports: expected a multiple of 4 ranks on a chip, got 3"),
    (TRN2 + '[node]\nshape = "cubes"\n', r"node\.shape: expected one of cube, .*do you mean cube"),
    (TRN2 + "[node]\nrows = 3\n", r"routing\.devices: expected each of 12 chips once|from 0 to 11"),
    (TRN2 + "[node]\nrows = true\n", r"node\.rows: expected a whole number from 1 to 64, got True"),
    (TRN2 + '[node]\nshape = "ring"\n', r"routing: expected shape 'cube' beside it, got shape 'ring'"),
    (TRN2 + "[routing]\ndevices = [0]\n", r"routing\.devices: expected each of 16 chips once"),
    (TRN2 + "[torus]\nneighbours = [[1]]\n", r"torus\.neighbours: expected one row for each of 16 chips, got 1 rows"),
    (TRN2 + "[torus]\nneighbours = 1\n", r"torus\.neighbours: expected a list of lists"),
    (TRN2 + f"[torus]\nneighbours = {[[0]] * 16}\n", r"neighbours\[0\]: expected for each of 4 routing id bits"),
    (TRN2 + "[ports]\nlane_of_s_engine = [[0, 1, 2, 3]]\n", r"lane_of_s_engine: expected four rows"),
    (TRN2 + "[network]\nefa = 1\n", r"network\.efa: expected true or false, got 1"),
    ('base = "trn3pds98"\n[network]\nefa = false\n', r"network\.reason: expected a value, got nothing; add the key"),
    (
        TRN2 + "[pod]\nleft_s_engines = [0]\nright_s_engines = [1]\n",
        r"pod\.left_s_engines: expected \[ports\], and each",
    ),
    (TRN2 + "layouts = 4\n", r"layouts: expected tables, each under \[\[layouts\]\], got 4"),
    (TRN2 + "[[layouts]]\nbits = []\nlanes = 4\n", r"layouts\[0\]\.name: expected a value, got nothing"),
    (TRN2 + '[[layouts]]\nname = "x"\nbits = [4]\nlanes = 4\n', r"bits: expected a list of whole numbers from 0 to 3"),
    (TRN2 + '[[layouts]]\nname = "x"\nbits = [1, 1]\nlanes = 4\n', r"bits: expected each bit once, got \[1, 1\]"),
    (TRN2 + '[[layouts]]\nname = "x"\nbits = []\nlanes = 3\n', r"lanes: expected lanes x lane_step that divides 4"),
    (TRN2 + '[[layouts]]\nname = "x"\nbits = []\nlanes = 1\nrole = "pp"\n', r"role: expected one of tp, dp"),
    (TRN2 + CABLE + "value = 0\n", r"link_bytes_per_second\.value: expected a whole number from 1 to 10{15}, got 0"),
    (TRN2 + CABLE + "value = 1.5\n", r"value: expected a whole number .*got 1\.5"),
    (TRN2 + CABLE + 'value = 9\nunit = "GB/s"\n', r"unit: expected 'B/s', got 'GB/s'"),
    (TRN2 + CABLE + "value = 9\nby_lnc = { 2 = 9 }\n", r"value: expected either value or by_lnc, got both"),
    (TRN2 + CABLE + "by_lnc = { 1 = 9 }\n", r"by_lnc\.2: expected a value, got nothing"),
    (TRN2 + "[parameters.link_bytes]\nvalue = 1\n", r"parameters\.'link_bytes': expected one of .*do you mean"),
    (TRN2 + CABLE + 'value = 9\nsource = "bench"\n', r"source: expected a table, got 'bench'"),
    (TRN2 + '[readings.x]\nused = "a"\nothers = 3\n', r"readings\.x\.others: expected a list of lines of text, got 3"),
    ('base = "inf2.48xlarge"\n[network]\nefa = true\n', r"network_bytes_per_second: expected a table with the value"),
    ('base = "trn3pds98"\n[pod]\nservers = 35\n', r"servers_per_rack: expected all or half of the 35 servers, got 18"),
    ('base = "trn3pds98"\n[node]\ncolumns = 17\n', r"node\.columns: expected at most 16 chips on a server, got 17"),
    ('base = "trn3pds98"\n[[layouts]]\nname = "x"\n', r"layouts: expected none on a switch machine, got 1"),
    ('base = "inf2.48xlarge"\nparameters = 3\n', r"parameters: expected a table, got 3"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_file_is_named(write: Write, text: str, message: str) -> None:
    """A damaged or incomplete file is refused in one sentence: file, key, expected, got."""
    with pytest.raises(UsageError, match=message) as caught:
        load_platform(write(text))
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_missing_parameter_is_named(write: Write, name: str) -> None:
    """A file without a number that the machine needs is refused; a number that is only shown may be missing."""
    text = whole("trn3pds98")
    start = text.find(f"[parameters.{name}]")
    if start < 0:
        return
    end = text.index("[", text.index("note = ", start))
    path = write(text[:start] + text[end:])
    if name in ("hbm_bytes", "sbuf_bytes", "cc_cores", "network_efficiency_permille"):
        assert name not in load_platform(path).parameters
        return
    with pytest.raises(UsageError, match=rf"parameters\.{name}: expected a table with the value, got nothing"):
        load_platform(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A file that is not UTF-8, a folder, and a file of megabytes are refused."""
    path = tmp_path / "mine.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(UsageError, match="expected UTF-8 text"):
        load_platform(str(path))
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UsageError, match="expected at most 1048576 bytes"):
        load_platform(str(path))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_platform(f"{tmp_path}/")
