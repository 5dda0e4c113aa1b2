"""Barrier tables and runs, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rota.barrier.guarantee import Early, Guarantee, promised
from rota.barrier.merge import DeviceTable
from rota.barrier.table import Entries, Program, kind_name, peers_seen
from rota.device.barrier import BarrierTimes
from rota.isa.barrier_records import collision_hash
from rota.machine.geometry import Peer
from rota.machine.partition import format_ranks
from rota.machine.topology import node_of
from rota.report.text import machine

_SIDES: Final = ("send", "recv")
_HEADER: Final = "# rank side   peer type                    bit group neuron_dev  rid tpb_index pod_node reservation"


@dataclass(frozen=True, slots=True)
class Ran:
    """One barrier of a program on the device model.

    Attributes:
        early: of each guarantee, the rank that broke it, or None where it held.
    """

    times: BarrierTimes
    early: Mapping[Guarantee, Early | None]


@dataclass(frozen=True, slots=True)
class Barriers:
    """What `rota barrier` found.

    Attributes:
        table: of the devices; None where programs collide.
        collision: why they do.
        runs: of each program, or none.
    """

    programs: tuple[Program, ...]
    table: DeviceTable | None
    collision: str | None
    runs: tuple[Ran, ...]

    @property
    def kept(self) -> bool:
        """Whether every program that ran kept what its barrier promises."""
        return all(ran.early[promised(program)] is None for program, ran in zip(self.programs, self.runs, strict=False))


def barrier_text(found: Barriers) -> Iterator[str]:
    """Yield the tables of all ranks, the device table or the collision, and the runs."""
    for index, program in enumerate(found.programs):
        yield f"program {index} on {machine(program.platform)}, {promised(program).value}"
        for number, (group, strategy) in enumerate(zip(program.groups, program.strategies, strict=True)):
            yield f"  group {number}: {format_ranks(group)}, strategy {strategy.value}"
        yield _HEADER
        for rank in program.ranks:
            for side in _SIDES:
                for row, peer in _rows(program, rank, side):
                    yield (
                        f"{rank:>6} {side:<4} {row['peer']:>6} {row['type']:<22} {row['bit']:>4} {row['group']:>5} "
                        f"{peer.neuron_dev:>10} {peer.rid:>4} {peer.tpb_index:>9} {peer.pod_node_id:>8} "
                        f"{peer.reservation_id:>11}"
                    )
    if found.table is None:
        yield f"collision: {found.collision}"
    else:
        yield "device tables, receiving side of all programs"
        yield "# rank type                    bit  hash   peer"
        for row in _merged(found.table):
            yield f"{row['rank']:>6} {row['type']:<22} {row['bit']:>4} {row['hash']:>5} {row['peer']:>6}"
    for index, (program, ran) in enumerate(zip(found.programs, found.runs, strict=False)):
        yield from _run_text(index, program, ran)


def barrier_json(found: Barriers) -> dict[str, Any]:
    """Return the document of tables, merge and runs."""
    return {
        "schema": 1,
        "programs": [_program_json(program) for program in found.programs],
        "device_tables": None if found.table is None else list(_merged(found.table)),
        "collision": found.collision,
        "runs": [_run_json(*pair) for pair in zip(found.programs, found.runs, strict=False)],
    }


def _program_json(program: Program) -> dict[str, Any]:
    return {
        "platform": program.platform.name,
        "lnc": program.platform.lnc,
        "groups": [list(group) for group in program.groups],
        "strategies": [strategy.value for strategy in program.strategies],
        "promise": promised(program).value,
        "tables": [
            {"rank": rank, **{side: [row for row, _ in _rows(program, rank, side)] for side in _SIDES}}
            for rank in program.ranks
        ],
    }


def _rows(program: Program, rank: int, side: str) -> Iterator[tuple[dict[str, Any], Peer]]:
    entries: Entries = (program.send if side == "send" else program.recv).of(rank)
    platform = program.platform
    peers = peers_seen(platform, node_of(platform, rank // platform.ranks_per_chip), entries.peer)
    columns = (entries.peer.tolist(), entries.kind.tolist(), entries.bit.tolist(), entries.group.tolist())
    for peer, kind, bit, group, told in zip(*columns, peers, strict=True):
        yield {"peer": peer, "type": kind_name(kind), "bit": bit, "group": group}, told


def _merged(table: DeviceTable) -> Iterator[dict[str, Any]]:
    """Yield the rows of all devices by rank, those of one in the order of their insertion."""
    rows = zip(table.owner.tolist(), table.kind.tolist(), table.bit.tolist(), table.peer.tolist(), strict=True)
    for rank, kind, bit, peer in sorted(rows, key=lambda row: row[0]):
        yield {"rank": rank, "type": kind_name(kind), "bit": bit, "hash": collision_hash(kind, bit), "peer": peer}


def _run_text(index: int, program: Program, ran: Ran) -> Iterator[str]:
    yield f"program {index} on the device model, times in us"
    yield "# rank      entry       exit"
    entry, leave = ran.times.entry[0].tolist(), ran.times.leave[0].tolist()
    for rank, one, other in zip(program.ranks, entry, leave, strict=True):
        yield f"{rank:>6} {one / 1e6:>10.3f} {other / 1e6:>10.3f}"
    for guarantee in _asked(program):
        early = ran.early[guarantee]
        kind = "promised" if guarantee is promised(program) else "not promised"
        how = "held" if early is None else f"broken: rank {early.rank} left while rank {early.outside} was outside"
        yield f"{kind}, {how}: {guarantee.value}"


def _run_json(program: Program, ran: Ran) -> dict[str, Any]:
    return {
        "ranks": list(program.ranks),
        "entry_ps": ran.times.entry[0].tolist(),
        "exit_ps": ran.times.leave[0].tolist(),
        "guarantees": [
            {
                "what": guarantee.value,
                "promised": guarantee is promised(program),
                "held": ran.early[guarantee] is None,
                "early_rank": _of(ran.early[guarantee], "rank"),
                "outside_rank": _of(ran.early[guarantee], "outside"),
            }
            for guarantee in _asked(program)
        ],
    }


def _of(early: Early | None, name: str) -> int | None:
    return None if early is None else int(getattr(early, name))


def _asked(program: Program) -> Sequence[Guarantee]:
    """Return the guarantees, the promised one first."""
    return sorted(Guarantee, key=lambda each: each is not promised(program))
