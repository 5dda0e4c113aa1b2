"""Where the ranks of a group stand on the switch, and who is whose neighbour there.

The bounding box of a group has a row for each of its servers, ascending, and a column for each chip in the server; with
two racks the rows of both. Rank (row, column, lane) has the index (row * columns + column) * lanes + lane; a *position*
is where the caller's group names the rank. A group that fills no box is one row of its chips; where the chips hold
different lanes, one row of ranks that count as chips.

    chip        my chip's ranks, by lane, myself among them
    row lane    my lane on the chips of my row, by column, myself among them
    column lane my lane on the chips of my column, by row, myself among them
    A           the other ranks of my row and chip
    B           all ranks of the other rows; A, B and I are the group

Lists of destinations are sprayed: they are in the order of the displacement from the own place, row before column
before lane, each counted in a circle. So the k-th destinations of all ranks are all different.

Source: switch_schedule §3.1 and compose §12.6, conventions, the order of the displacement among them; topology §5 for
rows and columns, convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rota.columns import I64, Bool, freeze
from rota.machine.platform import Platform
from rota.request import Groups

DIES: Final = 2
"""Dies of a chip; the lanes of a die are consecutive. Source: design §2 (18)."""


@dataclass(frozen=True, slots=True)
class BoxShape:
    """What groups must agree in to be planned together.

    Attributes:
        rows, columns, lanes: of the box.
        dies: die of each lane of a chip.
    """

    rows: int
    columns: int
    lanes: int
    dies: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Groups of one shape.

    Attributes:
        flat: position of each index, shape (groups, ranks).
        index: index of each position, shape (groups, ranks).
    """

    shape: BoxShape
    flat: I64
    index: I64

    def __post_init__(self) -> None:
        freeze(self.flat)
        freeze(self.index)

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        ranks: int = self.flat.shape[1]
        return ranks

    # --- sets, as masks over (index, index) ---------------------------------------------------------------------------

    @property
    def self_only(self) -> Bool:
        """Every rank alone."""
        return np.eye(self.ranks, dtype=np.bool_)

    @property
    def chip(self) -> Bool:
        """The ranks of my chip, myself among them."""
        return self._same(self._row) & self._same(self._column)

    @property
    def mates(self) -> Bool:
        """The other ranks of my chip."""
        return self.chip & ~self.self_only

    @property
    def row_lane(self) -> Bool:
        """My lane on the chips of my row, myself among them."""
        return self._same(self._row) & self._same(self._lane)

    @property
    def column_lane(self) -> Bool:
        """My lane on the chips of my column, myself among them."""
        return self._same(self._column) & self._same(self._lane)

    @property
    def intra_axis(self) -> Bool:
        """A: the other ranks of my row, my chip's among them."""
        return self._same(self._row) & ~self.self_only

    @property
    def inter_axis(self) -> Bool:
        """B: the ranks of the other rows."""
        return ~self._same(self._row)

    @property
    def own_lane(self) -> Bool:
        """The ranks of my lane on all chips, myself among them."""
        return self._same(self._lane)

    @property
    def others(self) -> Bool:
        """Everybody else."""
        return ~self.self_only

    @property
    def same_die(self) -> Bool:
        """The ranks whose lane is on the die of mine."""
        return self._same(np.array(self.shape.dies, np.int64)[self._lane])

    # --- lists of positions -------------------------------------------------------------------------------------------

    def listed(self, members: Bool, *, sprayed: bool = False) -> I64:
        """Return for every position the positions in a set, shape (groups, ranks, members of each), by index.

        Args:
            members: the set of each index, equally large for all, shape (ranks, ranks).
            sprayed: by displacement from the own row, column and lane.
        """
        counts = members.sum(axis=1)
        assert (counts == counts[0]).all(), "in a box every rank has equally many neighbours of a kind"
        width = int(counts[0])
        index = np.nonzero(members)[1].reshape(self.ranks, width)
        if sprayed and width > 1:
            order = np.argsort(np.take_along_axis(self._displacement, index, axis=1), axis=1)
            index = np.take_along_axis(index, order, axis=1)
        group = np.arange(self.flat.shape[0])[:, None, None]
        return self.flat[group, index[self.index]]

    def routes(self, targets: I64) -> tuple[I64, I64]:
        """Return where copies land that go by the sender's lane, and what every rank hands on.

        A copy for another lane of another chip lands with the sender's lane there.

        Args:
            targets: of every position, shape (groups, ranks, members of each).

        Returns:
            The landing rank of every target; and (sender, target) of what each position hands on, shape (groups, ranks,
            copies, 2).
        """
        group = np.arange(self.flat.shape[0])[:, None, None]
        to, mine = self.index[group, targets], self.index[:, :, None]
        lands = to - to % self.shape.lanes + mine % self.shape.lanes
        far = (lands != to) & (to // self.shape.lanes != mine // self.shape.lanes)
        landing = np.where(far, self.flat[group, lands], targets)
        copies = int(far[0].sum()) // self.ranks
        handed = np.empty((*self.flat.shape, copies, 2), np.int64)
        for number in range(self.flat.shape[0]):
            sender, place = np.nonzero(far[number])
            target = targets[number, sender, place]
            order = np.argsort(landing[number, sender, place], kind="stable")
            handed[number] = np.stack([sender, target], axis=1)[order].reshape(self.ranks, copies, 2)
        return landing, handed

    def _same(self, coordinate: I64) -> Bool:
        same: Bool = coordinate[:, None] == coordinate[None, :]
        return same

    @property
    def _displacement(self) -> I64:
        """How far each index is from each other one, row before column before lane, all counted in a circle."""
        shape, away = self.shape, np.zeros((self.ranks, self.ranks), np.int64)
        for coordinate, many in ((self._row, shape.rows), (self._column, shape.columns), (self._lane, shape.lanes)):
            away = away * many + (coordinate[None, :] - coordinate[:, None]) % many
        return away

    @property
    def _row(self) -> I64:
        return np.arange(self.ranks, dtype=np.int64) // (self.shape.columns * self.shape.lanes)

    @property
    def _column(self) -> I64:
        return np.arange(self.ranks, dtype=np.int64) // self.shape.lanes % self.shape.columns

    @property
    def _lane(self) -> I64:
        return np.arange(self.ranks, dtype=np.int64) % self.shape.lanes


def boxes(platform: Platform, groups: Groups) -> dict[BoxShape, tuple[int, ...]]:
    """Return the shapes of groups of machine ranks, each with the numbers of its groups, in order."""
    found: dict[BoxShape, list[int]] = {}
    for number, group in enumerate(groups):
        found.setdefault(_placed(platform, group)[0], []).append(number)
    return {shape: tuple(numbers) for shape, numbers in found.items()}


def grid_of(platform: Platform, groups: Groups) -> Grid:
    """Return where groups of machine ranks stand; they have one shape."""
    placed = [_placed(platform, group) for group in groups]
    assert len({shape for shape, _ in placed}) == 1, "groups of one grid have one shape"
    flat = np.array([order for _, order in placed], np.int64)
    return Grid(placed[0][0], flat, np.argsort(flat, axis=1))


def _placed(platform: Platform, group: Sequence[int]) -> tuple[BoxShape, list[int]]:
    """Return the shape of one group and its positions by index."""
    order = sorted(range(len(group)), key=lambda position: group[position])
    lanes: dict[int, list[int]] = {}
    for position in order:
        chip, lane = divmod(group[position], platform.ranks_per_chip)
        lanes.setdefault(chip, []).append(lane)
    if len({tuple(here) for here in lanes.values()}) > 1:
        return BoxShape(1, len(group), 1, (0,)), order
    here = next(iter(lanes.values()))
    dies = tuple(lane * DIES // platform.ranks_per_chip for lane in here)
    places: dict[int, list[int]] = {}
    for chip in lanes:
        places.setdefault(chip // platform.chips, []).append(chip % platform.chips)
    if len({tuple(row) for row in places.values()}) > 1:
        return BoxShape(1, len(lanes), len(here), dies), order
    return BoxShape(len(places), len(lanes) // len(places), len(here), dies), order
