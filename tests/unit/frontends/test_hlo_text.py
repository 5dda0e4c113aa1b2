"""HLO text taken apart, against interchange §4.1 and §4.5."""

from __future__ import annotations

import pytest

from rota.errors import UsageError
from rota.frontends.hlo_text import (
    ELEMENT_SIZES,
    Array,
    is_hlo,
    read_arrays,
    read_attributes,
    read_module,
    split_commas,
    tuple_members,
)

MODULE = """HloModule name, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, replica_count=8

%region (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %r = f32[] add(%x, %y)
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} negate(%p), metadata={op_name="a } b" source="{\\"("}, backend_config={"k":[1,2]}
}
"""


def body(line: str) -> str:
    return f"HloModule m\n\nENTRY e {{\n  p = f32[4] parameter(0)\n  {line}\n}}\n"


def test_a_module_has_its_header_and_computations() -> None:
    """The form of interchange §4.1 is read with names, lines, shapes and operands."""
    module = read_module(MODULE, where="t")
    assert module.name == "name"
    assert module.attributes["replica_count"] == "8"
    assert list(module.computations) == ["region", "main"]
    region = module.computations["region"]
    assert [(one.name, one.line, one.opcode) for one in region.instructions.values()] == [
        ("x", 4, "parameter"),
        ("y", 5, "parameter"),
        ("r", 6, "add"),
    ]
    assert region.root.name == "r"
    root = module.computations["main"].root
    assert (root.shape, root.operands) == ("f32[4]{0}", "%p")
    assert list(read_attributes(root)) == ["metadata", "backend_config"]


def test_percent_signs_are_optional() -> None:
    """`%` is optional. Source: interchange §4.1."""
    with_signs, without = (read_module(text, where="t") for text in (MODULE, MODULE.replace("%", "")))
    assert list(with_signs.computations) == list(without.computations)
    names = [list(module.computations["main"].instructions) for module in (with_signs, without)]
    assert names == [["p", "a"], ["p", "a"]]


def test_tables_of_source_locations_are_passed_over() -> None:
    """XLA prints numbered tables between the header and the computations when the program has locations."""
    tables = 'FileNames\n1 "a/b.py"\n\nFileLocations\n1 {file_name_id=1 line=2}\n\n'
    head, rest = MODULE.split("\n", 1)
    module = read_module(f"{head}\n\n{tables}{rest}", where="t")
    assert module.computations["region"].line == 10


def test_comments_and_strings_hide_their_brackets() -> None:
    """Long lists carry comments like /*index=5*/; strings may hold brackets. Source: interchange §4.1."""
    text = body('c = (f32[], /*index=1} */f32[4]) custom-call(p, /*index=5*/p), custom_call_target="}{(", x={"]"} // )')
    one = read_module(text, where="t").computations["e"].root
    assert (one.opcode, one.line) == ("custom-call", 5)
    assert split_commas(one.operands) == ["p", "p"]


def test_a_string_over_lines_keeps_the_line_numbers() -> None:
    """Lines count as in the file, whatever spans them."""
    text = 'HloModule m, note={"one\ntwo\nthree"}\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n'
    assert read_module(text, where="t").computations["e"].root.line == 6


def test_an_instruction_may_go_on_after_a_comma_or_in_brackets() -> None:
    """A wrapped line ends where no bracket is open and no comma asks for more."""
    text = body("r = f32[4] add(p,\n    p), a=1,\n    b=2\n  s = f32[4] negate(r)")
    instructions = read_module(text, where="t").computations["e"].instructions
    assert list(instructions) == ["p", "r", "s"]
    assert read_attributes(instructions["r"]) == {"a": "1", "b": "2"}
    assert (instructions["r"].line, instructions["s"].line) == (5, 8)


def test_the_root_may_stand_anywhere() -> None:
    """The root is the instruction marked so, and the last one only when none is."""
    marked = read_module(body("ROOT r = f32[4] negate(p)\n  s = f32[4] copy(p)"), where="t").computations["e"]
    plain = read_module(body("r = f32[4] negate(p)\n  s = f32[4] copy(p)"), where="t").computations["e"]
    assert (marked.root.name, plain.root.name) == ("r", "s")


def test_a_layout_in_the_signature_opens_no_computation() -> None:
    """Only the brace at the end of a head opens the computation."""
    text = body("ROOT r = f32[4] negate(p)").replace("ENTRY e {", "ENTRY e (p: f32[4]{0}) -> f32[4]{0} {")
    assert list(read_module(text, where="t").computations["e"].instructions) == ["p", "r"]


def test_a_computation_may_name_its_thread_after_the_brace() -> None:
    """`}, execution_thread="..."` closes the computation of an asynchronous call."""
    text = body("ROOT r = f32[4] negate(p)").rstrip() + ', execution_thread="parallel"\n'
    assert read_module(text, where="t").computations["e"].root.opcode == "negate"


@pytest.mark.parametrize(
    ("shape", "arrays"),
    [
        ("f32[]", [Array("f32", ())]),
        ("bf16[4,2]{1,0}", [Array("bf16", (4, 2))]),
        ("f32[4,2]{1,0:T(8,128)(2,1)S(1)}", [Array("f32", (4, 2))]),
        ("(f32[4], (u8[2,3]{1,0}, pred[]))", [Array("f32", (4,)), Array("u8", (2, 3)), Array("pred", ())]),
        ("()", []),
    ],
)
def test_shapes_are_arrays_without_layouts(shape: str, arrays: list[Array]) -> None:
    """Layouts, plain or tiled, say nothing about size. Source: interchange §4.1."""
    assert list(read_arrays(shape)) == arrays


def test_sizes_are_elements_times_element_size() -> None:
    """Bytes of an array = product of dimensions × element size. Source: interchange §4.5."""
    (array,) = read_arrays("bf16[3,5,7]")
    assert (array.count, array.size) == (105, 210)
    (empty,) = read_arrays("f32[3,0]")
    assert (empty.count, empty.size) == (0, 0)


@pytest.mark.parametrize(
    ("names", "size"),
    [
        ("pred s8 u8 f8e4m3fn f8e4m3 f8e5m2 f8e4m3fnuz f8e5m2fnuz f8e4m3b11fnuz f8e3m4 f8e8m0fnu", 1),
        ("s16 u16 f16 bf16", 2),
        ("s32 u32 f32", 4),
        ("s64 u64 f64 c64", 8),
        ("c128", 16),
    ],
)
def test_element_sizes(names: str, size: int) -> None:
    """Element types of whole bytes. Source: interchange §4.5."""
    assert {ELEMENT_SIZES[name] for name in names.split()} == {size}


@pytest.mark.parametrize("element", ["s2", "u2", "s4", "u4", "f4e2m1fn"])
def test_sub_byte_types_have_no_whole_byte_size(element: str) -> None:
    """Types below a byte are named by the format and have no whole-byte size. Source: interchange §4.5."""
    with pytest.raises(UsageError, match=f"{element} has no whole-byte size"):
        read_arrays(f"{element}[8]")


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ("token[]", "token is no data"),
        ("opaque[]", "opaque is no data"),
        ("f31[4]", "'f31' is unknown"),
        ("f32[<=4]", "'<=4' is no fixed number"),
        ("f32[?]", "no fixed number"),
        ("f32[4,,2]", "'' is no fixed number"),
        ("f32[²]", "no fixed number"),
        ("f32[999999999999999999,999999999999999999]", "more than"),
    ],
)
def test_shapes_without_a_size_are_refused(shape: str, complaint: str) -> None:
    """Dynamic, huge, unknown and data-less shapes are refused with their reason."""
    with pytest.raises(UsageError) as error:
        read_arrays(shape)
    assert complaint in str(error.value)


def test_tuple_members_are_the_outermost() -> None:
    """A start's state is a tuple of (operands, results, ...). Source: interchange §4.2."""
    assert tuple_members("((f32[4], f32[2]), f32[8]{0}, u32[])") == ["(f32[4], f32[2])", "f32[8]{0}", "u32[]"]
    assert tuple_members("f32[4,2]{1,0}") == ["f32[4,2]{1,0}"]


def test_device_ids_belong_to_the_mesh_before_them() -> None:
    """The mesh form has a comma of its own before its device_ids. Source: interchange §4.3."""
    one = read_module(
        body("r = f32[4] all-reduce(p), replica_groups=mesh['x'=2], device_ids=(1,0) {'x'}, to_apply=f"), where="t"
    ).computations["e"]
    assert read_attributes(one.root) == {
        "replica_groups": "mesh['x'=2], device_ids=(1,0) {'x'}",
        "to_apply": "f",
    }


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [("a=1, a=2", "attribute a is given twice"), ("a=1, b", "expected attributes of the form")],
)
def test_attributes_are_named_once(attributes: str, complaint: str) -> None:
    """Two values for one attribute are never reconciled silently."""
    one = read_module(body(f"r = f32[4] negate(p), {attributes}"), where="t").computations["e"].root
    with pytest.raises(UsageError, match=complaint):
        read_attributes(one)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "t: expected an HLO module that starts with 'HloModule name', got no text"),
        ("module @jit_f {\n}\n", "t, line 1: expected an HLO module"),
        ("\n\nENTRY e {\n}\n", "t, line 3: expected an HLO module"),
        ("HloModule m\n", "the header of 'm' alone"),
        ("HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n", "t, line 2: '{' is never closed"),
        ("HloModule m\nENTRY e {\n  p = f32[4 parameter(0)\n}\n", "t, line 3: ')' closes|t, line 4: '}' closes"),
        ("HloModule m\n}\n", "t, line 2: '}' closes a bracket that is not open"),
        ("HloModule m\nENTRY e (x: f32[]] -> f32[] {\n}\n", "t, line 2: ']' closes"),
        ("HloModule m\nENTRY e {\n}\n", "t, line 2: computation e has no instructions"),
        (body("hello"), "t, line 5: expected an instruction"),
        (body("q = f32[4]"), "t, line 5: expected an instruction"),
        (body("q = negate(p)"), "t, line 5: expected an instruction"),
        (body("q = f32[4] negate(p) x=1"), "t, line 5: expected an instruction"),
        (body("p = f32[4] negate(p)"), "t, line 5: p is defined a second time in computation e, first on line 4"),
        (body("q = f32[4] negate(p)") + "e {\n p = f32[] parameter(0)\n}\n", "t, line 7: computation e is defined"),
        (body('q = f32[4] negate(p), a="x'), "t, line 5: the string begun here never ends"),
        (body('q = f32[4] negate(p), a="x\\"') + "\\", "t, line 5: the string begun here never ends"),
        (body("q = f32[4] negate(p) /* x"), "t, line 5: the comment begun here never ends"),
        (body("q = f32[4] negate(p) /*/"), "t, line 5: the comment begun here never ends"),
        (
            "HloModule m\nENTRY e { p = f32[4] parameter(0) }\n",
            "t, line 2: expected a computation with one instruction",
        ),
        ("HloModule m\nwhat is this\n", "t, line 2: expected a computation"),
        ("HloModule m, a=1, a=2\n", "the header of 'm' alone"),
        (body("q = f32[4] negate(p)").replace("m\n", "m, a=1, a=2\n"), "the HloModule line gives a twice"),
        ("HloModule m,", "t, line 1: the text ends in the middle"),
    ],
)
def test_broken_text_is_refused_with_its_line(text: str, complaint: str) -> None:
    """Text that is no module, or is broken in its structure, gives one sentence that says where."""
    with pytest.raises(UsageError) as error:
        read_module(text, where="t")
    assert any(one in str(error.value) for one in complaint.split("|"))


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"HloModule m\n", True),
        (b"\n  HloModule m, replica_count=2\n", True),
        (b"// a comment\n/* another\n*/ HloModule m\n", True),
        (b"\xef\xbb\xbfHloModule m\n", True),
        (b"HloModuleX m\n", False),
        (b"module @jit {\n}\n", False),
        (b"text about HloModule\n", False),
        (b"\xc7\x00HloModule m", False),
        (b"", False),
        (b"/* never closed HloModule m", False),
    ],
)
def test_the_kind_of_a_file_is_in_its_first_word(data: bytes, answer: bool) -> None:
    """An HLO file is known by its content: its first word is HloModule. Source: interchange §4.1."""
    assert is_hlo(data) is answer
