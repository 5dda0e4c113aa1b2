"""Every case of the grid as bytes: written to disk, read back in another process, run there, bit for bit its rows.

The third side of the triangle: what `test_grid` proves and executes, the device model does from images alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.grid import Case
from tests.property.test_grid import PARTS, ROOT, few, random_inputs, refusal, sample

from rota.device.model import Order, load
from rota.emit import emit, write_images
from rota.errors import UnsupportedError
from rota.execute.arrays import execute
from rota.isa.enums import Algorithm, EncOp
from rota.pipeline import Composed, prove

ORDERS = 1
"""Random schedulings of each case in CI; the slow suite has 200 of each operation of each family."""


def images_of(case: Case, made: Composed) -> tuple[bytes, ...]:
    """Return the images of a composed case."""
    return emit(made.schedule, made.request, case.machine.platform, algorithm=Algorithm.__members__.get(made.algorithm))


def composed(chosen: list[Case]) -> list[tuple[Case, Composed]]:
    """Return the cases that are composed and have something to load."""
    found = []
    for case in chosen:
        if refusal(case) is not None:
            continue
        try:
            made = prove(case.request, case.machine.platform, replace(case.how, verify=False))
        except UnsupportedError:
            continue  # refused by a composer; `test_grid` looks at the reason
        if len(made.schedule):
            found.append((case, made))
    return found


def run_elsewhere(chosen: list[tuple[Case, Composed]], where: Path) -> Counter[str]:
    """Write images and inputs, run them in another process, compare; raise with all that differs."""
    wanted = []
    for number, (case, made) in enumerate(chosen):
        inputs = random_inputs(made.request)
        wanted.append(execute(made.schedule, inputs, scales=made.request.scales).view(np.uint8))
        at = where / f"{number:04d}"
        at.mkdir()
        write_images(at / "images", images_of(case, made), made.request.members, head={}, words=b"")
        np.save(at / "inputs.npy", np.ascontiguousarray(inputs).view(np.uint8))
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    subprocess.run(
        [sys.executable, "-m", "tests.device_side", str(where)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    bad, count = [], Counter[str]()
    for number, ((case, made), want) in enumerate(zip(chosen, wanted, strict=True)):
        at = where / f"{number:04d}"
        count[made.algorithm] += 1
        if (at / "error.txt").exists():
            bad.append(f"{case}: {(at / 'error.txt').read_text()}")
        elif not np.array_equal(np.load(at / "outputs.npy"), want):
            bad.append(f"{case}: the device leaves other bytes than the schedule")
    assert not bad, f"{len(bad)} of {len(chosen)}\n" + "\n".join(bad)
    return count


@pytest.mark.parametrize("part", range(PARTS))
def test_the_device_does_every_pair_of_family_operation_and_platform(part: int, tmp_path: Path) -> None:
    """From images on disk, in another process, each family does each of its operations bit for bit."""
    count = run_elsewhere(composed(list(few()[part::PARTS])), tmp_path)
    assert count.total() >= 200 // PARTS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_device_does_the_grid(part: int, tmp_path: Path) -> None:
    """What holds for the cheapest case of each pair holds at every size, type, order and setting."""
    count = run_elsewhere(composed(list(sample()[part::PARTS])), tmp_path)
    assert count.total() >= 2000 // PARTS


def _random_orders(chosen: list[tuple[Case, Composed]], orders: int) -> None:
    bad = []
    for case, made in chosen:
        device = load(images_of(case, made))
        inputs = random_inputs(made.request)
        want = execute(made.schedule, inputs, scales=made.request.scales).view(np.uint8)
        raw = np.ascontiguousarray(inputs).view(np.uint8)
        for seed in range(orders):
            got = device.run(raw, order=Order.RANDOM, rng=np.random.default_rng(seed))
            if not np.array_equal(got, want):
                bad.append(f"{case}: order {seed}")
                break
    assert bad == []


@pytest.mark.parametrize("part", range(PARTS))
def test_random_orders_give_the_same_bits(part: int) -> None:
    """Random priorities, early and late writes change no bit of any family."""
    _random_orders(composed(list(few()[part::PARTS])), ORDERS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_two_hundred_random_orders_give_the_same_bits(part: int) -> None:
    """The same with 200 schedulings of each operation of each family, on the machine where it has the fewest rows."""
    least: dict[tuple[str, EncOp], tuple[Case, Composed]] = {}
    for case, made in composed(list(few())):
        key = made.algorithm, made.request.kind
        if key not in least or len(made.schedule) < len(least[key][1].schedule):
            least[key] = case, made
    assert len(least) >= 70
    _random_orders(list(least.values())[part::PARTS], 200)
