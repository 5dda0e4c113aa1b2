"""The page of implemented facts: it is fresh, complete where that can be said, and the same in every process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.citations import Citation, citation, show
from tests.fidelity import (
    COMMAND,
    PAGE,
    ROOT,
    UNCITED,
    Fact,
    is_stale,
    machine_facts,
    main,
    module_facts,
    modules,
    page,
    rows,
)
from tests.pins import UNPINNED, Pins

from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Confidence
from rota.isa.layout import Layout

Rows = list[tuple[Fact, str]]

PLANTED = '''"""A module with facts."""

import re
from dataclasses import dataclass
from enum import IntEnum

from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Source
from rota.isa.layout import Field, Layout
from rota.isa.enums import Algorithm, EncOp

DEPTH = 7
DEPTH_SOURCE = Source("select", "1", LOW)

BLOCK_SOURCE = Source("device", "2", MEDIUM)
WIDTH = 4096
HEIGHT = 2  # our own. Source: device §3, low

TEXTURES = 8
COLOURS = 3
COLOUR_SOURCE = Source("sdma", "4")
SHAPES = 5

# Whole groups. Source: isa §6, medium.
LOW_BIT = 1
HIGH_BIT = 2

GIVEN = frozenset({"b", "a"})
"""What is given. Source: schedule §7."""

ENTRY = Layout("entry", size=4, source=Source("isa", "8", HIGH), fields=(Field("at", 0, "<u4", "where"),))
ENTRIES = 9

RULE_SOURCE = Source("compose", "10", CONVENTION)
LONELY_SOURCE = Source("compose", "11")

_HIDDEN = 6
NAMELESS = 1


class Mode(IntEnum):
    """How. Source: isa §12, high; ZERO is a choice of this project."""

    ZERO = 0
    ONE = 1


class Unsourced(IntEnum):
    """No source."""

    ZERO = 0


def obey():
    """Obey the rule. And more."""
    return RULE_SOURCE


def windows():
    return (_row(EncOp.ALLREDUCE, 2 * WIDTH, RULE_SOURCE),)


def _row(op, maximum, source, minimum=0):
    return op, minimum, maximum, source
'''


@pytest.fixture(scope="module")
def found() -> Rows:
    return rows()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fact]:
    """The facts of the planted module by their last name."""
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {fact.name.removeprefix("planted."): fact for fact in module_facts(module, PLANTED)}


def test_the_page_is_fresh(found: Rows) -> None:
    """`docs/fidelity.md` says what the code says."""
    assert not is_stale(PAGE, page(found)), f"{PAGE.relative_to(ROOT)} is stale: run `{COMMAND}`"


def test_every_row_has_a_source_and_a_confidence(found: Rows) -> None:
    """A fact is cited by page and section, with one of the four confidences."""
    bare = [fact.name for fact, _ in found if " §" not in fact.cited.text or not fact.cited.text.split(" §")[1]]
    assert not bare
    assert {fact.cited.confidence for fact, _ in found} <= {HIGH, MEDIUM, LOW, CONVENTION}
    assert {each.value for each in Confidence} == {"high", "medium", "low", "convention"}


@pytest.mark.parametrize(
    ("name", "value", "source", "confidence"),
    [
        ("isa.opcodes.Opcode", "EVENT_SEMAPHORE=160", "isa §3.2", HIGH),
        ("isa.enums.Algorithm", "12 members: RING=0, HIER=1", "isa §7", HIGH),
        ("isa.enums.PTC_ALU_MASK", "848", "isa §8.1", HIGH),
        ("isa.dtypes.SIZE", "FP16: 2", "sdma §9", HIGH),
        ("isa.descriptors.LAYOUT", "16 B: len_ctrl @0 <u4, meta_ctrl @4 <u4, buf_ptr @8 <u8", "sdma §2", HIGH),
        ("isa.spad.SLOT", "last_row @6:0+1", "device §2.2", HIGH),
        ("isa.semaphores.SEMAPHORES", "256", "device §8.1", HIGH),
        ("isa.arch.ARCHES.cayman", "cores=8", "device-model §2, memory map", CONVENTION),
        ("isa.config.RING_CHANNEL", "148 B: ", "device §4", HIGH),
        ("isa.image.MAGIC", "b'ROTAIMG1'", "device-model §4, image", CONVENTION),
        ("machine.platform.Family", "TRN1=2", "platforms §1", HIGH),
        ("machine.platforms.trn1.2xlarge.parameters.dma_engines", "16 engines", "platforms §2", HIGH),
        ("machine.cycles.CYCLE_A", "(0, 1, 2, 3, 7, 11,", "topology §2", CONVENTION),
        ("select.settings.RING_CHUNK", "2097152 = 0x200000", "select §8", HIGH),
        ("select.subtypes.RDH_LIMIT", "58720256", "select §7.4", CONVENTION),
        ("select.subtypes.full_mesh.RS", "0 < size <= slots", "select §7.3", CONVENTION),
        ("select.rules.can_kangaring", "rule: ", "select §5.3", HIGH),
        ("emit.collective.RING_SIZE", "4096", "sdma §14.6", HIGH),
        ("schedule.ir.MAX_SOURCES", "32", "design §2 (20)", CONVENTION),
        ("frontends.hlo_text.ELEMENT_SIZES", "'pred': 1", "interchange §4.5", HIGH),
        ("simulate.cost.CCE_SLOWDOWN", "2", "platforms §2, DMA compute", MEDIUM),
        ("compose.cut.GRANULE", "32", "device-model §3, fold split", CONVENTION),
    ],
)  # fmt: skip
def test_facts_known_by_hand(found: Rows, name: str, value: str, source: str, confidence: Confidence) -> None:
    """One fact of each way to state a source, from every part of the package, with value, source and confidence."""
    there = [fact for fact, _ in found if fact.name == name]
    assert [(fact.cited, value in fact.value) for fact in there] == [(Citation(source, confidence), True)]


def test_every_layout_is_there(found: Rows) -> None:
    """A layout of a module is a row of the page, whichever name it has."""
    names = {fact.name for fact, _ in found}
    layouts = {
        f"{name.removeprefix('rota.')}.{key}"
        for name, (module, text) in modules().items()
        for key, value in vars(module).items()
        if isinstance(value, Layout) and (f"\n{key}: Final = Layout(" in text or f"\n{key} = Layout(" in text)
    }
    assert len(layouts) > 10
    assert layouts <= names


@pytest.mark.parametrize(
    ("name", "value", "source", "confidence"),
    [
        ("DEPTH", "7", "select §1", LOW),  # NAME_SOURCE behind it
        ("WIDTH", "4096 = 0x1000", "device §2", MEDIUM),  # a source before it
        ("HEIGHT", "2", "device §3", LOW),  # a comment of its own wins
        ("COLOURS", "3", "sdma §4", HIGH),  # a source behind it that has its word
        ("LOW_BIT", "1", "isa §6", MEDIUM),  # a comment above
        ("HIGH_BIT", "2", "isa §6", MEDIUM),  # and all it is above
        ("GIVEN", "{'a', 'b'}", "schedule §7", CONVENTION),  # a docstring; a page of choices
        ("ENTRY", "4 B: at @0 <u4", "isa §8", HIGH),
        ("ENTRIES", "9", "isa §8", HIGH),  # beside a layout
        ("Mode", "2 members: ZERO=0, ONE=1", "isa §12; ZERO is a choice of this project", CONVENTION),
        ("obey", "rule: Obey the rule.", "compose §10", CONVENTION),  # a function that cites a source
        ("windows.EncOp.ALLREDUCE", "0 < size <= 2 * WIDTH, all operands", "compose §10", CONVENTION),
        ("LONELY_SOURCE", UNCITED, "compose §11", HIGH),
    ],
)
def test_planted_facts(planted: dict[str, Fact], name: str, value: str, source: str, confidence: Confidence) -> None:
    """Each way to state a source is read."""
    assert planted[name].value == value
    assert planted[name].cited == Citation(source, confidence)


def test_nothing_else_is_planted(planted: dict[str, Fact]) -> None:
    """What has no source is no fact: none is guessed from a neighbour that speaks of another."""
    assert not planted.keys() & {"TEXTURES", "SHAPES", "_HIDDEN", "NAMELESS", "Unsourced", "RULE_SOURCE"}
    assert len(planted) == 13


def test_machine_files() -> None:
    """Every table of a machine file with a source is a fact: parameters with units, tables of rows, single tables."""
    text = """
        [routing]
        devices = [1, 0]
        source = { page = "platforms", section = "1", confidence = "high" }
        [[layouts]]
        name = "2x1"
        lanes = 2
        source = { page = "topology", section = "2", confidence = "low" }
        [parameters.hop_latency_ps]
        value = 1_500
        unit = "ps"
        note = "measured"
        source = { page = "platforms", section = "3", confidence = "convention" }
    """
    found = [(fact.name, fact.value, fact.cited) for fact in machine_facts("new", text)]
    assert found == [
        ("machine.platforms.new.routing", "'devices': (1, 0)", Citation("platforms §1", HIGH)),
        ("machine.platforms.new.layouts.2x1", "'lanes': 2", Citation("topology §2", LOW)),
        ("machine.platforms.new.parameters.hop_latency_ps", "1500 ps", Citation("platforms §3", CONVENTION)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A thing. Source: all-reduce §4b, high × observed.", Citation("all-reduce §4b", HIGH)),
        ("A thing.\n\nSource: isa §1, high; the rest,\nisa §4, low.", Citation("isa §1; the rest, isa §4", LOW)),
        ("Source: sdma §4, high for the places, low for the names.", Citation("sdma §4", LOW)),
        ("Source:\n    select §7.3. The bytes of each group follow.", Citation("select §7.3", HIGH)),
        ("Source: device-model §3", Citation("device-model §3", CONVENTION)),
        ("Source: `OTHER`.", None),
        ("Resource: isa §1, high.", None),
        (None, None),
    ],
)  # fmt: skip
def test_citations(text: str | None, expected: Citation | None) -> None:
    """Of several confidences the weakest counts; without any, `Source`'s default, or convention for our own pages."""
    assert citation(text) == expected


def test_sets_are_shown_in_order() -> None:
    """A set reads the same whatever its hashes: numbers by value, texts by letter."""
    assert show(frozenset({300, 2, 17})) == "{2, 17, 300}"
    assert show(frozenset({"b", "c", "a"})) == "{'a', 'b', 'c'}"


SOURCES = {"rota.isa.a": "ONE = 1\nTWO = 2\n", "rota.isa.b": "from rota.isa.a import ONE as UNO\nTHREE = 3\n"}


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        (("rota.isa.a.ONE",), "tests/unit/isa/test_a.py::test_asserts"),  # its own part's, in a check
        (("rota.isa.a.TWO",), "tests/cli/test_b.py::test_module"),  # through an imported module
        (("rota.isa.b.THREE",), "tests/unit/isa/test_a.py::TestOne::test_helper"),  # through a helper
        ((".attribute",), "tests/cli/test_b.py::test_module"),
        (("'text'",), "tests/cli/test_b.py::test_module"),
        (("rota.isa.a.FOUR",), UNPINNED),
    ],
)
def test_pins(keys: tuple[str, ...], place: str) -> None:
    """The test of a fact: one that names it, wherever imported from, before one that reaches it through its file."""
    texts = {
        "tests/cli/test_b.py": (
            "from rota.isa import a\nfrom rota.isa.a import ONE\n"
            "def test_first():\n    assert ONE\n"
            "def test_module():\n    assert a.TWO == x.attribute == 'text'\n"
        ),
        "tests/unit/isa/test_a.py": (
            "from rota.isa.b import UNO, THREE\n"
            "FOUR = 4\n"
            "def helper():\n    return THREE\n"
            "def test_a_use():\n    print(UNO)\n"
            "def test_asserts():\n    assert UNO == 1\n"
            "class TestOne:\n    def test_helper(self):\n        assert helper() == FOUR\n"
        ),
    }
    assert Pins(texts, SOURCES).of(keys, "isa") == place


def test_pins_name_tests_that_exist(found: Rows) -> None:
    """The last column leads to a test of the repository."""
    for fact, pin in found:
        if pin != UNPINNED:
            path, _, name = pin.partition("::")
            assert f"def {name.rpartition('::')[2] or name}(" in (ROOT / path).read_text(encoding="utf-8"), fact.name


def test_values_are_short(found: Rows) -> None:
    """A row is one line of five cells, and a value at most 80 characters of it."""
    table = [line for line in page(found).splitlines() if line.startswith("| ") and not line.startswith("| fact ")]
    assert len(table) == len(found)
    cells = [line.replace("\\|", "/").strip("| ").split(" | ") for line in table]
    assert all(len(each) == 5 and len(each[1]) <= 80 for each in cells)


def test_the_head_counts(found: Rows) -> None:
    """The head of the page counts the facts of each confidence, and those without a test."""
    counts = {each: sum(fact.cited.confidence is each for fact, _ in found) for each in Confidence}
    said = ", ".join(f"{count} {each.value}" for each, count in counts.items())
    bare = sum(pin == UNPINNED for _, pin in found)
    assert f"\n{len(found)} facts: {said}; {bare} without a test.\n" in page(found)


def test_check_refuses_a_stale_page(
    found: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--check` ends with 1 and names the command when the page is missing or differs, with 0 when it is fresh."""
    monkeypatch.setattr("tests.fidelity.rows", lambda: found[:9])
    path = tmp_path / "page.md"
    assert main(["--check"], path) == 1
    assert not path.exists()
    assert capsys.readouterr().err == "page.md is stale: run `python -m tests.fidelity`\n"
    assert main([], path) == 0
    assert main(["--check"], path) == 0
    assert capsys.readouterr().err == ""
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert main(["--check"], path) == 1


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    """Any argument but `--check` ends with 2 and writes nothing."""
    assert main(["--write"], tmp_path / "page.md") == 2
    assert not list(tmp_path.iterdir())


def test_two_processes_agree() -> None:
    """Two processes with different hash seeds print equal pages."""
    code = "import sys; from tests.fidelity import page, rows; sys.stdout.buffer.write(page(rows()).encode())"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "2")
    ]
    first, second = (each.communicate()[0] for each in running)
    assert first
    assert first == second
