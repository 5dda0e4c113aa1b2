"""What loaded programs must look like beyond fitting their rings: order inside a row, neighbours, balance, presets.

Neighbours are in no record: who follows a channel is read off the semaphores it signals, and must then hold everywhere.
The device would run a program without these checks, and some wrong ones to a right result. Source: device-model §3-§5
and §7, conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Array, Bool, freeze_columns, running_count
from rota.device.dma import DATA, FEED_WORD, SIGNAL, Items
from rota.device.load import of_rank
from rota.device.program import Program, fold_rows
from rota.device.world import World
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.config import NeighbourType
from rota.isa.image import PRESET, Section
from rota.isa.semaphores import SEMAPHORES

RECV: Final = 0
CREDIT: Final = 1
COMPLETION: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """One entry per signal packet, in the order of its ring.

    Attributes:
        to: channel whose semaphore it is; -1 for a semaphore that no channel waits on.
        role: RECV, CREDIT or COMPLETION.
        word: which feed word of the rank is added; value: what stands there.
    """

    item: I64
    row: I64
    fold: I64
    channel: I64
    to: I64
    role: I64
    word: I64
    value: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


def check(world: World, items: Items, program: Program) -> None:
    """Refuse programs no emitter means.

    Raises:
        DecodeError: with the offset in the file of the rank it names.
    """
    owner = fold_rows(program, items)
    _check_rows(world, items, program, owner)
    if world.arch.sow:
        _check_strong(world, items, owner)
    else:
        _check_barriers(world, items, owner)
    signals = _signals(world, items, program, owner)
    _check_signals(world, items, program, signals)
    following = _neighbours(world, items, program, signals)
    _check_targets(world, items, program, owner, following)
    _check_balance(world, items, program, signals)
    _check_presets(world, program)
    _check_feeds(world, program, signals)


def _check_rows(world: World, items: Items, program: Program, owner: I64) -> None:
    """On each fold signals come last, and the row's own completion is the very last."""
    signal = items.kind == SIGNAL
    early = np.append(signal[:-1] & ~signal[1:] & (owner[:-1] == owner[1:]), False)
    _refuse(world, items, early, "row", "signals behind all data and padding", items.kind)
    last = program.item + program.rows.items[:, None] - 1
    own = program.channels.compl[program.rows.channel]
    bad = np.zeros(items.kind.size, np.bool_)
    bad[last] = ~signal[last] | (items.target[last] != own[:, None])
    _refuse(world, items, bad, "row", "its own completion as the last descriptor of every fold", items.target)


def _check_strong(world: World, items: Items, owner: I64) -> None:
    """The last data write of every row and fold is ordered before the signals; no other write is."""
    data = np.flatnonzero(items.kind == DATA)
    final = np.zeros(items.kind.size, np.bool_)
    final[data] = np.append(owner[data][1:] != owner[data][:-1], True)[: data.size]
    bad = items.strong != final
    _refuse(world, items, bad, "RX descriptor", "strong order exactly on the last data write of a row", items.strong)


def _check_barriers(world: World, items: Items, owner: I64) -> None:
    """Where writes have no order, the first signal behind data waits for them; no other descriptor does."""
    follows = np.zeros(items.kind.size, np.bool_)
    signal = np.flatnonzero(items.kind == SIGNAL)
    first = signal[np.append(True, owner[signal][1:] != owner[signal][:-1])]
    follows[first] = np.isin(owner[first], owner[items.kind == DATA])
    bad = items.barrier != follows
    what, expected = "TX descriptor", "a barrier exactly on the first signal behind data"
    _refuse(world, items, bad, what, expected, items.barrier, offsets=items.tx_offset)


def _signals(world: World, items: Items, program: Program, owner: I64) -> Signals:
    channels = program.channels
    role, to = np.full((2, world.semaphores), -1, np.int64)
    for each, column in ((RECV, channels.recv), (CREDIT, channels.send), (COMPLETION, channels.compl)):
        role[column], to[column] = each, np.arange(column.size)
    item = np.flatnonzero(items.kind == SIGNAL)
    row, fold = np.divmod(owner[item], program.item.shape[1])
    channel = program.rows.channel[row]
    image = channels.image[channel]
    source = items.source[items.source_ptr[item]] - world.memory_base[image] - isa.FEED_WORDS
    word = source // FEED_WORD
    target = items.target[item]
    return Signals(item, row, fold, channel, to[target], role[target], word, _feed_words(world)[image, word])


def _feed_words(world: World) -> I64:
    """Return the feed words of each rank, shape (images, words), 0 where there is none."""
    out = np.zeros((len(world.images), isa.FEED_WORD_COUNT), np.int64)
    for i, image in enumerate(world.images):
        words = np.frombuffer(image.part(Section.MEM, isa.FEED_WORDS).data, "<u4")
        out[i, : words.size] = words
    return out


def _check_signals(world: World, items: Items, program: Program, signals: Signals) -> None:
    """Signals go to semaphores of the same channel, in one order, once on each fold."""
    channels, folds = program.channels, program.item.shape[1]

    def refuse(bad: Bool, expected: str) -> None:
        found = np.zeros(items.kind.size, np.bool_)
        found[signals.item] = bad
        _refuse(world, items, found, "signal", expected, items.target)

    refuse(signals.to < 0, "a semaphore that a ring channel waits on")
    stranger = channels.identity[signals.to] != channels.identity[signals.channel]
    refuse(stranger, "a semaphore of the same channel of another rank")
    refuse((signals.role == COMPLETION) & (signals.to != signals.channel), "the completion of its own row")
    key = signals.row * folds + signals.fold
    again = np.append(False, (key[1:] == key[:-1]) & (signals.role[1:] <= signals.role[:-1]))[: key.size]
    refuse(again, "data, credit, completion, in this order and once")
    count = np.bincount(key, minlength=program.item.size).reshape(-1, folds)
    uneven = (count != count[:, :1]).any(axis=1)
    refuse(uneven[signals.row], "as many signals on every fold")
    order = np.lexsort((signals.fold, running_count(key), signals.row))
    same = np.stack([signals.to, signals.role, signals.value])[:, order].reshape(3, -1, folds)
    bad = np.zeros(key.size, np.bool_)
    bad[order] = (same != same[:, :, :1]).any(axis=0).ravel()
    refuse(bad, "the same signals on every fold")


def _neighbours(world: World, items: Items, program: Program, signals: Signals) -> I64:
    """Return the channel that follows each, -1 where a channel has no neighbours; each follows one and precedes one."""
    channels = program.channels
    sides = []
    for role in (RECV, CREDIT):
        chosen = signals.role == role
        peer = np.full(channels.image.size, -1, np.int64)
        peer[signals.channel[chosen]] = signals.to[chosen]
        bad = np.zeros(items.kind.size, np.bool_)
        bad[signals.item[chosen]] = signals.to[chosen] != peer[signals.channel[chosen]]
        _refuse(world, items, bad, "signal", "one neighbour on each side of a channel", items.target)
        sides.append(peer)
    following, preceding = sides
    every = np.arange(following.size)
    none = (following < 0) & (preceding < 0)
    both = (following >= 0) & (preceding >= 0)
    ring = both & (preceding[following] == every) & (following[preceding] == every)
    _refuse_channel(world, program, ~(none | ring), "a ring: the next one's previous is this one", following)
    chip = np.array([image.chip for image in world.images])[channels.image]
    for name, peer, found in (("next", following, channels.next_type), ("prev", preceding, channels.prev_type)):
        far = (peer >= 0) & (chip[peer] != chip)
        kind = np.where(far, NeighbourType.POINT_TO_POINT, NeighbourType.LOCAL)
        _refuse_channel(world, program, found != kind, f"a {name}_type that says whether it is on this chip", found)
    return following


def _check_targets(world: World, items: Items, program: Program, owner: I64, following: I64) -> None:
    """Data goes to the rank's own memory or to that of the next rank on the channel."""
    data = np.flatnonzero(items.kind == DATA)
    channel = program.rows.channel[owner[data] // program.item.shape[1]]
    there = np.searchsorted(world.memory_base, items.target[data], side="right") - 1
    own = program.channels.image[channel]
    follower = np.where(following[channel] >= 0, program.channels.image[following[channel]], own)
    bad = np.zeros(items.kind.size, np.bool_)
    bad[data] = (there != own) & (there != follower)
    _refuse(world, items, bad, "RX address", "memory of the rank or of its neighbour", items.target)


def _check_balance(world: World, items: Items, program: Program, signals: Signals) -> None:
    """Every semaphore is given exactly what is taken from it."""
    channels, rows = program.channels, program.rows
    given = np.zeros(world.semaphores, np.int64)
    np.add.at(given, items.target[signals.item], signals.value)
    each = channels.image.size
    uses = (
        (channels.recv, np.bincount(rows.channel[rows.receives], minlength=each) * channels.prev_folds),
        (channels.send, np.bincount(rows.channel[rows.sends], minlength=each) * channels.next_folds),
        (channels.compl, np.bincount(rows.channel, minlength=each) * channels.folds),
    )
    for semaphore, taken in uses:
        bad = given[semaphore] != taken
        if bad.any():
            at = int(np.argmax(bad))
            name = world.semaphore_name(int(semaphore[at]))
            _refuse_channel(world, program, bad, f"signals of {taken[at]} in total for {name}", given[semaphore])


def _check_feeds(world: World, program: Program, signals: Signals) -> None:
    """Feed words ascend from 1 and each is read."""
    used = np.zeros((len(world.images), isa.FEED_WORD_COUNT), np.bool_)
    used[program.channels.image[signals.channel], signals.word] = True
    for i, image in enumerate(world.images):
        part = image.part(Section.MEM, isa.FEED_WORDS)
        words = np.frombuffer(part.data, "<u4").astype(np.int64)
        bad = ~used[i, : words.size] | (np.diff(words, prepend=0) <= 0)
        if bad.any():
            at = int(np.argmax(bad))
            offset = part.offset + FEED_WORD * at
            with of_rank(i):
                raise DecodeError(
                    "feed word", offset=offset, expected="ascending values, each one read", got=str(words[at])
                )


def _check_presets(world: World, program: Program) -> None:
    """All channels of all ranks start with the same credit, a whole number of rows, and nothing else is preset."""
    channels = program.channels
    preset = np.zeros(world.semaphores, np.int64)
    wanted = world.images[0].presets[0].value if world.images[0].presets else 0
    credit = np.isin(np.arange(world.semaphores), channels.send)
    for i, image in enumerate(world.images):
        for k, each in enumerate(image.presets):
            flat = (i * world.sps + each.sp) * SEMAPHORES + each.identity
            preset[flat] = each.value
            if not credit[flat] or each.value != wanted or each.value % image.folds:
                offset = image.part(Section.SEMA, 0).offset + k * PRESET.size
                expected = f"{wanted} for a credit semaphore, as everywhere, a multiple of {image.folds} folds"
                with of_rank(i):
                    raise DecodeError("semaphore preset", offset=offset, expected=expected, got=str(each))
    short = preset[channels.send]
    _refuse_channel(world, program, short != wanted, f"a credit of {wanted}, as everywhere", short)


def _refuse(
    world: World, items: Items, bad: Bool, what: str, expected: str, values: Array, *, offsets: I64 | None = None
) -> None:
    """Raise DecodeError for the first bad item, if there is one."""
    if bad.any():
        at = int(np.argmax(bad))
        section = int(np.searchsorted(items.section_ptr, at, side="right")) - 1
        with of_rank(world.images[items.sections[section][0]].rank):
            offset = int((items.rx_offset if offsets is None else offsets)[at])
            raise DecodeError(what, offset=offset, expected=expected, got=hex(int(values[at])))


def _refuse_channel(world: World, program: Program, bad: Bool, expected: str, values: Array) -> None:
    """Raise DecodeError for the first bad channel, if there is one."""
    if bad.any():
        at = int(np.argmax(bad))
        channels = program.channels
        what = f"ring channel {int(channels.identity[at])}"
        with of_rank(world.images[int(channels.image[at])].rank):
            raise DecodeError(what, offset=int(channels.offset[at]), expected=expected, got=str(int(values[at])))
