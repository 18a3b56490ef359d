"""The table of docs/reliability.md, made from files of results.

    python -m tests.chaos.report FILE… [--write]

Only runs of the newest code state in the files count; a fault that found nobody to strike is told apart.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.run import LIMIT_S, Result

PAGE = Path("docs/reliability.md")
BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
REAL = 1.0


def read(files: Iterable[Path], code: str = "") -> list[Result]:
    """All runs of one code state, each seed once: the newest one of it."""
    rows = [Result(**json.loads(line)) for path in files for line in path.read_text().splitlines()]
    kept = {(row.seed, row.scale): row for row in rows if not code or row.code == code}
    return sorted(kept.values(), key=lambda row: (row.scale, row.seed))


def table(rows: list[Result]) -> str:
    """One line per fault, and a sum."""
    by_fault: dict[str, list[Result]] = defaultdict(list)
    for row in rows:
        by_fault[row.fault].append(row)
    lines = [
        "| fault | runs | moments | settled after its end, median | slowest | later than 10 s | violations |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *[_line(name, found) for name, found in sorted(by_fault.items())],
        _line("**all**", rows),
    ]
    return "\n".join(lines)


def _line(name: str, rows: list[Result]) -> str:
    struck = [row for row in rows if row.hit]
    settled = [row.settled_s for row in struck if row.settled_s >= 0]
    median, slowest = (statistics.median(settled), max(settled)) if settled else (0.0, 0.0)
    late = sum(row.settled_s > LIMIT_S for row in struck)
    bad = sum(bool(row.violations) for row in rows)
    moments = len({row.moment for row in struck})
    return f"| {name} | {len(struck)} | {moments} | {median:.1f} s | {slowest:.1f} s | {late} | {bad} |"


def text(rows: list[Result]) -> str:
    """What stands between the marks of the page."""
    scaled, real = [r for r in rows if r.scale != REAL], [r for r in rows if r.scale == REAL]
    parts = []
    if scaled:
        missed = sum(not row.hit for row in scaled)
        said = f" In {missed} further runs the fault found nobody to strike; they are not counted." if missed else ""
        codes = ", ".join(sorted({row.code for row in scaled}))
        scales = ", ".join(f"{scale:g}" for scale in sorted({row.scale for row in scaled}))
        parts.append(f"Code {codes}, times scaled by {scales}.{said}\n\n{table(scaled)}")
    if real:
        parts.append(f"At real scale (code {', '.join(sorted({row.code for row in real}))}):\n\n{table(real)}")
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--code", default="", help="only runs of this code state")
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE}")
    options = parser.parse_args()
    rows = read(options.files, options.code)
    found = text(rows)
    sys.stdout.write(found + "\n")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 1 if any(row.violations for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
