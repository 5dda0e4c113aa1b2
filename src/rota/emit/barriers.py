"""The barrier that a program is bracketed by, as each rank loads it: the device view, or else the host's.

The device view is that of the merged tables of all groups. Where they do not merge, or a signal would have to cross the
network, the host brings the ranks together. Source: barrier §4, §6 and §8.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rota.barrier.merge import merge
from rota.barrier.program import lower_barrier
from rota.barrier.table import construct
from rota.columns import I64
from rota.emit.placement import Placement
from rota.errors import UnsupportedError
from rota.isa.barrier_records import CONFIG, FEEDS, HOME_SP, HOST_VIEW, RING_END
from rota.isa.semaphores import Reserved, Window
from rota.machine.platform import Platform


@dataclass(frozen=True, slots=True)
class BarrierView:
    """What one rank loads for its barriers.

    Attributes:
        config: 296 bytes of the program block of its home stream processor.
        page: its memory from `FEEDS` on, up to the buffers; empty where the host does it.
    """

    config: bytes
    page: bytes


def barrier_views(
    partitions: Sequence[Sequence[Sequence[int]]], ranks: I64, platform: Platform, at: Placement
) -> tuple[tuple[BarrierView, ...], str]:
    """Return the view of each rank, and why it is the host's; empty where the device does it.

    Args:
        partitions: the groups of each collective of the program, machine ranks.
        ranks: machine ranks of the program's members.
    """
    found = list(dict.fromkeys(tuple(tuple(group) for group in groups if len(group) > 1) for groups in partitions))
    wanted = [groups for groups in found if groups]
    try:
        if not wanted:
            raise UnsupportedError("no group of the program has two ranks")
        if np.unique(at.span).size > 1:
            raise UnsupportedError("the program's ranks are on several machines, and a barrier signal needs an address")
        merge([construct(platform, groups) for groups in wanted])
        program = construct(platform, list(dict.fromkeys(group for groups in wanted for group in groups)))
        images = {image.rank: image for image in lower_barrier(program)}
        alone = set(ranks.tolist()) - images.keys()
        if alone:
            raise UnsupportedError(f"rank {min(alone)} is in no group of the barrier")
    except UnsupportedError as error:
        return tuple(_host(member, at) for member in range(ranks.size)), str(error)
    return tuple(BarrierView(images[rank].config, images[rank].page[FEEDS:RING_END]) for rank in ranks.tolist()), ""


def _host(member: int, at: Placement) -> BarrierView:
    """Return the host's view: the word that starts it, and the semaphore that says it is done."""
    one, home = np.array([member]), np.array([HOME_SP])
    view = HOST_VIEW.encode(
        barrier_start=int(at.memory(one, one)[0]) + FEEDS,
        barrier_done=int(at.semaphore(one, home, np.array([int(Reserved.HOST_BARRIER_DONE)]), Window.READ, one)[0]),
    )
    return BarrierView(view.ljust(CONFIG.size, b"\0"), b"")
