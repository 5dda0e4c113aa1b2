"""NEFF definitions: tensors, group lists, streams; and what is wrong with a file, as one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.neffs import ENGINES, RECORD, container, definition, files

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.frontends.neff import read_neff
from rota.frontends.neff_archive import Caps
from rota.isa.enums import AluOp, EncOp
from rota.isa.neff import architecture, stream_of


@pytest.mark.parametrize("pkg", [1, 2])
def test_the_shipped_shape(pkg: int) -> None:
    """The fixture of isa §11.3: five tensors of 128 bytes, one list without groups, 0xC8 in pe.bin, 3 in pool.bin."""
    neff = read_neff(container(pkg=pkg))
    (section,) = neff.sections
    assert (neff.name, neff.target, architecture(neff)) == ("fixture", "sunda", "sunda")
    assert [(v.identity, v.name, v.size) for v in section.variables.values()] == [
        (0, "input", 128),
        (1, "SB", 128),
        (2, "output", 128),
        (3, "gradient_in", 128),
        (4, "gradient_out", 128),
    ]
    assert section.groups == ((),)
    assert [each.engine for each in section.instructions] == list(ENGINES)
    streams = {each.engine: stream_of(each) for each in section.instructions}
    (word,) = streams["pe"].words
    assert (word.kind, word.alu_op, word.group_id, word.input_id, word.output_id, word.num_elements) == (
        EncOp.ALLREDUCE,
        AluOp.ADD,
        0,
        3,
        4,
        32,
    )
    assert sum(streams["pool"].passed.values()) == 3
    assert not streams["act"].words


def test_group_lists_are_nested_three_deep() -> None:
    """`replica_groups` is [list][group][rank], and a missing key is no lists."""
    lists = [[[0, 1], [2, 3]], [], [[3, 0]]]
    (section,) = read_neff(container(files(sg=definition(replica_groups=lists)))).sections
    assert section.groups == (((0, 1), (2, 3)), (), ((3, 0),))
    plain = definition()
    del plain["replica_groups"]
    assert read_neff(container(files(sg=plain))).sections[0].groups == ()


def test_pairs_and_streams_are_read() -> None:
    """`src_target_pairs` is [list][pair]; the number of streams stands alone or in `cc_stream`."""
    sg = definition(src_target_pairs=[[[0, 1], [1, 0]]], cc_stream={"num_streams": 2})
    (section,) = read_neff(container(files(sg=sg))).sections
    assert (section.pairs, section.cc_streams) == ((((0, 1), (1, 0)),), 2)
    assert read_neff(container(files(sg=definition(num_streams=3)))).sections[0].cc_streams == 3


@pytest.mark.parametrize(
    ("target", "arch"),
    [("", "sunda"), ("v2", "sunda"), ("sunda", "sunda"), ("v3", "cayman"), ("cayman", "cayman"), ("v4", "mariana"),
     ("mariana", "mariana"), ("*", None)],
)  # fmt: skip
def test_targets(target: str, arch: str | None) -> None:
    """Two names for each architecture, nothing for the first, `*` for any."""
    assert architecture(read_neff(container(files(target=target)))) == arch


def test_an_unknown_target_is_refused() -> None:
    """A target of no architecture is named, with the known ones."""
    with pytest.raises(UnsupportedError, match=r"target 'v9\?': expected one of '', 'sunda', .*'\*'"):
        architecture(read_neff(container(files(target="v9\n"))))


BAD: list[tuple[str, Any, str]] = [
    ("kelf-a.json", None, "'kelf-a.json' is missing"),
    ("kelf-a.json", b"{", "no JSON"),
    ("kelf-a.json", b"[]", "expected an object, got a list"),
    ("kelf-a.json", b"\xff\xfe\xfa", "no JSON"),
    ("kelf-a.json", b"[" * 100_000, "nested too deeply"),
    ("kelf-a.json", b'{"graphs": []}', "names no graph"),
    ("kelf-a.json", b'{"graphs": 5}', "expected a list, got 5"),
    ("kelf-a.json", b'{"graphs": [5]}', "expected an object, got 5"),
    ("kelf-a.json", b'{"graphs": [{}]}', "definition: expected text, got nothing"),
    ("kelf-a.json", b'{"graphs": [{"definition": "sg01/def.json"}]}', "'sg01/def.json' is missing"),
    ("kelf-a.json", b'{"graphs": [{"definition": "../../etc/passwd"}]}', "is missing"),
    ("kelf-a.json", b'{"graphs": [{"definition": "sg00/def.json"}], "target": 3}', "target: expected text, got 3"),
    ("kelf-a.json", b'{"graphs": [{"definition": "sg00/def.json"}, {"definition": "./sg00/def.json"}]}', "twice"),
    ("kelf-a.json", b'{"target": "v2", "target": "v3", "graphs": []}', "the key 'target' is there twice"),
    ("kelf-a.json", b'{"target": ' + b"9" * 5000 + b"}", "no JSON"),
    ("sg00/def.json", None, "'sg00/def.json' is missing"),
    ("sg00/def.json", {"name": "x"}, "var: expected an object, got nothing"),
    ("sg00/def.json", definition(name=7), "name: expected text, got 7"),
    ("sg00/def.json", definition(var={}), "no tensor is an output"),
    ("sg00/def.json", definition(var={"a": {"var_id": 0, "type": "input"}}), "no tensor is an output"),
    ("sg00/def.json", definition(var={"a": 3}), "tensor 'a': expected an object, got 3"),
    ("sg00/def.json", definition(var={"a": {"var_id": "0", "type": "output"}}), 'whole number .*got "0"'),
    ("sg00/def.json", definition(var={"a": {"var_id": True, "type": "output"}}), "whole number .*got true"),
    ("sg00/def.json", definition(var={"a": {"var_id": -1, "type": "output"}}), "whole number .*got -1"),
    ("sg00/def.json", definition(var={"a": {"type": "output"}}), "var_id: .*got nothing"),
    ("sg00/def.json", definition(var={"a": {"var_id": 1, "type": "output"}}), "1 tensors have var_ids up to 1"),
    ("sg00/def.json", definition(var={"a": {"var_id": 0, "size": -4, "type": "output"}}), "size: .*got -4"),
    ("sg00/def.json", definition(var={"a": {"var_id": 0, "dtype": 10, "type": "output"}}), "dtype: expected text"),
    ("sg00/def.json", definition(var={"a": {"var_id": 0, "type": []}}), "transfer-type: expected text, got a list"),
    (
        "sg00/def.json",
        definition(var={"a": {"var_id": 0, "type": "output"}, "b": {"var_id": 0, "type": "input"}}),
        "var_id 0 belongs to 'a'",
    ),
    ("sg00/def.json", definition(replica_groups={}), "replica_groups: expected a list, got an object"),
    ("sg00/def.json", definition(replica_groups=[0]), r"replica_groups\[0\]: expected a list, got 0"),
    ("sg00/def.json", definition(replica_groups=[[0]]), r"replica_groups\[0\]: expected a list, got 0"),
    ("sg00/def.json", definition(replica_groups=[[], [[]]]), r"replica_groups\[1\]: a group has no ranks"),
    ("sg00/def.json", definition(replica_groups=[[[0, 1], [1]]]), "a rank is there twice"),
    ("sg00/def.json", definition(replica_groups=[[[0.5]]]), "got 0.5"),
    ("sg00/def.json", definition(replica_groups=[[[1 << 31]]]), "whole number from 0 to 2147483647"),
    ("sg00/def.json", definition(src_target_pairs=[[[0, 1, 2]]]), "pairs of a source and a target"),
    ("sg00/def.json", definition(cc_stream=4), "cc_stream: expected an object, got 4"),
    ("sg00/def.json", definition(num_streams="4"), "num_streams: expected a whole number"),
    ("sg00/pe.json", None, "'sg00/pe.bin' is there without its manifest"),
    ("sg00/pe.json", b"{}", "instr: expected text, got nothing"),
    ("sg00/pe.json", b'{"instr": "../pe.bin"}', r"names 'sg00/\.\./pe\.bin', which is not in the archive"),
    ("sg00/pe.bin", None, "which is not in the archive"),
]


@pytest.mark.parametrize(("member", "value", "says"), BAD)
def test_bad_definitions_are_one_sentence(member: str, value: Any, says: str) -> None:
    """A member that is missing, no JSON, of the wrong type or against itself is named, with what was expected."""
    members = files()
    if value is None:
        del members[member]
    else:
        members[member] = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(UsageError, match=says) as caught:
        read_neff(container(members), where="x.neff")
    text = str(caught.value)
    assert text.startswith("x.neff: ")
    assert text.isprintable()


def test_json_has_a_limit() -> None:
    """A member that is read as JSON is refused by its size before it is parsed."""
    with pytest.raises(UsageError, match=r"'sg00/def\.json' has .* bytes, expected at most 300"):
        read_neff(container(), caps=Caps(json=300))


@pytest.mark.parametrize("cut", [1, 63])
def test_a_damaged_stream_names_its_member(cut: int) -> None:
    """A stream that is no whole number of records says so where it stands; the container itself is read."""
    neff = read_neff(container(files(pe=RECORD + RECORD[:cut])))
    with pytest.raises(DecodeError, match=r"x: sg00/pe\.bin: truncated") as caught:
        stream_of(neff.sections[0].instructions[0], where="x")
    assert caught.value.offset == 64


def test_members_are_found_by_name() -> None:
    """The order of the members means nothing."""
    forward, backward = files(), dict(reversed(files().items()))
    assert read_neff(container(forward)).sections == read_neff(container(backward)).sections
