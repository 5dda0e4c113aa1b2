"""What is given to semaphores and what is taken from them; the values they start with; and the words that are added.

Source: device-model §5.3, credits, and §7, SEMA and MEM; conventions.
"""

from __future__ import annotations

import numpy as np

from rota.columns import I64, Bool
from rota.device.check_rings import refuse_decimal
from rota.device.dma import FEED_WORD, SIGNAL, feed_words
from rota.device.load import of_rank
from rota.device.network import NOWHERE, given_and_taken
from rota.device.placed import Placed
from rota.errors import DecodeError
from rota.isa import arch as isa
from rota.isa.image import PRESET, Section
from rota.isa.semaphores import PARITIES, SEMAPHORES, Reserved


def check_balance(placed: Placed) -> None:
    """Every semaphore is waited on by somebody, and given exactly what is taken from it.

    Raises:
        DecodeError: one is not.
    """
    world, program, items = placed.world, placed.program, placed.items
    waited = _waited(placed)
    target = items.target[placed.item]
    stray = placed.signal.copy()
    stray[placed.signal] = ~waited[target[placed.signal]]
    placed.refuse(stray, "signal", "a semaphore that something waits on", target)
    _check_told(placed, waited)
    _check_hops(placed, waited)
    given = np.zeros(program.semaphores, np.int64)
    signal = items.kind == SIGNAL
    np.add.at(given, items.target[signal], items.value[signal])
    np.add.at(given, program.adds.semaphore, program.adds.value)
    taken = np.zeros(program.semaphores, np.int64)
    np.add.at(taken, program.gates.semaphore, program.gates.subtract)
    received, sent = given_and_taken(placed.tables.hops, program.semaphores)
    wrong = (given + received != taken + sent)[: world.semaphores]
    wrong[Reserved.COMPLETION :: SEMAPHORES] = False
    if not wrong.any():
        return
    flat = int(np.argmax(wrong))
    image, offset, what = _home(placed, flat)
    name = world.semaphore_name(flat)
    with of_rank(image):
        expected = f"signals of {int((taken + sent)[flat])} in total for {name}"
        raise DecodeError(what, offset=offset, expected=expected, got=str(int((given + received)[flat])))


def _waited(placed: Placed) -> Bool:
    """Say on which semaphores some machine waits."""
    out = np.zeros(placed.program.semaphores, np.bool_)
    out[placed.program.gates.semaphore] = True
    if placed.tables.hops is not None:
        out[placed.tables.hops.operations.handshake] = True
    return out


def _home(placed: Placed, flat: int) -> tuple[int, int, str]:
    """Return image, offset and name of the record that waits on a semaphore."""
    rings, events = placed.tables.rings, placed.tables.events
    for column in (rings.recv, rings.send, rings.compl, rings.mine):
        found = np.flatnonzero(column == flat)
        if found.size:
            at = int(found[0])
            return int(rings.image[at]), int(rings.offset[at]), f"ring channel {int(rings.channel[at])}"
    found = np.flatnonzero(events.wait == flat)
    if found.size:
        return int(events.image[found[0]]), int(events.offset[found[0]]), "mesh event"
    hops = placed.tables.hops
    if hops is not None and (found := np.flatnonzero(hops.operations.handshake == flat)).size:
        at = int(found[0])
        return int(hops.operations.image[at]), int(hops.operations.offset[at]), "network_operation"
    image = flat // (placed.world.sps * SEMAPHORES)
    return image, 0, "program"


def _check_told(placed: Placed, waited: Bool) -> None:
    """What an event tells by itself is a semaphore that something waits on."""
    events = placed.tables.events
    row, place = np.nonzero(events.told >= 0)
    bad = np.zeros(events.image.size, np.bool_)
    bad[row[~waited[events.told[row, place]]]] = True
    expected = "semaphores that something waits on"
    refuse_decimal(bad, events.offset, "mesh event direct_trigger_sema", expected, events.told[:, 0], events.image)


def _check_hops(placed: Placed, waited: Bool) -> None:
    """What a receive proxy signals is a semaphore that something waits on."""
    hops = placed.tables.hops
    if hops is not None:
        bad = ((hops.semaphore != NOWHERE) & ~waited[hops.semaphore]).any(axis=1)
        expected = "semaphores that something waits on"
        image = hops.operations.image[hops.operation]
        refuse_decimal(bad, hops.offset, "network_send semaphore", expected, hops.semaphore[:, 0], image)


def check_presets(placed: Placed) -> None:
    """Credits and events start alike on all ranks that wait on them, in whole rows or in units; nothing else is preset.

    Raises:
        DecodeError: a preset that is none of these, or one that is missing.
    """
    world, rings = placed.world, placed.tables.rings
    semaphores = world.semaphores
    ranks = len(world.images)
    preset, offset = np.zeros((2, semaphores), np.int64)
    for i, image in enumerate(world.images):
        for k, each in enumerate(image.presets):
            flat = (i * world.sps + each.sp) * SEMAPHORES + each.identity
            preset[flat] = each.value
            offset[flat] = image.part(Section.SEMA, 0).offset + k * PRESET.size
    there = preset > 0
    image_of = np.repeat(np.arange(ranks), world.sps * SEMAPHORES)
    folds = np.zeros(semaphores, np.int64)
    folds[rings.send] = rings.next_folds
    other = np.zeros(semaphores, np.bool_)
    for column in (rings.recv, rings.post, rings.compl, rings.mine[rings.kangaring]):
        other[column] = True
    waited = _waited(placed)[:semaphores]

    def law(bad: Bool, expected: str) -> None:
        refuse_decimal(bad & there, offset, "semaphore preset", expected, preset, image_of)

    law(other | ~waited, "a credit or an event that something waits on")
    odd = (folds > 0) & (preset % np.maximum(folds, 1) != 0)
    if (odd & there).any():
        law(odd, f"a multiple of {int(folds[np.argmax(odd & there)])} folds")
    fields = 0
    for parity in PARITIES:
        fields |= parity.mask << parity.shift
    law((folds == 0) & (preset & ~fields != 0), "a number of units of an operation")
    want = _usual(preset.reshape(ranks, -1), waited.reshape(ranks, -1))
    wrong = (waited & (preset.reshape(ranks, -1) != want).ravel()).reshape(-1)
    law(wrong, "the value on the other ranks")
    at = np.flatnonzero(wrong)
    if at.size:
        index, place, what = _home(placed, int(at[0]))
        with of_rank(index):
            value = int(want[int(at[0]) % want.size])
            expected = f"a preset of {value} for {world.semaphore_name(int(at[0]))}"
            raise DecodeError(what, offset=place, expected=expected, got="none")


def _usual(values: I64, waited: Bool) -> I64:
    """Return the middle value of each column among the ranks that wait there; 0 where none does."""
    ordered = np.sort(np.where(waited, values, np.iinfo(np.int64).max), axis=0)
    count = waited.sum(axis=0)
    middle = ordered[np.maximum(count - 1, 0) // 2, np.arange(values.shape[1])]
    found: I64 = np.where(count > 0, middle, 0)
    return found


def check_feeds(placed: Placed) -> None:
    """Feed words ascend from 1 and each is read.

    Raises:
        DecodeError: one does not, or is not.
    """
    world, items = placed.world, placed.items
    signal = np.flatnonzero(items.kind == SIGNAL)
    image = items.image_of(signal)
    word = (items.source[items.source_ptr[signal]] - world.memory_base[image] - isa.FEED_WORDS) // FEED_WORD
    used = np.zeros((len(world.images), isa.FEED_WORD_COUNT), np.bool_)
    used[image, word] = True
    for i, each in enumerate(world.images):
        words = feed_words(each).astype(np.int64)
        bad = ~used[i, : words.size] | (np.diff(words, prepend=0) <= 0)
        if bad.any():
            at = int(np.argmax(bad))
            with of_rank(i):
                offset = each.part(Section.MEM, isa.FEED_WORDS).offset + FEED_WORD * at
                expected = "ascending values, each one read"
                raise DecodeError("feed word", offset=offset, expected=expected, got=str(words[at]))
