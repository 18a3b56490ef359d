"""`make chaos`: break a whole Berth at chosen moments, and see that everything is true afterwards.

    python -m tests.chaos [--seed N] [--runs N] [--scale F] [--moment NAME] [--fault NAME] [--out FILE]

A seed decides moment, fault, victim and all pauses. Results are appended to FILE, from which
`python -m tests.chaos.report FILE…` makes the table of docs/reliability.md.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

OUT = Path("test-output/chaos.jsonl")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--runs", type=int, default=60, help="how many runs; six seeds make a group that shares a fault"
    )
    parser.add_argument("--each", type=int, default=6, help="how many runs of each group are played: 1, 2, 3 or all 6")
    parser.add_argument(
        "--flat", action="store_true", help="nothing is killed (line, calm): each process's memory must be judged"
    )
    parser.add_argument("--seconds", type=float, default=0, help="begin no run after so many seconds")
    parser.add_argument("--scale", type=float, default=0.1, help="of all times: 1 is what a panel has unset")
    parser.add_argument("--moment", default="", help="this moment only")
    parser.add_argument("--fault", default="", help="faults with this in their name only")
    parser.add_argument("--out", type=Path, default=OUT, help="where results are appended")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended all the same
    for name in ("DATABASE_URL", "REDIS_URL"):  # servers of others are not ours to kill
        os.environ.pop(name, None)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    logging.getLogger("panel").setLevel(logging.WARNING)  # what the harness itself does is nobody's news
    from tests.chaos.berth import own_servers, point_django_at
    from tests.chaos.times import Times

    options.out.parent.mkdir(parents=True, exist_ok=True)
    servers = own_servers()
    try:
        point_django_at(servers)
        return _run(options, servers, Times(options.scale))
    finally:
        servers.stop()


def sizes(samples: dict[tuple[str, int], list[float]]) -> list[str]:
    """A line for each process that was looked at more than once: its memory (PSS, MiB) at first, at most, at last."""
    return [
        f"memory of {name} ({pid}): {found[0]:.0f}, at most {max(found):.0f}, at last {found[-1]:.0f} MiB, {len(found)} looks"
        for (name, pid), found in samples.items()
        if len(found) > 1
    ]


def _run(options: argparse.Namespace, servers, times) -> int:  # type: ignore[no-untyped-def] # Django comes later
    """Berths until all seeds are played: one that was broken is thrown away."""
    from tests.chaos.berth import berth
    from tests.chaos.invariants import memory_grows
    from tests.chaos.run import GROUP, code_state, keep, part, play

    first = options.seed // GROUP * GROUP
    seeds, began, bad, code = list(range(first, first + options.runs, GROUP)), time.monotonic(), 0, code_state()
    while seeds:
        samples: dict[tuple[str, int], list[float]] = {}
        with tempfile.TemporaryDirectory(prefix="berth-chaos-") as folder, berth(servers, Path(folder), times) as made:
            named = list(made.pss_mib())
            while seeds:
                if options.seconds and time.monotonic() - began > options.seconds:
                    seeds = []
                    break
                results = play(made, *part(seeds.pop(0), options.each), moment=options.moment, fault=options.fault)
                for name, (pid, size) in made.pss_mib().items():
                    samples.setdefault((name, pid), []).append(size)
                if not seeds:
                    results[0].violations += memory_grows(samples, expected=named if options.flat else ())
                for result in results:
                    result.code = code
                    keep(options.out, result)
                    say(result.line())
                if any(result.violations for result in results):
                    bad += sum(bool(result.violations) for result in results)
                    say(made.logs())
                    break
            say("\n".join(sizes(samples)))
    say(f"{bad} of the runs broke something")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
