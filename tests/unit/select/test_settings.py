"""The runtime's environment variables: defaults, legal values, names, and what would block."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import rota
from rota.errors import UsageError
from rota.facts import CONVENTION, HIGH, LOW, MEDIUM, Confidence
from rota.isa.enums import Algorithm, CommScope
from rota.select import Settings
from rota.select.settings import (
    BY_NAME,
    CHANNEL_BUFFER,
    FORCED,
    INTRA_RDH_BUFFER,
    OFF,
    RING_CHUNK,
    SLOTS,
    VARIABLES,
    admits,
    changed,
    describe,
    find_variable,
    format_alg_types,
    format_settings,
    intra_rdh_bytes,
    parse_alg_types,
    parse_settings,
    settings_table,
)
from rota.select.variables import Kind, Variable

ALL = 0x3FFFFF
ROOT = Path(rota.__file__).parent
TEXTS = [
    (path.relative_to(ROOT).parts[0].removesuffix(".py"), path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "settings.py"
]

TABLE = [
    # variable                                        field                   default     confidence of the default
    ("NEURON_RT_CC_ALG_TYPES", "alg_types", ALL, CONVENTION),
    ("NEURON_RT_CC_CHANNEL_BUFFER_N", "slots", 8, HIGH),
    ("NEURON_RT_CC_CHUNK_SIZE", "chunk", 0x200000, HIGH),
    ("NEURON_RT_DBG_HIERARCHICAL_CC", "hier_mode", 0, MEDIUM),
    ("NEURON_RT_DBG_HIER_CC_PIPELINE", "hier_pipeline", 0, MEDIUM),
    ("NEURON_RT_DBG_KANGARING_CC", "kangaring_mode", 0, MEDIUM),
    ("NEURON_RT_DBG_SINGLE_CYCLE_RING_ALLR_CC", "single_cycle_mode", 2, MEDIUM),
    ("NEURON_RT_DBG_RDH_CC", "rdh_mode", 1, MEDIUM),
    ("NEURON_RT_DBG_MESH_CC", "mesh", True, MEDIUM),
    ("NEURON_RT_DBG_CC_INTER_MESH_MAX_NODES", "inter_mesh_max_nodes", 16, LOW),
    ("NEURON_RT_DBG_MESH_CHANNEL_BUFFER_SIZE", "mesh_channel_buffer", 0x800000, HIGH),
    ("NEURON_RT_DBG_MESH_DOUBLE_BUF", "mesh_double_buffer", True, MEDIUM),
    ("NEURON_RT_DBG_ENFORCE_MESH_GLOBAL_HANDSHAKE", "mesh_global_handshake", 0, MEDIUM),
    ("NEURON_RT_DBG_RDH_DOUBLE_BUF", "rdh_double_buffer", False, MEDIUM),
    ("NEURON_RT_DBG_ENFORCE_RDH_GLOBAL_HANDSHAKE", "rdh_global_handshake", 0, MEDIUM),
    ("NEURON_RT_DBG_INTRA_RDH_CHANNEL_BUFFER_SIZE", "intra_rdh_buffer", None, MEDIUM),
    ("NEURON_RT_DBG_INTER_RDH_CHANNEL_BUFFER_SIZE", "inter_rdh_buffer", 0x2000000, MEDIUM),
    ("NEURON_RT_DBG_INTER_RDH_RECV_WINDOW_N", "inter_rdh_window", 0, MEDIUM),
    ("NEURON_RT_DBG_FORCE_2DEV_PROXY", "force_2dev_proxy", False, MEDIUM),
    ("NEURON_RT_DBG_HYBRID_RING_CC_EN", "hybrid_ring", True, MEDIUM),
    ("NEURON_RT_DBG_CC_STREAM_MODE", "stream_mode", 1, MEDIUM),
    ("NEURON_RT_DBG_CC_SORT_RG", "sort_groups", False, MEDIUM),
    ("NEURON_RT_DBG_CC_FORCE_SINGLE_RANK_RG", "force_single_rank", False, MEDIUM),
    ("NEURON_RT_DBG_CC_NOP", "nop", False, MEDIUM),
    ("NEURON_RT_DBG_CC_CHECK_SIGS", "check_signatures", True, MEDIUM),
    ("NEURON_RT_DBG_EARLY_COMPLETION", "early_completion", True, MEDIUM),
    ("NEURON_RT_DBG_EARLY_POSTING", "early_posting", True, MEDIUM),
    ("NEURON_RT_RANKS_PER_NETWORK_PROXY", "ranks_per_proxy", 1, MEDIUM),
    ("NEURON_RT_DBG_CC_DMA_PACKET_SIZE", "dma_packet_sizes", (), HIGH),
    ("NEURON_RT_DBG_CC_DMA_COPY_DMA_PRIO_PKT_SIZE", "copy_priority_packet_sizes", (), CONVENTION),
    ("NEURON_RT_DBG_CC_CCE_REDUCE_DMA_PRIO_PKT_SIZE", "reduce_priority_packet_sizes", (), CONVENTION),
    ("NEURON_RT_DBG_DISABLE_RMV_DST_ROUTING", "disable_rmv_routing", False, CONVENTION),
    ("NEURON_RT_ENABLE_RG_VALIDATION", "validate_groups", False, CONVENTION),
    ("NEURON_EXPERIMENTAL_COMPRESS_RG", "compress_groups", False, CONVENTION),
    ("NEURON_RT_VIRTUAL_CORE_SIZE", "virtual_core_size", None, MEDIUM),
    ("NEURON_LOGICAL_NC_CONFIG", "logical_nc_config", None, MEDIUM),
    ("NEURON_RT_ULTRASERVER_MODE", "ultraserver_mode", 0, MEDIUM),
    ("NEURON_RT_ROOT_COMM_ID", "root_comm_id", None, MEDIUM),
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "default", "confidence"), TABLE)
def test_every_variable_has_its_default(name: str, field: str, default: object, confidence: Confidence) -> None:
    """The name, the default and how sure it is, of each row. Source: select §3.1."""
    variable = BY_NAME[name]
    value = getattr(Settings(), field)
    assert (variable.field, variable.default, value) == (field, default, default)
    assert type(value) is type(default)
    assert variable.source.confidence is confidence
    assert variable.meaning


def test_the_table_is_complete() -> None:
    """No variable more, none less, in the order of the page; every field is one."""
    assert [each.name for each in VARIABLES] == [name for name, *_ in TABLE]
    assert [each.name for each in fields(Settings)] == [field for _, field, *_ in TABLE]


def test_defaults_stand_once() -> None:
    """The module's constants are the defaults of the fields."""
    made = Settings()
    assert (made.mesh_channel_buffer, made.chunk, made.slots) == (CHANNEL_BUFFER, RING_CHUNK, SLOTS)


def test_a_default_that_depends_on_the_machine_is_said_in_words() -> None:
    """LNC is 2, but 1 on Inf2 and Trn1; intra-node scratch 40 MB, 80 on architecture 4. Source: select §3.1."""
    said = {each.field: each.default_text for each in VARIABLES}
    assert said["virtual_core_size"] == said["logical_nc_config"] == "2, on Inf2 and Trn1 1"
    assert said["intra_rdh_buffer"] == "40M, on Trn3 80M"
    assert (said["alg_types"], said["chunk"], said["mesh"], said["root_comm_id"]) == ("all", "2M", "1", "unset")
    assert intra_rdh_bytes(Settings(), "cayman") == INTRA_RDH_BUFFER == 40 << 20
    assert intra_rdh_bytes(Settings(), "mariana") == 80 << 20
    assert intra_rdh_bytes(Settings(intra_rdh_buffer=4096), "mariana") == 4096


def test_settings_are_values() -> None:
    """Equal settings are one key, and cannot change."""
    assert {Settings(): 1}[parse_settings([])] == 1
    assert Settings(slots=9) != Settings()
    with pytest.raises(FrozenInstanceError):
        Settings().slots = 9  # type: ignore[misc]


# Values.


@pytest.mark.parametrize("slots", [2, 1, 0, -1, 33])
def test_slots_are_refused_below_3_and_above_32(slots: int) -> None:
    """Slots: default 8, at most 32, refused below 3. Source: design §2 (16)."""
    with pytest.raises(UsageError, match=f"NEURON_RT_CC_CHANNEL_BUFFER_N={slots}: expected 3 to 32, got {slots}; with"):
        Settings(slots=slots)
    assert [Settings(slots=n).slots for n in (3, 32)] == [3, 32]


@pytest.mark.parametrize("chunk", [0, 32, 63, 100, -64, 1 << 32])
def test_a_chunk_has_aligned_halves(chunk: int) -> None:
    """A ring chunk must be even; its halves are whole granules of 32 bytes."""
    with pytest.raises(
        UsageError, match=f"NEURON_RT_CC_CHUNK_SIZE={chunk}: expected a multiple of 64 bytes from 64 to"
    ):
        Settings(chunk=chunk)
    assert Settings(chunk=64).chunk == 64
    assert Settings(chunk=(1 << 32) - 64).chunk == (1 << 32) - 64


@pytest.mark.parametrize("field", ["hier_mode", "kangaring_mode", "single_cycle_mode"])
def test_modes_are_0_1_and_2(field: str) -> None:
    """0 is automatic, 1 forces, 2 disables. Source: select §3.1."""
    name = next(each.name for each in VARIABLES if each.field == field)
    for value in (0, FORCED, OFF):
        assert getattr(parse_settings([f"{name}={value}"]), field) == value
    for bad in ("3", "-1", "on", "", "0x3", "1.0"):
        with pytest.raises(UsageError, match=f"{name}={bad}: expected 0, 1 or 2, got {bad or 'nothing'}"):
            parse_settings([f"{name}={bad}"])


def test_the_rdh_mode_is_off_only_at_0() -> None:
    """0 disables recursive doubling inside a node, any other value is automatic. Source: select §3.1."""
    assert [parse_settings([f"RDH_CC={text}"]).rdh_mode for text in ("0", "1", "2", "7")] == [0, 1, 2, 7]


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("1", True), ("true", True), ("FALSE", False), (" True ", True)]
)
def test_flags(text: str, value: bool) -> None:
    """A bool is 0, 1, true or false."""
    for variable in VARIABLES:
        if variable.kind is Kind.FLAG:
            assert getattr(parse_settings([f"{variable.name}={text}"]), variable.field) is value


@pytest.mark.parametrize("bad", ["2", "yes", "on", "", "00", "-1", "١"])
def test_other_flags_are_refused(bad: str) -> None:
    """A bool is nothing else, and the message says what was expected and what was there."""
    with pytest.raises(UsageError, match=r"^NEURON_RT_DBG_MESH_CC=.*: expected 0, 1, true or false, got .+"):
        parse_settings([f"MESH_CC={bad}"])


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("0x20", 32), ("0X1f", 31), ("010", 10), (" 9 ", 9)]
)  # fmt: skip
def test_counts_are_decimal_or_hexadecimal(text: str, value: int) -> None:
    """An unsigned number is decimal, or hexadecimal behind 0x; a leading zero means nothing."""
    assert parse_settings([f"CC_CHANNEL_BUFFER_N={text}"]).slots == value


@pytest.mark.parametrize("bad", ["8K", "0x", "8.0", "+8", "1e1", "٨", "0b11", "9" * 5000, "0x" + "f" * 99])
def test_other_counts_are_refused(bad: str) -> None:
    """A count takes no unit, sign, fraction or foreign digit, and no number of any length."""
    with pytest.raises(UsageError, match=r"^NEURON_RT_CC_CHANNEL_BUFFER_N=.{1,50}: expected 3 to 32, got") as caught:
        parse_settings([f"CC_CHANNEL_BUFFER_N={bad}"])
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "value"),
    [("4M", 4 << 20), ("4194304", 4 << 20), ("0x400000", 4 << 20), ("4096K", 4 << 20), ("4MiB", 4 << 20),
     ("1024T", 1 << 50)],
)  # fmt: skip
def test_bytes_take_sizes(text: str, value: int) -> None:
    """Bytes are a number, or a size with a unit that is a power of two."""
    assert parse_settings([f"MESH_CHANNEL_BUFFER_SIZE={text}"]).mesh_channel_buffer == value


@pytest.mark.parametrize("bad", ["0", "63", "0M", "1025T", "4X", "-4M", "", "M"])
@pytest.mark.parametrize("name", ["MESH_CHANNEL_BUFFER_SIZE", "INTER_RDH_CHANNEL_BUFFER_SIZE"])
def test_a_buffer_holds_something(name: str, bad: str) -> None:
    """A buffer of no bytes, or of more than memory, is refused with its name and bounds."""
    with pytest.raises(UsageError, match=rf"^NEURON_RT_DBG_{name}={bad}: expected 64 to 1024T bytes, got"):
        parse_settings([f"{name}={bad}"])


def test_zero_is_legal_where_it_means_something() -> None:
    """0 turns the network mesh off, and makes window and pipeline automatic. Source: select §3.1, §6.2."""
    made = parse_settings(["CC_INTER_MESH_MAX_NODES=0", "INTER_RDH_RECV_WINDOW_N=0", "HIER_CC_PIPELINE=0"])
    assert (made.inter_mesh_max_nodes, made.inter_rdh_window, made.hier_pipeline) == (0, 0, 0)
    with pytest.raises(UsageError, match="NEURON_RT_RANKS_PER_NETWORK_PROXY=0: expected 1 to 4294967295, got 0"):
        parse_settings(["RANKS_PER_NETWORK_PROXY=0"])


def test_packet_sizes_of_streams() -> None:
    """One entry a stream, 64 KiB at most, clamped to 16 entries. Source: select §3.1; sdma §7."""
    assert parse_settings(["CC_DMA_PACKET_SIZE=64K, 4096,0x200"]).dma_packet_sizes == (65536, 4096, 512)
    assert parse_settings(["CC_DMA_PACKET_SIZE=" + ",".join(["4096"] * 17)]).dma_packet_sizes == (4096,) * 16
    assert parse_settings(["CC_DMA_PACKET_SIZE="]).dma_packet_sizes == ()
    for bad in ("65537", "128K", "31", "0", "4096,,4096", "4096;4096", ",", "4096,x"):
        expected = "expected 1 to 16 sizes with commas between, each 32 to 65536 bytes, got"
        with pytest.raises(UsageError, match=f"NEURON_RT_DBG_CC_DMA_PACKET_SIZE={bad}: {expected}"):
            parse_settings([f"CC_DMA_PACKET_SIZE={bad}"])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("NEURON_RT_DBG_CC_DMA_COPY_DMA_PRIO_PKT_SIZE", "copy_priority_packet_sizes"),
        ("NEURON_RT_DBG_CC_CCE_REDUCE_DMA_PRIO_PKT_SIZE", "reduce_priority_packet_sizes"),
    ],
)
def test_packet_sizes_of_priority_classes(name: str, field: str) -> None:
    """Exactly one entry for each of the classes 0 to 4; 0 means uncapped. Source: select §3.1; sdma §7."""
    assert getattr(parse_settings([f"{name}=0,64K,4096,512,32"]), field) == (0, 65536, 4096, 512, 32)
    for bad in ("1024", "1024,1024,1024,1024", "0,0,0,0,0,0", "0,0,0,0,31", "0,0,0,0,65537"):
        with pytest.raises(
            UsageError, match=f"{name}={bad}: expected 5 sizes with commas between, each 0 or 32 to 65536"
        ):
            parse_settings([f"{name}={bad}"])


def test_ultraserver_modes() -> None:
    """UNSET 0, X4 1, X2H 2, X2V 3, X1 4. Source: platforms §1."""
    words = ("UNSET", "X4", "x2h", "X2V", "X1")
    assert [parse_settings([f"ULTRASERVER_MODE={word}"]).ultraserver_mode for word in words] == [0, 1, 2, 3, 4]
    assert [parse_settings([f"ULTRASERVER_MODE={n}"]).ultraserver_mode for n in range(5)] == [0, 1, 2, 3, 4]
    for bad in ("5", "X3", ""):
        with pytest.raises(
            UsageError, match=f"ULTRASERVER_MODE={bad}: expected 0, 1, 2, 3 or 4, or UNSET, X4, X2H, X2V, X1"
        ):
            parse_settings([f"ULTRASERVER_MODE={bad}"])


def test_root_comm_id_is_one_word() -> None:
    """An address, or unset."""
    assert parse_settings(["ROOT_COMM_ID=10.0.0.1:46820"]).root_comm_id == "10.0.0.1:46820"
    assert parse_settings(["ROOT_COMM_ID=a=b"]).root_comm_id == "a=b"
    assert parse_settings(["ROOT_COMM_ID="]).root_comm_id is None
    for bad in ("a b", "a\nb", "é", "x" * 256):
        with pytest.raises(
            UsageError, match=r"NEURON_RT_ROOT_COMM_ID=.{1,60}: expected 1 to 255 visible ASCII"
        ) as caught:
            parse_settings([f"ROOT_COMM_ID={bad}"])
        assert "\n" not in str(caught.value)


def test_the_size_of_a_logical_core_has_two_names() -> None:
    """NEURON_RT_VIRTUAL_CORE_SIZE and NEURON_LOGICAL_NC_CONFIG mean one thing, 1 or 2. Source: select §3.1."""
    assert Settings().lnc is None
    assert parse_settings(["VIRTUAL_CORE_SIZE=1"]).lnc == 1
    assert parse_settings(["LOGICAL_NC_CONFIG=2"]).lnc == 2
    assert parse_settings(["VIRTUAL_CORE_SIZE=1", "LOGICAL_NC_CONFIG=1"]).lnc == 1
    with pytest.raises(
        UsageError, match="NEURON_LOGICAL_NC_CONFIG=2: expected 1, the value of NEURON_RT_VIRTUAL_CORE_SIZE"
    ):
        parse_settings(["VIRTUAL_CORE_SIZE=1", "LOGICAL_NC_CONFIG=2"])
    for bad in ("0", "3", "two"):
        with pytest.raises(UsageError, match=f"NEURON_LOGICAL_NC_CONFIG={bad}: expected 1 or 2, got {bad}"):
            parse_settings([f"LOGICAL_NC_CONFIG={bad}"])


# Names.


@pytest.mark.parametrize(
    "name",
    ["NEURON_RT_DBG_KANGARING_CC", "neuron_rt_dbg_kangaring_cc", "KANGARING_CC", "Kangaring_CC", " DBG_KANGARING_CC "],
)
def test_a_name_may_lose_its_prefix(name: str) -> None:
    """A variable is called by its real name, or by the part behind a common prefix, in any case."""
    assert find_variable(name).field == "kangaring_mode"


def test_short_names_are_unique() -> None:
    """No two variables share the part behind a prefix."""
    prefixes = ("NEURON_RT_DBG_", "NEURON_RT_", "NEURON_", "")
    short = {(each.name.removeprefix(prefix), each.field) for each in VARIABLES for prefix in prefixes}
    assert len({name for name, _ in short}) == len(short)
    assert all(find_variable(name).field == field for name, field in short)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NEURON_RT_CC_CHANEL_BUFFER_N", "NEURON_RT_CC_CHANNEL_BUFFER_N"),
        ("kanga_ring_cc", "NEURON_RT_DBG_KANGARING_CC"),
        ("MESH", "NEURON_RT_DBG_MESH_CC"),
        ("NEURON_RT_DBG_CC_CHUNK_SIZE", "NEURON_RT_CC_CHUNK_SIZE"),
        ("", "NEURON_"),
        ("x" * 9999, "NEURON_"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    """Unknown names are refused with the nearest known one."""
    with pytest.raises(UsageError, match=f"the nearest is {nearest}") as caught:
        parse_settings([f"{name}=1"])
    assert len(str(caught.value)) < 250


def test_an_assignment_has_an_equals_sign() -> None:
    """NAME=VALUE, or a sentence that says so."""
    with pytest.raises(UsageError, match="setting MESH_CC: expected NAME=VALUE, got no '='"):
        parse_settings(["MESH_CC"])


@pytest.mark.parametrize("second", ["NEURON_RT_DBG_MESH_CC=1", "mesh_cc=0"])
def test_a_variable_is_given_once(second: str) -> None:
    """The same variable twice is refused, also by two spellings and with equal values."""
    with pytest.raises(UsageError, match=r"NEURON_RT_DBG_MESH_CC: expected one value, got a second, [01]; remove one"):
        parse_settings(["MESH_CC=1", second])


@pytest.mark.parametrize(
    ("environment", "slots", "lnc"),
    [
        ({"NEURON_RT_CC_CHANNEL_BUFFER_N": "5", "NEURON_LOGICAL_NC_CONFIG": "1"}, 5, 1),
        ({"CC_CHANNEL_BUFFER_N": "5", "neuron_rt_cc_channel_buffer_n": "5"}, 8, None),
        ({"NEURON_RT_CC_CHANNEL_BUFFER_N": "", "NEURON_RT_VISIBLE_CORES": "0-3", "HOME": "/"}, 8, None),
    ],
)
def test_the_environment_is_read_by_real_names(environment: Mapping[str, str], slots: int, lnc: int | None) -> None:
    """Known real names are read, others are ignored, and an empty value is none."""
    made = parse_settings([], environment)
    assert (made.slots, made.lnc) == (slots, lnc)


def test_an_assignment_overrides_the_environment() -> None:
    """What the command says wins, also under the other name of a thing; a bad value beneath it is not read."""
    environment = {"NEURON_RT_CC_CHANNEL_BUFFER_N": "99", "NEURON_LOGICAL_NC_CONFIG": "1"}
    made = parse_settings(["CC_CHANNEL_BUFFER_N=4", "VIRTUAL_CORE_SIZE=2"], environment)
    assert (made.slots, made.lnc, made.logical_nc_config) == (4, 2, None)
    with pytest.raises(UsageError, match="NEURON_RT_CC_CHANNEL_BUFFER_N=99: expected 3 to 32"):
        parse_settings([], environment)


# The admission bitmap.


def bit(algorithm: int, scope: int) -> int:
    """Bit = algorithm + 11 x scope."""
    return 1 << (algorithm + 11 * scope)


@pytest.mark.parametrize(
    ("text", "bitmap"),
    [
        ("RING_ALG", bit(0, 0) | bit(0, 1)),
        ("INTRA_RING_ALG", bit(0, 0)),
        ("INTER_RING_ALG", bit(0, 1)),
        ("HIER_ALG", bit(1, 0) | bit(1, 1)),
        ("INTRA_MESH_ALG,INTER_KANGARING_ALG", bit(2, 0) | bit(3, 1)),
        ("SINGLE_CYCLE_RING_ALG", bit(4, 0) | bit(4, 1)),
        ("INTRA_RDH_ALG", bit(5, 0)),
        ("INTER_RDH_ALG", bit(7, 1)),
        ("RDH_ALG", bit(5, 0) | bit(7, 1)),
        ("INTRA_SINGLE_STEP_MESH_ALG , INTRA_TWO_STEP_POD_MESH_ALG", bit(6, 0) | bit(8, 0)),
        ("LATENCY_OPT_MESH_ALG", bit(9, 0) | bit(9, 1)),
        ("BW_OPT_MESH_ALG,BW_OPT_MESH_ALG", bit(10, 0) | bit(10, 1)),
        ("^INTER_RDH_ALG", ALL & ~bit(7, 1)),
        (" ^ RING_ALG,INTRA_RDH_ALG", ALL & ~(bit(0, 0) | bit(0, 1) | bit(5, 0))),
        ("^", ALL),
        ("0x0", 0),
        ("0x3FFFFF", ALL),
    ],
)
def test_alg_types(text: str, bitmap: int) -> None:
    """`[INTRA_|INTER_]<NAME>_ALG` with commas between; `^` in front means all except. Source: select §3.1."""
    assert parse_settings([f"NEURON_RT_CC_ALG_TYPES={text}"]).alg_types == parse_alg_types(text) == bitmap
    assert parse_alg_types(format_alg_types(bitmap)) == bitmap


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MESSH_ALG", "got MESSH_ALG; the nearest known token is MESH_ALG"),
        ("^INTER_RHD_ALG", "got INTER_RHD_ALG; the nearest known token is INTER_RDH_ALG"),
        ("ring_alg", "got ring_alg; the nearest known token is RING_ALG"),
        ("RING", "the nearest known token is RING_ALG"),
        ("INTRA_INTER_RDH_ALG", "the nearest known token is INTRA_RDH_ALG|the nearest known token is INTER_RDH_ALG"),
        ("TREE_ALG", r"expected \[INTRA_|INTER_\]<NAME>_ALG, got TREE_ALG"),
        ("RING_ALG,^MESH_ALG", r"expected \^ once, before the whole list, got \^MESH_ALG inside it"),
        ("RING_ALG,,MESH_ALG", "between commas, got nothing"),
        ("RING_ALG,", "between commas, got nothing"),
        ("", "between commas, got nothing"),
        ("5", "got 5; the nearest"),
        ("0x400000", "expected 0 to 0x3fffff, got 0x400000"),
    ],
)  # fmt: skip
def test_bad_alg_types(text: str, message: str) -> None:
    """An unknown token is a configuration error, with the nearest known one. Source: select §3.1."""
    with pytest.raises(UsageError, match=message):
        parse_settings([f"CC_ALG_TYPES={text}"])


@pytest.mark.parametrize("bitmap", [-1, ALL + 1])
def test_a_bitmap_has_22_bits(bitmap: int) -> None:
    """11 algorithms in 2 scopes. Source: select §3.1."""
    with pytest.raises(UsageError, match="expected"):
        Settings(alg_types=bitmap)
    with pytest.raises(UsageError, match="expected a bitmap of 0 to 0x3fffff, got"):
        format_alg_types(bitmap)


@pytest.mark.parametrize(
    ("bitmap", "text"),
    [
        (ALL, "^"),
        (ALL & ~bit(7, 1), "^INTER_RDH_ALG"),
        (bit(5, 0) | bit(7, 1), "RDH_ALG"),
        (bit(2, 0) | bit(2, 1) | bit(0, 1), "INTER_RING_ALG,MESH_ALG"),
        (0, "0x0"),
        (bit(7, 0), "0x80"),
    ],
)
def test_bitmaps_print_as_the_shortest_list(bitmap: int, text: str) -> None:
    """One token for both scopes, `^` where the two bits without a name are set, a number where no list says it."""
    assert format_alg_types(bitmap) == text


def test_admission() -> None:
    """Bit = algorithm + 11 x scope; INVALID is never admitted. Source: select §4."""
    only = parse_alg_types("INTER_RDH_ALG")
    admitted = [
        (one, scope)
        for one in Algorithm
        for scope in (CommScope.INTRA, CommScope.INTER)
        if admits(only, one, scope)
    ]  # fmt: skip
    assert admitted == [(Algorithm.INTER_RDH, CommScope.INTER)]
    assert not admits(ALL, Algorithm.INVALID, CommScope.INTRA)
    assert all(admits(ALL, one, CommScope.INTER) for one in Algorithm if one is not Algorithm.INVALID)


# Text.


def test_formatted_settings_name_every_variable() -> None:
    """Real names with numbers or text that can be assigned again."""
    text = format_settings(Settings())
    assert list(text) == [name for name, *_ in TABLE]
    assert text["NEURON_RT_DBG_MESH_CC"] == 1
    assert type(text["NEURON_RT_DBG_MESH_CC"]) is int
    assert (text["NEURON_RT_CC_CHUNK_SIZE"], text["NEURON_RT_ROOT_COMM_ID"]) == (2097152, "")
    assert parse_settings([f"{name}={value}" for name, value in text.items()]) == Settings()


def test_changed_settings() -> None:
    """Only what differs from its default, in the table's order."""
    assert changed(Settings()) == {}
    made = parse_settings(
        ["MESH_CC=0", "CC_ALG_TYPES=^INTER_RDH_ALG", "CC_CHANNEL_BUFFER_N=8", "CC_DMA_PACKET_SIZE=4K,8K"]
    )
    assert list(changed(made).items()) == [
        ("NEURON_RT_CC_ALG_TYPES", "^INTER_RDH_ALG"),
        ("NEURON_RT_DBG_MESH_CC", 0),
        ("NEURON_RT_DBG_CC_DMA_PACKET_SIZE", "4096,8192"),
    ]


def test_the_table_has_one_line_a_variable() -> None:
    """Fixed columns below a header that begins with #: name, default, legal values, meaning, source."""
    head, *lines = settings_table()
    assert head.startswith("# variable")
    assert [line.split()[0] for line in lines] == [name for name, *_ in TABLE]
    starts = [head.index(word) for word in ("default", "read by", "source", "legal", "what")]
    for line, variable in zip(lines, VARIABLES, strict=True):
        cells = [line[a:b].strip() for a, b in zip([0, *starts], [*starts, None], strict=True)]
        assert cells == [
            variable.name, variable.default_text, variable.used or "-", str(variable.source), variable.domain.legal,
            variable.meaning,
        ]  # fmt: skip


THROUGH = {"intra_rdh_buffer": "intra_rdh_bytes"}  # fields whose readers take them through a function


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.field)
def test_readers_are_those_who_read(variable: Variable) -> None:
    """A part of rota that is named as a reader reads the field; where none is named, none does."""
    reads = re.compile(rf"\bsettings\.{variable.field}\b|\b{THROUGH.get(variable.field, 'no other way')}\(")
    for reader in variable.used.split():
        assert any(reads.search(text) for part, text in TEXTS if part == reader), reader
    assert variable.used or not [part for part, text in TEXTS if part != "report" and reads.search(text)]


def test_the_description_is_plain_data() -> None:
    """What a JSON document says of a variable, with its value in given settings."""
    rows = {row["name"]: row for row in describe(Settings(slots=5))}
    assert rows["NEURON_RT_CC_CHANNEL_BUFFER_N"] == {
        "name": "NEURON_RT_CC_CHANNEL_BUFFER_N",
        "field": "slots",
        "kind": "uint",
        "value": 5,
        "default": "8",
        "low": 3,
        "high": 32,
        "legal": "3 to 32",
        "meaning": "half-chunks a ring channel buffers, which is its credit",
        "used": ["select", "compose"],
        "sources": [{"page": "select", "section": "8, channel buffer depth", "confidence": "high"}],
    }
    assert [row["value"] for row in describe()] == list(format_settings(Settings()).values())


def test_values_of_a_mode_are_a_convention() -> None:
    """Only the value that disables is sourced; the others are this project's. Source: select §3.1."""
    for field in ("hier_mode", "kangaring_mode", "single_cycle_mode", "rdh_mode"):
        sources = next(each.sources for each in VARIABLES if each.field == field)
        assert {MEDIUM, CONVENTION} <= {each.confidence for each in sources}


def test_reading_settings_loads_nothing_heavy() -> None:
    """These modules by themselves load no numpy, and no difflib before a name is wrong."""
    program = (
        "import sys, types, rota; package = sys.modules['rota.select'] = types.ModuleType('rota.select');"
        "package.__path__ = [rota.__path__[0] + '/select'];"
        "from rota.select.settings import parse_settings; parse_settings(['MESH_CC=0']);"
        "print(sorted({'numpy', 'difflib'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
