"""How fast instruction streams become columns, and columns become streams, on one core.

    python benchmarks/words.py [--records 1000000]

Three streams: collective words alone; one collective (word or pair) among fifteen other instructions; and all six
kinds of record in random order. Peers read and write 0xC8 words, one at a time, fewer of them where they are slow;
their figures are per byte all the same. Compare the ratios of one run: the copy is numpy's, of the same bytes.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import construct
import numpy as np

from rota.isa.stream_columns import encode_columns, stream_columns

REPEATS: Final = 5
WORD: Final = "<8BIBBHIIQB15xQQ"
MUST: Final = {"decode": 500, "encode": 200}  # MB/s, for every stream
PEER_RECORDS: Final = {"struct": 200_000, "construct": 10_000, "construct, compiled": 20_000}
NAMES: Final = (
    "opcode inst_word_len debug_cmd debug_hint wait_mode wait_idx update_mode update_idx semaphore_value op dtype "
    "group_id input_id output_id num_elements ctype src_offset dst_offset"
)
COLLECTIVE, OTHERS = 0xC8, (0xA0, 0xA4, 0xA5, 0xA7, 0x41)
KINDS: Final = (0xC8, 0xC7, 0xD9, 0xDA, 0xCB, 0xA5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    streams = make_streams(arguments.records)
    words = streams["collective words"]
    copy = rate(np.frombuffer(words, np.uint8).copy, len(words))
    print(f"# {arguments.records} records of 64 bytes, median of {REPEATS}; MB/s is 10^6 bytes a second, one core")
    print(f"# numpy copy of the same bytes: {copy:.0f} MB/s; 'of copy' is how much of that rate is reached")
    print("# 'must' is this project's own bar; peers read and write the 0xC8 words of the first stream one by one")
    print(f"# {'what':<26}{'direction':<10}{'MB/s':>9}{'must':>6}{'of copy':>9}{'ours is':>9}")
    ours: dict[str, float] = {}
    for name, data in streams.items():
        for direction, measured in measure_ours(data).items():
            ours.setdefault(direction, measured)
            print(line(name, direction, measured, MUST[direction], copy, None))
    for name, count in PEER_RECORDS.items():
        part = words[: 64 * min(count, arguments.records)]
        for direction, measured in PEERS[name](part).items():
            print(line(name, direction, measured, None, copy, ours[direction] / measured))


def line(name: str, direction: str, measured: float, must: int | None, copy: float, ratio: float | None) -> str:
    times = "-" if ratio is None else f"{ratio:.0f}x"
    bar = "-" if must is None else str(must)
    return f"  {name:<26}{direction:<10}{measured:>9.1f}{bar:>6}{measured / copy:>9.4f}{times:>9}"


def make_streams(records: int) -> Mapping[str, bytes]:
    """Return the streams, from one seed; reserved bytes of the collective words are 0."""
    rng = np.random.default_rng(7)
    lines = rng.integers(0, 256, (records, 64), dtype=np.uint8)
    lines[:, 0] = COLLECTIVE
    lines[:, 33:48] = 0
    words = lines.tobytes()
    lines[:, 0] = rng.choice(OTHERS, records)
    lines[::16, 0] = rng.choice([0xC8, 0xD9], len(lines[::16]))
    after = np.flatnonzero(lines[:-1, 0] == 0xD9) + 1
    lines[after, 0] = 0xDA
    sparse = lines.tobytes()
    lines[:, 0] = rng.choice(KINDS, records)
    return {"collective words": words, "one collective in sixteen": sparse, "six kinds, shuffled": lines.tobytes()}


def measure_ours(data: bytes) -> Mapping[str, float]:
    columns, raw = stream_columns(data)
    if encode_columns(columns, raw).tobytes() != data:
        sys.exit("the stream did not come back")
    return {
        "decode": rate(lambda: stream_columns(data), len(data)),
        "encode": rate(lambda: encode_columns(columns, raw), len(data)),
    }


def measure_struct(data: bytes) -> Mapping[str, float]:
    word = struct.Struct(WORD)
    rows = list(word.iter_unpack(data))
    return {
        "decode": rate(lambda: list(word.iter_unpack(data)), len(data)),
        "encode": rate(lambda: b"".join([word.pack(*row) for row in rows]), len(data)),
    }


def measure_construct(data: bytes) -> Mapping[str, float]:
    return measure_parser(construct_word(), data)


def measure_compiled(data: bytes) -> Mapping[str, float]:
    return measure_parser(construct_word().compile(), data)


def construct_word() -> construct.Construct:
    """Return the 0xC8 word as construct says it."""
    kinds = [construct.Int8ul] * 8 + [construct.Int32ul] + [construct.Int8ul] * 2 + [construct.Int16ul]
    kinds += [construct.Int32ul] * 2 + [construct.Int64ul, construct.Int8ul]
    fields = [name / kind for name, kind in zip(NAMES.split(), kinds, strict=False)]
    fields += [construct.Padding(15), "src_offset" / construct.Int64ul, "dst_offset" / construct.Int64ul]
    return construct.Struct(*fields)


def measure_parser(word: construct.Construct, data: bytes) -> Mapping[str, float]:
    records = [data[at : at + 64] for at in range(0, len(data), 64)]
    rows = [word.parse(record) for record in records]
    return {
        "decode": rate(lambda: [word.parse(record) for record in records], len(data)),
        "encode": rate(lambda: b"".join([word.build(row) for row in rows]), len(data)),
    }


PEERS: Final[Mapping[str, Callable[[bytes], Mapping[str, float]]]] = {
    "struct": measure_struct,
    "construct": measure_construct,
    "construct, compiled": measure_compiled,
}


def rate(work: Callable[[], object], size: int) -> float:
    """Return MB/s of the median time, one unmeasured time first."""

    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    work()
    return size / 1e6 / statistics.median(seconds() for _ in range(REPEATS))


if __name__ == "__main__":
    main()
