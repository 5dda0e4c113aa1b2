"""Schedules written row by row, and what EMIT makes of one on its way to bytes, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from tests.images import PLATFORMS, TRN2
from tests.schedules import Row, build

from rota.columns import I64
from rota.emit.activities import Activities
from rota.emit.allocation import Allocator, Shape
from rota.emit.collective import Collective, Emitted, Plan, plan, split, write
from rota.emit.placement import Placement, place
from rota.isa.dtypes import Dtype
from rota.isa.enums import Algorithm
from rota.schedule.ir import Schedule, Semaphore


def schedule_of(rows: list[Row], semaphores: Sequence[str | tuple[str, int]], *, ranks: int = 2) -> Schedule:
    """Return the checked schedule of these rows; a semaphore is its name, or its name and initial value."""
    named = [Semaphore(each) if isinstance(each, str) else Semaphore(*each) for each in semaphores]
    made = build(rows, ranks=ranks, grain=64, initial=[semaphore.initial for semaphore in named])
    return replace(made, semaphores=tuple(named))


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One collective on its way to bytes; the ranks of the schedule are ranks 0, 1, .. of the machine."""

    schedule: Schedule
    folds: int = 2
    dtype: Dtype = Dtype.BFLOAT16
    algorithm: Algorithm | None = None
    scales: Sequence[float] = ()
    platform_name: str = TRN2
    turn: int = 0
    ranks: Sequence[int] = field(default=())

    @cached_property
    def collective(self) -> Collective:
        members = np.arange(self.schedule.ranks)
        return Collective(
            schedule=self.schedule,
            dtype=self.dtype,
            algorithm=self.algorithm,
            scales=self.scales,
            member=members,
            buffers=np.arange(len(self.schedule.buffers)),
            groups=[members.tolist()],
            turn=self.turn,
        )

    @cached_property
    def at(self) -> Placement:
        ranks = np.array(self.ranks or range(self.schedule.ranks))
        return place(ranks, self.schedule.buffers, PLATFORMS[self.platform_name])

    @cached_property
    def parts(self) -> Activities:
        return split(self.collective)

    @cached_property
    def shape(self) -> Shape:
        return Allocator(self.at.sps).shape(self.schedule, self.parts)

    @cached_property
    def plan(self) -> Plan:
        return plan(self.collective, self.shape, self.at, folds=self.folds)

    @cached_property
    def feeds(self) -> I64:
        """Distinct values that packets add, over all ranks."""
        return np.unique(self.plan.told.value)

    @cached_property
    def emitted(self) -> Emitted:
        return write(self.plan, np.searchsorted(self.feeds, self.plan.told.value), self.at)
