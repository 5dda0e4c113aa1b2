"""A collective in two records, 0xD9 with 0xDA right behind it: its decoded form, its chain, and what is refused.

That the two stand together is checked by the walk of `words`; the layouts are in `carriers`. Which tensor a variable
is, and whether a planner takes the request, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rota.errors import DecodeError, UnsupportedError, UsageError
from rota.facts import CONVENTION, HIGH, MEDIUM, Source
from rota.isa.carriers import COLLECTIVE2_WORD, EXTENSION_WORD
from rota.isa.dtypes import Dtype
from rota.isa.enums import CTYPE_OF_ENC, ENC_OF_CTYPE, AluOp, Chaining, CollectiveType, EncOp
from rota.isa.layout import Buffer
from rota.isa.opcodes import Opcode, describe_opcode
from rota.isa.operands import (
    MAX_PRIORITY,
    SBUF_ADDRESS_MASK,
    SBUF_ONLY_SOURCE,
    Addr8Form,
    Pattern2D,
    pattern_of,
)
from rota.isa.records import (
    INST_WORD_LEN,
    NO_EVENTS,
    WORD_SIZE,
    Events,
    check_header,
    check_reserved,
    events_of,
    member,
)

PAIR_SIZE: Final = 2 * WORD_SIZE
PAIR_SOURCE: Final = Source("isa", "5.4", HIGH)
CHAIN_SOURCE: Final = Source("isa", "5.4", HIGH)
CHAIN_ORDER_SOURCE: Final = Source("isa", "5.4", MEDIUM)  # that 1 begins and 2 continues a chain is inferred
CHAIN_ALIKE_SOURCE: Final = Source("isa", "5.4", CONVENTION)
MIXED_SOURCE: Final = Source("isa", "10", HIGH)
COUNT_SOURCE: Final = Source("isa", "5.4", CONVENTION)

# Architectures without priority classes: the field is written and not read. Source: isa §1, high.
WITHOUT_PRIORITY: Final = frozenset({"sunda"})


class Dimension(IntEnum):
    """Along which dimension the ranks' parts lie, CollectiveDimension. Source: isa §6.5, high."""

    PARTITION = 0
    FREE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One collective of two records; `offset` is where the first stands, patterns count elements as they lie."""

    index: int = 0
    offset: int = 0
    kind: EncOp
    alu_op: AluOp
    dtype: Dtype
    cc_dim: Dimension = Dimension.PARTITION
    src0: Pattern2D
    src1: Pattern2D | None = None
    dst: Pattern2D
    chaining: Chaining = Chaining.NONE
    group_id: int = 0
    channel_id: int = 0
    stream_id: int = 0
    priority_class: int = 0
    cc_buf_start: int = 0
    cc_buf_size: int = 0
    cross_sb_out: int = 0
    src1_bitmap: int = 0
    events: Events = NO_EVENTS
    debug_cmd: int = 0
    debug_hint: int = 0

    @property
    def num_elements(self) -> int:
        """Return the elements of the first source: what a chain sums. Source: isa §5.4, convention."""
        return self.src0.elements

    @property
    def patterns(self) -> tuple[tuple[str, Pattern2D], ...]:
        """Return the operands there are, by name."""
        second = () if self.src1 is None else (("src1", self.src1),)
        return (("src0", self.src0), *second, ("dst", self.dst))

    def priority(self, arch: str) -> int:
        """Return the priority class an architecture goes by: 0 where it does not read the field."""
        return 0 if arch in WITHOUT_PRIORITY else self.priority_class


@dataclass(frozen=True, slots=True)
class Chain:
    """Pairs that make one operation, in stream order; a pair that says NONE is a chain of its own."""

    pairs: tuple[Pair, ...]

    @property
    def num_elements(self) -> int:
        """Return the sum over the members. Source: isa §5.4, high."""
        return sum(pair.num_elements for pair in self.pairs)

    @property
    def events(self) -> Events:
        """Return the events of the one trigger that is emitted. Source: isa §5.4, high.

        They are the last record's, but wait mode and value are the first record's.
        """
        first, last = self.pairs[0].events, self.pairs[-1].events
        return Events(first.wait_mode, last.wait_idx, last.update_mode, last.update_idx, first.semaphore_value)


def decode_pair(data: Buffer, *, offset: int = 0) -> Pair:
    """Return the pair whose first record is at `offset`.

    Raises:
        DecodeError: a record is cut, or no 0xD9 with its 0xDA behind it; its length or modes are wrong; a reserved byte
            is set; or kind, operation, element type, dimension, chaining or priority class mean nothing.
    """
    first = COLLECTIVE2_WORD.decode(data, offset)
    if first["opcode"] != Opcode.PSEUDO_TRIGGER_COLLECTIVE2:
        expected = describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE2)
        raise DecodeError("first record of a pair", offset=offset, expected=expected, got=describe_opcode(data[offset]))
    check_header(data, offset)
    check_follower(data, offset)
    at = offset + WORD_SIZE
    second = EXTENSION_WORD.decode(data, at)
    check_reserved(EXTENSION_WORD, data, at)
    ctype = member(CollectiveType, first["ctype"], "collective type", offset + 14)
    if ctype is CollectiveType.INVALID:
        raise DecodeError("collective type", offset=offset + 14, expected="one from 0x01 to 0x09", got="0x00")
    priority = second["priority_class"]
    if priority > MAX_PRIORITY:
        raise DecodeError("priority class", offset=at + 41, expected=f"one from 0 to {MAX_PRIORITY}", got=str(priority))
    src1 = pattern_of(first, "src1_", offset=offset + 40)
    return Pair(
        index=offset // WORD_SIZE,
        offset=offset,
        kind=ENC_OF_CTYPE[ctype],
        alu_op=member(AluOp, first["op"], "ALU operation", offset + 12),
        dtype=member(Dtype, first["dtype"], "element type", offset + 13),
        cc_dim=member(Dimension, first["cc_dim"], "collective dimension", offset + 15),
        src0=pattern_of(first, "src0_", offset=offset + 16),
        src1=None if src1 == _ABSENT else src1,
        dst=pattern_of(second, "dst_", offset=at + 8),
        chaining=member(Chaining, second["chaining"], "chaining", at + 1),
        group_id=second["group_id"],
        channel_id=second["channel_id"],
        stream_id=second["stream_id"],
        priority_class=priority,
        cc_buf_start=second["cc_buf_start"],
        cc_buf_size=second["cc_buf_size"],
        cross_sb_out=second["cross_sb_out"],
        src1_bitmap=second["src1_bitmap"],
        events=events_of(first),
        debug_cmd=first["debug_cmd"],
        debug_hint=first["debug_hint"],
    )


def encode_pair(pair: Pair) -> bytes:
    """Return the 128 bytes of a pair; `index` and `offset` say where it stood and are not part of it.

    Raises:
        UsageError: the kind has no collective type, the priority class is none, or a value does not fit its field.
    """
    ctype = CTYPE_OF_ENC.get(pair.kind, CollectiveType.INVALID)
    if ctype is CollectiveType.INVALID:
        what = describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE2)
        raise UsageError(f"encode {what}: {pair.kind.name} has no collective type")
    if not 0 <= pair.priority_class <= MAX_PRIORITY:
        raise UsageError(f"priority class: expected one from 0 to {MAX_PRIORITY}, got {pair.priority_class}")
    first = COLLECTIVE2_WORD.encode(
        opcode=Opcode.PSEUDO_TRIGGER_COLLECTIVE2,
        inst_word_len=INST_WORD_LEN,
        debug_cmd=pair.debug_cmd,
        debug_hint=pair.debug_hint,
        **pair.events.values(),
        op=pair.alu_op,
        dtype=pair.dtype,
        ctype=ctype,
        cc_dim=pair.cc_dim,
        **pair.src0.values("src0_"),
        **(pair.src1 or _ABSENT).values("src1_"),
    )
    return first + EXTENSION_WORD.encode(
        opcode=Opcode.PSEUDO_EXTENSION,
        chaining=pair.chaining,
        group_id=pair.group_id,
        channel_id=pair.channel_id,
        stream_id=pair.stream_id,
        **pair.dst.values("dst_"),
        cc_buf_start=pair.cc_buf_start,
        cross_sb_out=pair.cross_sb_out,
        priority_class=pair.priority_class,
        cc_buf_size=pair.cc_buf_size,
        src1_bitmap=pair.src1_bitmap,
    )


def chains(pairs: Iterable[Pair]) -> tuple[Chain, ...]:
    """Return pairs as chains: NONE alone, FIRST to LAST together.

    Raises:
        UnsupportedError: MIDDLE or LAST without a chain, FIRST or NONE inside one, a chain without its end, or members
            that differ in kind, operation, element type, group, channel or stream.

    Source:
        isa §5.4; the order of the values medium, that members are alike a convention.
    """
    out: list[Chain] = []
    open_: list[Pair] = []
    for pair in pairs:
        continues = pair.chaining in (Chaining.MIDDLE, Chaining.LAST)
        if continues != bool(open_):
            state = "inside a chain" if open_ else "without the FIRST of its chain"
            message = f"pair at offset {pair.offset}: {pair.chaining.name} {state}"
            raise UnsupportedError(message, source=CHAIN_ORDER_SOURCE)
        if open_ and _likeness(pair) != _likeness(open_[0]):
            raise UnsupportedError(
                f"pair at offset {pair.offset}: expected kind, operation, type, group, channel and stream of the chain "
                f"that begins at offset {open_[0].offset}, got others",
                source=CHAIN_ALIKE_SOURCE,
            )
        open_.append(pair)
        if pair.chaining in (Chaining.NONE, Chaining.LAST):
            out.append(Chain(tuple(open_)))
            open_ = []
    if open_:
        raise UnsupportedError(
            f"chain that begins at offset {open_[0].offset}: expected a LAST, got the end of the stream",
            source=CHAIN_ORDER_SOURCE,
        )
    return tuple(out)


def check_operands(pair: Pair) -> None:
    """Refuse operands the trigger stage does not take: all must be variables, or all places in SBUF.

    Raises:
        UnsupportedError: an address is in a register or a table, is a place outside SBUF, or the two are mixed.

    Source:
        isa §5.4, §10, high.
    """
    where = f"{describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE2)} at offset {pair.offset}"
    for name, pattern in pair.patterns:
        form = pattern.form
        if form not in (Addr8Form.VARIABLE, Addr8Form.IMMEDIATE):
            got = form.name if form is not None else f"marker 0x{pattern.address >> 56:02X}"
            message = f"{where}: {name} must be a variable (marker 0x10) or a place in SBUF, got {got}"
            raise UnsupportedError(message, source=PAIR_SOURCE)
        if form is Addr8Form.IMMEDIATE and pattern.value > SBUF_ADDRESS_MASK:
            message = f"{where}: {name} must lie in SBUF, bits 25 and up clear, got 0x{pattern.value:X}"
            raise UnsupportedError(message, source=SBUF_ONLY_SOURCE)
    forms = {pattern.form for _, pattern in pair.patterns}
    if len(forms) > 1:
        raise UnsupportedError(f"{where}: operands must be all variables or all in SBUF, got both", source=MIXED_SOURCE)


def check_follower(data: Buffer, offset: int) -> None:
    """Refuse a 0xD9 without 0xDA in the record right behind it.

    Raises:
        DecodeError: at the record behind.
    """
    what = describe_opcode(Opcode.PSEUDO_TRIGGER_COLLECTIVE2)
    following = offset + WORD_SIZE
    opcode = data[following] if following < len(data) else None
    if opcode == Opcode.PSEUDO_EXTENSION:
        return
    raise DecodeError(
        f"{what} twice, record after {what}" if opcode == data[offset] else f"record after {what}",
        offset=following,
        expected=describe_opcode(Opcode.PSEUDO_EXTENSION),
        got="the end of the stream" if opcode is None else describe_opcode(opcode),
    )


_ABSENT: Final = Pattern2D(0)


def _likeness(pair: Pair) -> tuple[int, ...]:
    return (pair.kind, pair.alu_op, pair.dtype, pair.group_id, pair.channel_id, pair.stream_id)
