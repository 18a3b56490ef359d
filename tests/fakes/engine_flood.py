"""A flood in an engine's log: what it writes is told by a plan alone, so whoever compares can make it again.

A plan is JSON: `lines_per_s` for `seconds`, then `long_lines` of 1 MB, `unbroken_mib` without a newline, `binary_mib`
of random bytes. Each write() is timed; the figures go to the file `report`. `python engine_flood.py PLAN` writes the
same to its own output, to compare with an engine that nobody reads.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = b"INFO flood begins\n", b"\nINFO flood is over\n"
MIB, BLOCK, BURST_S = 1 << 20, 64 << 10, 0.01
LONG_LINE = 1_000_000
LEVELS = ("INFO", "INFO", "INFO", "WARNING", "INFO", "ERROR", "INFO", "INFO")


def chunks(plan: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(phase, what one write() brings), from BEGIN to END."""
    yield "begin", BEGIN
    for number in range(int(plan["lines_per_s"] * plan["seconds"])):
        text = f"{LEVELS[number % 8]} 12-01 10:00:00 [flood.py:7] request {number:09d} of the flood took 12.3 ms, ok"
        yield "lines", f"{text}\n".encode()
    for number in range(plan["long_lines"]):
        yield "long lines", (f"INFO long {number:06d} " + "0123456789" * (LONG_LINE // 10)).encode()[:LONG_LINE] + b"\n"
    for number in range(plan["unbroken_mib"] * MIB // BLOCK):
        yield "no newline", (b"%08x " % number) * (BLOCK // 9) + b"." * (BLOCK % 9)
    chance = random.Random(plan["seconds"])
    for _ in range(plan["binary_mib"] * MIB // BLOCK):
        yield "binary", chance.randbytes(BLOCK)
    yield "end", END


def write(plan: dict[str, Any], handle: int) -> dict[str, dict[str, float]]:
    """Write the flood at its pace; milliseconds of write() by phase, the lines' also by thirds of their time."""
    took: dict[str, array[int]] = {}
    began, pace, lines = time.perf_counter(), plan["lines_per_s"], 0
    for phase, data in chunks(plan):
        if phase == "lines":
            lines += 1
            if (ahead := lines / pace - (time.perf_counter() - began)) > BURST_S:
                time.sleep(ahead)
        start = time.perf_counter_ns()
        os.write(handle, data)
        took.setdefault(phase, array("Q")).append(time.perf_counter_ns() - start)
    found = {phase: figures(times) for phase, times in took.items() if phase not in ("begin", "end")}
    third = len(took.get("lines", ())) // 3
    for number in range(3 if third else 0):
        found[f"lines, third {number + 1}"] = figures(took["lines"][number * third : (number + 1) * third])
    found["all"] = {"seconds": time.perf_counter() - began}
    return found


def figures(times: array[int]) -> dict[str, float]:
    ordered = sorted(times)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6 for name, share in shares.items()}


def flood(path: str) -> None:
    """Follow the plan in this file on our own standard output, and leave the report."""
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    found = write(plan, 1)
    draft = Path(plan["report"] + ".part")
    draft.write_text(json.dumps(found), encoding="utf-8")
    draft.replace(plan["report"])


if __name__ == "__main__":
    flood(sys.argv[1])
