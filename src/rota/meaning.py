"""What a program means: inputs for it, exact ones too, its result, and the text in which images say what is asked for.

Nothing here knows how collectives are done; tensors are arrays of all ranks, carried from collective to collective.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rota.columns import U8, Array, equal_bytes
from rota.errors import DecodeError, RotaError, UsageError
from rota.execute.golden import largest_exact, make_exact_inputs, make_inputs, perform
from rota.isa.dtypes import numpy_dtype
from rota.isa.enums import CceType
from rota.request import Request
from rota.request import parse_request as parse_one

_TITLE: Final = "rota request 1"
_MOST: Final = 1 << 62  # of a part of an exact sum
_SMALLER: Final = ((3, False), (1, False), (1, True), (0, False))
"""Inputs when larger ones would not stay exact: the largest value, and whether it is on one rank only."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a program is asked to do, as an image tells it to people and to the golden check; the device reads none."""

    request: Request
    input: str
    output: str


def make_program_inputs(asked: Sequence[Asked], ranks: Sequence[int], seed: int, *, exact: bool) -> dict[str, Array]:
    """Return the tensors that the host fills, shape (ranks, elements); rows of ranks that read nothing there are 0.

    Args:
        exact: whole numbers whose every partial result is exact.
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    make = make_exact_inputs if exact else make_inputs
    out: dict[str, Array] = {}
    for number, (each, fresh) in enumerate(zip(asked, fresh_members(asked), strict=True)):
        request = each.request
        if fresh:
            values = make(request, np.random.default_rng((seed, number)))
            rows = _rows([place[rank] for rank in request.members], len(ranks))
            if each.input not in out and rows == slice(None):
                out[each.input] = values
                continue
            shape = (len(ranks), request.input_size // request.itemsize)
            held = out.setdefault(each.input, np.zeros(shape, numpy_dtype(request.dtype)))
            held[[place[request.members[i]] for i in fresh]] = values[fresh].view(held.dtype)
    if exact:
        _keep_exact(asked, ranks, out, seed)
    return out


def _keep_exact(asked: Sequence[Asked], ranks: Sequence[int], inputs: dict[str, Array], seed: int) -> None:
    """Make inputs smaller, and at last zero, where what one collective leaves is too large for the next one's sums."""
    written: set[str] = set()
    carried = False
    for each in asked:
        carried |= each.input in written
        written.add(each.output)
    levels = dict.fromkeys(inputs, 0) if carried else {}
    while levels:
        found = {name for name in _inexact(asked, ranks, inputs) if levels[name] < len(_SMALLER)}
        if not found:
            return
        for name in sorted(found):
            most, alone = _SMALLER[levels[name]]
            held = inputs[name]
            values = np.random.default_rng((seed, levels[name])).integers(0, most, held.shape, np.int8, endpoint=True)
            if alone:
                values *= np.arange(held.shape[1]) % len(ranks) == np.arange(len(ranks))[:, None]
            held[:] = np.where(held.astype(np.float32).any(axis=1, keepdims=True), values, 0).astype(held.dtype)
            levels[name] += 1


def _inexact(asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array]) -> set[str]:
    """Return the inputs of the first sum that may round, whatever its order; none where every sum is exact."""
    place = {rank: i for i, rank in enumerate(ranks)}
    held: dict[str, Array] = {name: np.abs(value.astype(np.float32)) for name, value in inputs.items()}
    types = {name: value.dtype for name, value in inputs.items()}
    come: dict[str, set[str]] = {name: {name} if held[name].any() else set() for name in inputs}
    for each in asked:
        request, dtype = each.request, numpy_dtype(each.request.dtype)
        rows = [place[rank] for rank in request.members]
        comes = come[each.input]
        known = types[each.input] == dtype
        if request.op is not None and comes and not known:
            return comes
        size = request.output_size // request.itemsize
        if known:
            given = held[each.input][rows]
            sums = request.op in (CceType.ADD, CceType.FMA)
            op = None if request.op is None else request.op if sums else CceType.MAX
            result = perform(replace(request, op=op, scales=tuple(map(abs, request.scales))), given)
            if sums and comes and not _stays_exact(given, result, dtype):
                return comes
        else:
            result = np.zeros((len(rows), size), np.float32)
        if each.output not in held or types[each.output] != dtype or held[each.output].shape[1] != size:
            held[each.output] = np.zeros((len(ranks), size), np.float32)
        held[each.output][rows] = result
        types[each.output] = dtype if known else np.dtype(np.void)
        come[each.output] = come.get(each.output, set()) | comes
    return set()


def _stays_exact(given: Array, total: Array, dtype: np.dtype[Any]) -> bool:
    """Say whether sums are exact in any order: they have few bits above the lowest that any part has, and fit.

    Args:
        given, total: magnitudes of the parts, and of their sums.
    """
    most = float(given.max(initial=0))
    if (given % 1).any() or most >= _MOST:
        return False
    bits = int(np.bitwise_or.reduce(given.astype(np.int64), axis=None))
    lowest = bits & -bits or 1
    with np.errstate(all="ignore"):
        fits = np.array_equal(total.astype(dtype).astype(np.float32), total)
    return fits and float(total.max(initial=0)) / lowest <= largest_exact(dtype)


def golden_program(asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array]) -> dict[str, U8]:
    """Return what a program means, collective after collective; exact where the inputs are."""
    return forward(asked, ranks, inputs, lambda number, given: perform(asked[number].request, given))


def forward(
    asked: Sequence[Asked], ranks: Sequence[int], inputs: Mapping[str, Array], do: Callable[[int, Array], Array]
) -> dict[str, U8]:
    """Carry tensors through a program; return those that are written as bytes, shape (ranks, bytes).

    Args:
        do: carries out one collective; what it returns may be written over by the next call.
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    memory = {name: as_bytes(value) for name, value in inputs.items()}
    owned: set[str] = set()
    for number, each in enumerate(asked):
        rows = _rows([place[rank] for rank in each.request.members], len(ranks))
        result = as_bytes(do(number, memory[each.input][rows].view(numpy_dtype(each.request.dtype))))
        held = memory.get(each.output)
        if rows == slice(None) and (held is None or held.shape == result.shape):
            memory[each.output] = _kept(result)
            owned.discard(each.output)
            continue
        if each.output not in owned:
            held = np.zeros((len(ranks), result.shape[1]), np.uint8) if held is None else held.copy()
            memory[each.output] = held
            owned.add(each.output)
        memory[each.output][rows] = result
    return {name: memory[name] for name in dict.fromkeys(each.output for each in asked)}


def _kept(rows: U8) -> U8:
    """Return a copy, or one row in the place of all where they are equal, so that large results take little memory."""
    if all(equal_bytes(rows[0], row) for row in rows[1:]):
        return np.broadcast_to(rows[0].copy(), rows.shape)
    return rows.copy()


def _rows(places: list[int], count: int) -> slice | list[int]:
    """Return places as a slice where they are all there are, in order, so that nothing is copied."""
    return slice(None) if places == list(range(count)) else places


def same_bytes(one: U8, other: U8) -> bool:
    """Say whether two arrays of shape (ranks, bytes) are equal, without a third one of their size."""
    return one.shape == other.shape and all(equal_bytes(a, b) for a, b in zip(one, other, strict=True))


def as_bytes(value: Array) -> U8:
    """Return an array of shape (ranks, elements) as bytes, shape (ranks, bytes)."""
    raw: U8 = (
        value.view(np.uint8) if value.strides[-1] == value.itemsize else np.ascontiguousarray(value).view(np.uint8)
    )
    return raw.reshape(value.shape[0], -1)


def fresh_members(asked: Sequence[Asked]) -> Iterator[list[int]]:
    """Yield, for each collective, the members whose input nothing has filled or written before."""
    known: dict[str, set[int]] = {}
    for each in asked:
        members = each.request.members
        before = known.setdefault(each.input, set())
        yield [i for i, rank in enumerate(members) if rank not in before]
        before.update(members)
        known.setdefault(each.output, set()).update(members)


# --- the section REQUEST ----------------------------------------------------------------------------------------------


def request_text(asked: Sequence[Asked], seed: int) -> bytes:
    """Return what is asked for as the text of an image's section."""
    lines = [_TITLE, f"seed {seed}", *(f"{each.input} {each.output} {each.request.to_text()}" for each in asked)]
    return ("\n".join(lines) + "\n").encode()


def parse_request(data: bytes) -> tuple[tuple[Asked, ...], int]:
    """Return what an image's section says is asked for, and the seed.

    Raises:
        DecodeError: it says nothing that makes sense; the offset is in the section.
    """
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DecodeError("section REQUEST", offset=error.start, expected="UTF-8 text", got="other bytes") from None
    head = re.fullmatch(r"seed (\d{1,18})", lines[1], re.ASCII) if len(lines) > 2 and lines[0] == _TITLE else None
    if head is None:
        raise DecodeError("section REQUEST", offset=0, expected=f"'{_TITLE}', a seed and requests", got=repr(data[:40]))
    asked, offset = [], sum(len(line) + 1 for line in lines[:2])
    for line in lines[2:]:
        parts = line.split(" ", 2)
        try:
            if len(parts) < 3 or not all(parts):
                raise UsageError("fewer than three words")
            asked.append(Asked(parse_one(parts[2]), parts[0], parts[1]))
        except RotaError as error:
            raise DecodeError(
                "section REQUEST", offset=offset, expected="tensors and a request", got=str(error)
            ) from None
        offset += len(line) + 1
    return tuple(asked), int(head[1])
