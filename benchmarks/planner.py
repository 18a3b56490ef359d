"""How long the planner takes in a large fleet: 50 hosts with 8 GPUs and 20 engines each.

Run: `python -m benchmarks.planner`. Each question is asked of a planner that remembers nothing.
"""

import sys
import time
from statistics import median

from deployments.engines.base import RuntimeFacts
from deployments.placement import NoPlacement, RuntimeView
from deployments.planner import Need, nearest, plan
from tests.deployments.pure.plans import CARDS, card, lab, model, spec

HOSTS, GPUS, ENGINES, ROUNDS = 50, 8, 20, 5
LIMIT_MS = 100.0
QUESTIONS = {
    "where it fits": (Need(), {}),
    "8 people at 16,384 tokens on 2 GPUs": (Need(context=16_384, people=8, priority="speed"), {"gpu_count": 2}),
    "nowhere": (Need(context=40_960, people=4_000), {}),
}


def main() -> bool:
    """Print the times; False when one is over the limit."""
    engines = tuple(
        RuntimeView(n, "vllm", RuntimeFacts(f"/opt/{n}/vllm", f"0.{32 - n % 3}.{n}", "cuda")) for n in range(ENGINES)
    )
    kinds = sorted(set(CARDS) - {"t4"})
    fleet = [
        lab(
            *(card(kinds[n % len(kinds)], gpu, used_mib=300 + 97 * ((n * GPUS + gpu) % 83)) for gpu in range(GPUS)),
            number=n + 1,
            runtimes=engines,
        )
        for n in range(HOSTS)
    ]
    facts, good = model(), True
    for what, (need, values) in QUESTIONS.items():
        asked, times, more = spec(**values), [], []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            found = plan(asked, fleet, facts, need)
            times.append((time.perf_counter() - begin) * 1000)
            if isinstance(found, NoPlacement):
                nearest(asked, fleet, facts, found, need)
                more.append((time.perf_counter() - begin) * 1000 - times[-1])
        good &= median(times) <= LIMIT_MS
        beside = f"; what would make it fit {median(more):.0f} ms" if more else ""
        say(f"Planner, {HOSTS} hosts × {GPUS} GPUs × {ENGINES} engines, {what}: {median(times):.0f} ms{beside}")
    say(f"  (at most {LIMIT_MS:g} ms)")
    return good


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
