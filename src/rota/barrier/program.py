"""Barrier tables as bytes: the 296-byte configuration of each rank, its signals as descriptors, the words they add.

A rank signals and waits step by step: each send entry of a type in the step is a descriptor pair, the receive entries
of a type are one slot that waits for the sum of their bits. What the bytes mean when they run is `device.barrier`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.barrier.table import Entries, Program
from rota.columns import I64, U64, Array, freeze_columns
from rota.errors import UnsupportedError
from rota.facts import CONVENTION, HIGH, Source
from rota.isa.arch import ARCHES, Arch, route
from rota.isa.barrier_records import (
    CONFIG,
    DRAINED,
    ENGINE,
    FEEDS,
    MOST_SIGNALS,
    QUEUE,
    RING,
    RING_END,
    STEPS,
    BarrierImage,
    BarrierOperation,
    BarrierType,
    program_of,
    semaphore_mapping,
)
from rota.isa.descriptors import COPY_WORD, DESCRIPTOR, DESCRIPTOR_SIZE, len_ctrl
from rota.isa.semaphores import STRIDE, Reserved, Window
from rota.machine.geometry import device
from rota.machine.platform import Platform
from rota.machine.topology import pod_of

LOWERING_SOURCE: Final = Source("barrier", "8.2", HIGH)
REACH_SOURCE: Final = Source("barrier", "8.3", CONVENTION)
_WORD: Final = 4  # bytes of a feed word


@dataclass(frozen=True, slots=True, eq=False)
class _Signals:
    """Every signal of all ranks, by owner and step, in the order in which the engine sends them."""

    owner: I64
    step: I64
    peer: I64
    kind: I64
    operation: I64
    bit: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """One row for each slot of a rank that waits for something."""

    owner: I64
    step: I64
    slot: I64
    kind: I64
    operation: I64
    target: I64

    def __post_init__(self) -> None:
        freeze_columns(self)


def lower_barrier(program: Program, *, context: int = 0) -> tuple[BarrierImage, ...]:
    """Return what each rank of a program loads, ascending.

    Args:
        context: 0 for a program, 1 for a context that the host drives.

    Raises:
        UnsupportedError: a bit has no place in its semaphore (D6) or is set by two entries (D7), a peer is behind the
            network, a chip has no address, or a rank has more signals than its ring takes.

    Source:
        barrier §8, high for the record, convention for the places.
    """
    platform = program.platform
    _check_reach(program)
    _check_bits(program.recv, platform)
    _check_bits(program.send, platform)
    signals, waits = _signals(program), _waits(program)
    ranks = program.ranks
    return tuple(_image(platform, rank, _of(signals, rank), _of_waits(waits, rank), context=context) for rank in ranks)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_reach(program: Program) -> None:
    platform = program.platform
    chips = ARCHES[platform.arch].chips
    highest = program.ranks[-1] if program.groups else 0
    if highest // platform.ranks_per_chip >= chips:
        raise UnsupportedError(
            f"barrier: rank {highest} is on chip {highest // platform.ranks_per_chip}, and an address names {chips} "
            "chips; use lower ranks",
            source=REACH_SOURCE,
        )
    instance = platform.servers
    for owner, peer in zip(program.send.owner.tolist(), program.send.peer.tolist(), strict=True):
        one, other = owner // platform.node_ranks, peer // platform.node_ranks
        one_pod = platform.pod_nodes > 1 and pod_of(platform, one) == pod_of(platform, other)
        if one // instance != other // instance and not one_pod:
            raise UnsupportedError(
                f"barrier: ranks {owner} and {peer} reach each other through the network, and a barrier signal is a "
                "write to an address; run groups that lie on one node or in one pod",
                source=REACH_SOURCE,
            )


def _check_bits(entries: Entries, platform: Platform) -> None:
    """Refuse a bit outside the field of its type, and one that two entries of a rank set."""
    for kind in BarrierType:
        rows = entries.where(entries.kind == kind)
        if kind is BarrierType.MAX or not rows.owner.size:
            continue
        for operation, (start, number) in zip(BarrierOperation, semaphore_mapping(kind).fields, strict=False):
            outside = (rows.bit < start) | (rows.bit >= start + number)
            if outside.any():
                at = int(np.argmax(outside))
                raise UnsupportedError(
                    f"barrier: [nec_dev {_device(platform, int(rows.owner[at]))}] invalid bit {int(rows.bit[at])}, "
                    f"barrier type {int(kind)} ({kind.name}), operation type {int(operation)} ({operation.name}): "
                    f"expected {start} to {start + number - 1}; use a group with fewer such peers (D6, status 1)",
                    source=LOWERING_SOURCE,
                )
        order = np.lexsort((rows.bit, rows.owner))
        owner, bit = rows.owner[order], rows.bit[order]
        twice = (owner[1:] == owner[:-1]) & (bit[1:] == bit[:-1])
        if twice.any():
            at = int(np.argmax(twice))
            raise UnsupportedError(
                f"barrier: [nec_dev {_device(platform, int(owner[at]))}] bit {int(bit[at])} of barrier type "
                f"{int(kind)} ({kind.name}) is already set for rank {int(owner[at])}: expected one peer for each bit; "
                "give groups in which one peer has it (D7, status 1)",
                source=LOWERING_SOURCE,
            )


def _device(platform: Platform, rank: int) -> int:
    return device(platform, rank // platform.ranks_per_chip)


# --- columns ----------------------------------------------------------------------------------------------------------


def _signals(program: Program) -> _Signals:
    """Return the signals of all steps; of one step slot after slot, of one slot in the order of the table."""
    parts: list[tuple[I64, ...]] = []
    for step, slots in enumerate(program_of(switch=program.switch)):
        for kind, operation in slots:
            rows = program.send.where(program.send.kind == kind)
            same = np.ones(rows.owner.size, np.int64)
            parts.append((rows.owner, same * step, rows.peer, rows.kind, same * operation, rows.bit))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return _Signals(*(column[order] for column in columns))


def _waits(program: Program) -> _Waits:
    parts: list[tuple[I64, ...]] = []
    for step, slots in enumerate(program_of(switch=program.switch)):
        for slot, (kind, operation) in enumerate(slots):
            rows = program.recv.where(program.recv.kind == kind)
            owner, index = np.unique(rows.owner, return_inverse=True)
            target = np.zeros(owner.size, np.int64)
            np.add.at(target, index, np.int64(1) << rows.bit)
            same = np.ones(owner.size, np.int64)
            parts.append((owner, same * step, same * slot, same * kind, same * operation, target))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Waits(*(column[order] for column in columns))


def _of(signals: _Signals, rank: int) -> _Signals:
    low, high = np.searchsorted(signals.owner, [rank, rank + 1]).tolist()
    columns = (signals.owner, signals.step, signals.peer, signals.kind, signals.operation, signals.bit)
    return _Signals(*(column[low:high] for column in columns))


def _of_waits(waits: _Waits, rank: int) -> _Waits:
    low, high = np.searchsorted(waits.owner, [rank, rank + 1]).tolist()
    columns = (waits.owner, waits.step, waits.slot, waits.kind, waits.operation, waits.target)
    return _Waits(*(column[low:high] for column in columns))


# --- bytes ------------------------------------------------------------------------------------------------------------


def _image(platform: Platform, rank: int, signals: _Signals, waits: _Waits, *, context: int) -> BarrierImage:
    arch = ARCHES[platform.arch]
    chip, lane = divmod(rank, platform.ranks_per_chip)
    launched = np.bincount(signals.step, minlength=STEPS)
    launched[STEPS - 1] += 1  # the one that says the others are done
    count = int(launched.sum())
    if count > MOST_SIGNALS:
        raise UnsupportedError(
            f"barrier: rank {rank} sends {count} signals in one barrier, and its ring takes {MOST_SIGNALS}; give the "
            "program fewer groups",
            source=REACH_SOURCE,
        )
    return BarrierImage(
        arch=platform.arch,
        rank=rank,
        chip=chip,
        lane=lane,
        lnc=platform.lnc,
        config=_config(arch, platform, lane, launched, waits, context=context),
        page=_page(arch, platform, rank, signals, context=context),
    )


def _config(arch: Arch, platform: Platform, lane: int, launched: Array, waits: _Waits, *, context: int) -> bytes:
    values: dict[str, int] = {}
    for step, number in enumerate(launched.tolist()):
        values |= {f"step{step}_m2s_val": number, f"step{step}_s2m_val": number}
    rows = zip(
        *(getattr(waits, name).tolist() for name in ("step", "slot", "kind", "operation", "target")), strict=True
    )
    for step, slot, kind, operation, target in rows:
        mapping = semaphore_mapping(BarrierType(kind))
        identity = mapping.sem_index[operation][context]
        values[f"step{step}_barrier_sema[{slot}]"] = _semaphore(arch, platform, lane, identity, Window.READ)
        values[f"step{step}_target_sema_val[{slot}]"] = target
    core = lane * platform.lnc
    base = arch.memory(core) + RING
    count = int(launched.sum())
    values |= {
        "dma_sync_sema[0]": _semaphore(arch, platform, lane, Reserved.BARRIER_DMA_SYNC, Window.READ),
        "m2s_tail_ptr": arch.doorbell(core, QUEUE, receive=False),
        "s2m_tail_ptr": arch.doorbell(core, QUEUE, receive=True),
        "mask": 1 << ENGINE,
        "dma_sync_sema_value": DRAINED,
        "tdrbp_low": base & 0xFFFFFFFF,
        "tdrbp_high": base >> 32,
        "desc_count": count,
        "total_desc_n": 2 * count,
        "dma_engines_bitmap": 1 << ENGINE,
        "queue_id": QUEUE,
        "execute_device_barrier": 1,
    }
    return CONFIG.encode(**values)


def _semaphore(arch: Arch, platform: Platform, lane: int, identity: int, window: Window) -> int:
    """Return the address of a semaphore of a rank, on its home stream processor, as its own chip sees it."""
    sps = platform.lnc * arch.sps_per_core
    home = semaphore_mapping(BarrierType.INTRA_CHIP).sp_idx
    return arch.semaphores(lane * sps + home) + window + STRIDE * identity


def _page(arch: Arch, platform: Platform, rank: int, signals: _Signals, *, context: int) -> bytes:
    """Return a rank's memory below its buffers: the words it adds, then reading and writing descriptors."""
    chip, lane = divmod(rank, platform.ranks_per_chip)
    bit = np.append(signals.bit, DRAINED.bit_length() - 1)
    targets = np.append(
        _targets(arch, platform, chip, signals, context=context),
        np.uint64(_semaphore(arch, platform, lane, Reserved.BARRIER_DMA_SYNC, Window.INC)),
    )
    page = np.zeros(RING_END, np.uint8)
    used = np.unique(bit)
    page[FEEDS:RING].view("<u4")[used] = np.uint32(1) << used.astype(np.uint32)
    tx, rx = np.zeros(bit.size, DESCRIPTOR), np.zeros(bit.size, DESCRIPTOR)
    tx["len_ctrl"] = len_ctrl(_WORD, first=True, last=True)
    tx["meta_ctrl"] = COPY_WORD
    tx["buf_ptr"] = (arch.memory(lane * platform.lnc) + FEEDS + _WORD * bit).astype(np.uint64)
    rx["len_ctrl"] = len_ctrl(_WORD)
    rx["buf_ptr"] = targets
    both = np.frombuffer(tx.tobytes() + rx.tobytes(), np.uint8)
    assert both.size == 2 * DESCRIPTOR_SIZE * bit.size
    page[RING : RING + both.size] = both
    return page.tobytes()


def _targets(arch: Arch, platform: Platform, chip: int, signals: _Signals, *, context: int) -> U64:
    """Return the address that each signal adds to, as the sender's chip sees it."""
    identities = np.array(
        [semaphore_mapping(kind).sem_index for kind in BarrierType if kind is not BarrierType.MAX], np.int64
    )  # shape (types, operations, contexts)
    homes = np.array([semaphore_mapping(kind).sp_idx for kind in BarrierType if kind is not BarrierType.MAX], np.int64)
    sps = platform.lnc * arch.sps_per_core
    peer_chip, peer_lane = np.divmod(signals.peer, platform.ranks_per_chip)
    block = arch.semaphores(peer_lane * sps + homes[signals.kind])
    local = block + int(Window.INC) + STRIDE * identities[signals.kind, signals.operation, context]
    routed: I64 = route(local, peer_chip, np.full(peer_chip.size, chip, np.int64))
    return routed.astype(np.uint64)
