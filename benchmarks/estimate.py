"""How far the memory estimate is from measured launches, row by row, beside the rules of thumb; and how long it takes.

Run: `python -m benchmarks.estimate [--summary]`. The launches are in tests/data/memory.
"""

import sys
import time
from statistics import median

from tests.models_catalog.estimate.reports import Errors, all_errors, reports

LIMITS = {  # (median, 90th percentile) of the relative error; None: not limited
    "weights": (0.001, 0.01),
    "KV tokens, given KV GiB": (0.0002, None),
    "concurrency, given KV GiB": (0.0005, None),
    "KV GiB, from configuration and flags": (0.001, 0.015),
}
CALL_MS = 10.0
ROUNDS = 5


def main(*, rows: bool = True) -> bool:
    """Print the tables; False when a limit is broken."""
    good = True
    for errors in all_errors():
        if rows:
            table(errors)
        good &= summary(errors)
    return calls() and good


def table(errors: Errors) -> None:
    say(f"\n{errors.name}: report, measured, estimate, error; then the rules of thumb")
    for name, ours, measured, naive in errors.rows:
        others = "  ".join(f"{100 * (value / measured - 1):+7.1f} %" for value in naive.values())
        say(f"  {name}  {measured:>14,.2f}  {ours:>14,.2f}  {100 * (ours / measured - 1):+7.2f} %   {others}")


def summary(errors: Errors) -> bool:
    """Median and 90th percentile of the relative errors, ours and those of the rules of thumb."""
    say(f"{errors.name} ({len(errors.rows)} launches): median and 90th percentile of the error")
    found, most = errors.spread(), LIMITS[errors.name]
    limits = ", ".join(f"{100 * limit:g} %" for limit in most if limit is not None)
    say(f"  {'estimate':52} {100 * found[0]:7.3f} %  {100 * found[1]:7.2f} %   (at most {limits})")
    for rule in errors.rules:
        middle, p90 = errors.spread(rule)
        say(f"  {rule:52} {100 * middle:7.3f} %  {100 * p90:7.2f} %")
    return all(limit is None or value <= limit for value, limit in zip(found, most, strict=True))


def calls() -> bool:
    """The slowest question of all, by its median of some rounds."""
    slowest = 0.0
    each = []
    for report in reports():
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            report.plan()
            times.append((time.perf_counter() - begin) * 1000)
        each.append(median(times))
        slowest = max(slowest, each[-1])
    say(f"One estimate: median {median(each):.2f} ms, slowest {slowest:.2f} ms of {len(each)} (at most {CALL_MS:g} ms)")
    return slowest <= CALL_MS


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(0 if main(rows="--summary" not in sys.argv) else 1)
