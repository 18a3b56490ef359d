"""How far the memory estimate is from measured launches, row by row, beside the rules of thumb; and how long it takes.

Run: `python -m benchmarks.estimate [--summary]`. The launches are in tests/data/memory. `make bench` writes the rows to
test-output/estimate.txt.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from models_catalog.estimate import estimate
from models_catalog.estimate import table as where
from models_catalog.estimate.specs import read_spec
from models_catalog.estimate.words import told
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import config
from tests.models_catalog.estimate.reports import Errors, all_errors, reports

LIMITS = {  # (median, 90th percentile) of the relative error; None: not limited
    "weights": (0.001, 0.01),
    "KV tokens, given KV GiB": (0.0002, None),
    "concurrency, given KV GiB": (0.0005, None),
    "KV GiB, from configuration and flags": (0.001, 0.015),
}
CALL_MS, TABLE_MS = 10.0, 50.0
ROUNDS = 5
ROWS = Path.cwd() / "test-output" / "estimate.txt"
MODELS = ("Qwen--Qwen3-8B", "Qwen--Qwen3-30B-A3B", "google--gemma-3-12b-it", "deepseek-ai--DeepSeek-V2-Lite-Chat")
TEAM = (("NVIDIA L4", 23_034), ("NVIDIA GeForce RTX 4090", 24_564), ("NVIDIA L40S", 46_068),
        ("NVIDIA A100-SXM4-80GB", 81_920), ("NVIDIA H100 80GB HBM3", 81_559), ("NVIDIA H200", 143_771))  # fmt: skip


def main(*, rows: Callable[[str], None]) -> bool:
    """Print the tables, every launch to `rows`; False when a limit is broken."""
    good = True
    for errors in all_errors():
        for line in table(errors):
            rows(line)
        good &= summary(errors)
    return all([calls(), api_calls(), tables(), good])


def table(errors: Errors) -> Iterator[str]:
    """A line for each launch: measured, ours, and how far each rule is from what was measured."""
    yield f"\n{errors.name}: report, measured, estimate, its error; then the error of"
    yield from (f"    {number}: {rule}" for number, rule in enumerate(errors.rules, 1))
    for name, ours, measured, naive in errors.rows:
        others = "  ".join(f"{n}: {100 * (value / measured - 1):+7.1f} %" for n, value in enumerate(naive.values(), 1))
        yield f"  {name}  {measured:>14,.2f}  {ours:>14,.2f}  {100 * (ours / measured - 1):+7.2f} %   {others}"


def to_file() -> bool:
    """The same, with the rows in a file, for who reads a hundred figures of other things as well."""
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("w", encoding="utf-8") as file:
        good = main(rows=lambda line: print(line, file=file))
    say(f"  each launch: {ROWS.relative_to(Path.cwd())}")
    return good


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


def api_calls() -> bool:
    """All that `POST /api/v1/estimate` does but for the web: JSON in, a plan with its sentences as JSON out."""

    def question(body: str) -> None:
        values = json.loads(body)
        spec = read_spec(values)
        plan = estimate(facts_of_config(values["config"]), spec.options, spec.gpu, spec.engine_version)
        json.dumps(told(plan, str))

    asked = {"gpu": "H100", "max_model_len": 8192}
    bodies = [
        json.dumps({**asked, "config": config(name), "engine_version": version})
        for name in MODELS
        for version in ("0.32.0", "")
    ]
    worst = max(_median_ms(question, body) for body in bodies)
    say(f"One estimate from its question to its answer in JSON: slowest {worst:.1f} ms (at most {CALL_MS:g} ms)")
    return worst <= CALL_MS


def tables() -> bool:
    """A model's page: six kinds of GPUs, eight of each in a host, by all lengths; and the GPUs that nobody has."""
    team = [where.Group(name, mib, count, ("lab",)) for name, mib in TEAM for count in (1, 2, 4, 8)]
    worst = {"the team's GPUs": 0.0, "GPUs that it does not have": 0.0}
    for name in MODELS:
        facts = facts_of_config(config(name))
        for what, make in zip(worst, (where.table, where.elsewhere), strict=True):
            worst[what] = max(worst[what], _median_ms(_table_of(make, team), facts))
    for what, taken in worst.items():
        say(f"Where a model fits, {what}: slowest {taken:.0f} ms of {len(MODELS)} (at most {TABLE_MS:g} ms)")
    return max(worst.values()) <= TABLE_MS


def _table_of(make: Callable[..., object], team: list[where.Group]) -> Callable[[ModelFacts], object]:
    return lambda facts: make(facts, team, "0.32.0")


def _median_ms(ask: Callable[..., object], *what: object) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        ask(*what)
        times.append((time.perf_counter() - begin) * 1000)
    return median(times)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(0 if main(rows=say if "--summary" not in sys.argv else lambda line: None) else 1)
