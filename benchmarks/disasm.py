"""What a listing costs: instruction records to text and back, beside a numpy copy of the bytes and a plain loop.

    python benchmarks/disasm.py [--records N]

The loop decodes each record with its layout and formats what it finds, one by one: the listing without columns. All
are timed in the same run, best of three; the listing's budget is 3 s for 100,000 records.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rota.device.asm import assemble
from rota.device.disasm import disassemble_stream
from rota.isa.dtypes import Dtype, short_name
from rota.isa.enums import AluOp, CollectiveType, UpdateMode, WaitMode
from rota.isa.opcodes import Opcode, runtime_name
from rota.isa.records import INST_WORD_LEN
from rota.isa.words import COLLECTIVE_WORD


def stream(records: int, *, seed: int = 0) -> bytes:
    """Return collective words in which every field varies, and one NOP in eight records."""
    random = np.random.default_rng(seed)
    table = np.zeros(records, COLLECTIVE_WORD.dtype)
    table["opcode"], table["inst_word_len"] = Opcode.PSEUDO_TRIGGER_COLLECTIVE, INST_WORD_LEN
    for name, choices in (
        ("wait_mode", [mode for mode in WaitMode if mode is not WaitMode.INVALID]),
        ("update_mode", [mode for mode in UpdateMode if mode is not UpdateMode.INVALID]),
        ("op", list(AluOp)),
        ("dtype", list(Dtype)),
        ("ctype", list(CollectiveType)[1:]),
    ):
        table[name] = random.choice(np.array(choices), records)
    for name in ("wait_idx", "update_idx", "group_id", "input_id", "output_id", "semaphore_value"):
        table[name] = random.integers(0, 200, records)
    for name in ("num_elements", "src_offset", "dst_offset"):
        table[name] = random.integers(0, 1 << 40, records)
    table["opcode"][::8] = Opcode.NOP
    return table.tobytes()


def loop(data: bytes) -> str:
    """Return the same facts, record by record."""
    lines = []
    for offset in range(0, len(data), COLLECTIVE_WORD.size):
        values: dict[str, Any] = COLLECTIVE_WORD.decode(data, offset)
        values |= {"op": AluOp(values["op"]).name, "dtype": short_name(Dtype(values["dtype"]))}
        values |= {"wait_mode": WaitMode(values["wait_mode"]).name, "ctype": CollectiveType(values["ctype"]).name}
        fields = " ".join(f"{name}={value}" for name, value in values.items())
        lines.append(f"{offset:08x}: {runtime_name(values['opcode'])} {fields}")
    return "\n".join(lines)


def best(work: Callable[[], Any], *, times: int = 3) -> tuple[float, Any]:
    """Return the shortest time and the result."""
    taken, value = [], None
    for _ in range(times):
        start = time.perf_counter()
        value = work()
        taken.append(time.perf_counter() - start)
    return min(taken), value


def main() -> None:
    """Print one line a way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    count = parser.parse_args().records
    data = stream(count)
    source = np.frombuffer(data, np.uint8)
    listed, text = best(lambda: "\n".join(disassemble_stream(data).lines()))
    back, result = best(lambda: assemble(text), times=1)
    assert result == data, "the text does not give the bytes"
    print(f"# {count} records, {len(data) / 1e6:.1f} MB of records, {len(text) / 1e6:.1f} MB of text")
    print(f"# {'way':<12} {'seconds':>9} {'us/record':>10} {'MB/s':>9}")
    ways = (
        ("numpy copy", best(source.copy)[0]),
        ("plain loop", best(lambda: loop(data))[0]),
        ("disasm", listed),
        ("asm", back),
    )
    for name, seconds in ways:
        print(f"  {name:<12} {seconds:9.4f} {seconds / count * 1e6:10.3f} {len(data) / seconds / 1e6:9.1f}")


if __name__ == "__main__":
    main()
