"""Template addresses: descriptors that name a variable and an offset, resolved when the tensors are known.

Works on one address as an int and on the rows of a vring as columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import Array
from rota.errors import DecodeError, UsageError
from rota.facts import HIGH, Source
from rota.isa.descriptors import DESCRIPTOR_SIZE, TxFlag
from rota.isa.layout import Bits, Layout

ADDRESS: Final = Layout("template_address", size=8, source=Source("sdma", "14.4", HIGH), fields=(
    # name           at type   low wide meaning
    Bits("offset",   0, "<u8", 0,  36, "bytes into the variable"),
    Bits("var_id",   0, "<u8", 36, 19, "variable"),
    Bits("template", 0, "<u8", 61, 1,  "always 1"),
))  # fmt: skip
TEMPLATE_BIT: Final = 1 << 61


@dataclass(frozen=True, slots=True)
class Template:
    """An address before it is known: a variable, and bytes into it."""

    var_id: int
    offset: int


def encode_template(template: Template) -> int:
    """Return the 64 bits that stand for a template address.

    Raises:
        UsageError: the variable or the offset does not fit.
    """
    data = ADDRESS.encode(offset=template.offset, var_id=template.var_id, template=1)
    return int.from_bytes(data, "little")


def decode_template(address: int, *, offset: int = 0) -> Template:
    """Return what a template address names.

    Raises:
        DecodeError: bit 61 is not set, or a bit is that means nothing; `offset` is where the address stands.
    """
    if address >> 8 * ADDRESS.size:
        raise DecodeError("template address", offset=offset, expected="64 bits", got=f"{address:#x}")
    data = address.to_bytes(ADDRESS.size, "little")
    values = ADDRESS.decode(data)
    if not values["template"] or ADDRESS.reserved(data) is not None:
        expected = "bit 61 and none of 55 to 60, 62 and 63"
        raise DecodeError("template address", offset=offset, expected=expected, got=f"0x{address:016X}")
    return Template(values["var_id"], values["offset"])


def resolve(descriptors: Array, addresses: Mapping[int, int], *, max_var_id: int) -> Array:
    """Return the descriptors of one half of a vring with physical addresses for the template ones.

    Args:
        descriptors: structured array of `descriptors.DESCRIPTOR`; operand descriptors and other addresses stay.
        addresses: where each variable lies.
        max_var_id: the largest variable the vring may name.

    Raises:
        DecodeError: a template address is malformed, or names a variable above `max_var_id`.
        UsageError: a variable has no address.
    """
    pointer = descriptors["buf_ptr"]
    data = descriptors["len_ctrl"] & np.uint32(TxFlag.META) == 0
    rows = np.flatnonzero(data & (pointer & np.uint64(TEMPLATE_BIT) != 0))
    records = ADDRESS.columns(np.ascontiguousarray(pointer[rows]).tobytes())
    variables = ADDRESS.column(records, "var_id")
    named = sum(((1 << each.width) - 1) << each.low for each in ADDRESS.fields if isinstance(each, Bits))
    wrong = np.flatnonzero((pointer[rows] & np.uint64(~named & (1 << 64) - 1) != 0) | (variables > max_var_id))
    if wrong.size:
        at = int(wrong[0])
        place = int(rows[at]) * DESCRIPTOR_SIZE + 8
        found = decode_template(int(pointer[rows[at]]), offset=place)
        raise DecodeError("template variable", offset=place, expected=f"at most {max_var_id}", got=str(found.var_id))
    unique, which = np.unique(variables, return_inverse=True)
    missing = [str(each) for each in unique.tolist() if each not in addresses]
    if missing:
        raise UsageError(f"template variables without a tensor: {', '.join(missing)}")
    base = np.array([addresses[each] for each in unique.tolist()], np.uint64)
    out = descriptors.copy()
    out["buf_ptr"][rows] = base[which] + ADDRESS.column(records, "offset")
    return out
