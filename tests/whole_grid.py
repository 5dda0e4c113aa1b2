"""The whole grid on all three sides, for when there is an hour: suites take a fifth of it.

    python -m tests.whole_grid [PART/PARTS] [--rest]

Each case is proved, executed, and run as bytes from images on disk in another process; what differs is printed, and the
exit code is 1. --rest leaves out the fifth that the slow suites take.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rota.pipeline import prove
from tests.grid import Case, cases
from tests.property.test_device_grid import composed, run_elsewhere
from tests.property.test_grid import sample

TOGETHER = 40  # cases whose images are on disk at a time


def run(chosen: tuple[Case, ...]) -> bool:
    """Run cases, say how far it is now and then, and return whether all agree."""
    count, right, start = Counter[str](), True, time.monotonic()
    for first in range(0, len(chosen), TOGETHER):
        some = composed(list(chosen[first : first + TOGETHER]))
        for case, _ in some:
            prove(case.request, case.machine.platform, case.how)
        with tempfile.TemporaryDirectory() as where:
            try:
                count += run_elsewhere(some, Path(where))
            except AssertionError as error:
                right = False
                print(error, flush=True)
        if first // TOGETHER % 10 == 0 or first + TOGETHER >= len(chosen):
            done, took = min(first + TOGETHER, len(chosen)), time.monotonic() - start
            print(f"{done} of {len(chosen)} cases, {count.total()} composed, {took:.0f} s", flush=True)
    print(", ".join(f"{name} {number}" for name, number in sorted(count.items())))
    return right


def main() -> int:
    """Read the arguments."""
    words = [word for word in sys.argv[1:] if word != "--rest"]
    part, parts = (int(word) for word in (words[0] if words else "1/1").split("/"))
    known = set(sample()) if "--rest" in sys.argv else set()
    chosen = tuple(case for case in cases() if case not in known)
    return 0 if run(chosen[part - 1 :: parts]) else 1


if __name__ == "__main__":
    sys.exit(main())
