"""`make bench`: every figure from one run on this machine; the exit code is 1 when a limit is broken.

python -m benchmarks [--without-door]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import diagnosis, estimate, measure, shutdown
from benchmarks.measure import LIMITS
from tests.panel.running import Panel
from tests.waiting import free_port

IDLE_S = 10.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def django_on(data: Path) -> None:
    """This process works on the database of the panel that is measured."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    os.environ |= {"DJANGO_SETTINGS_MODULE": "panel.settings", "BERTH_DATA": str(data)}
    import django

    django.setup()


def start_and_memory(panel: Panel, engines: measure.Engines) -> bool:
    """The first start prepares the database; the second is the one that people meet every day."""
    first = measure.first_page(panel)
    panel.end()
    engines.allow()
    second = measure.first_page(panel)
    say(f"First start to first page: {first:.1f} s")
    say(f"Second start to first page: {second:.1f} s (at most {LIMITS['first page']:g})")
    time.sleep(IDLE_S)
    by_kind = measure.memory(panel)
    total = sum(by_kind.values())
    for name, size in sorted(by_kind.items(), key=lambda item: -item[1]):
        say(f"  PSS {name}: {size:.0f} MiB")
    say(f"Memory when idle, sum of PSS: {total:.0f} MiB (at most {LIMITS['memory']})")
    return second <= LIMITS["first page"] and total <= LIMITS["memory"]


def delays(panel: Panel, engines: measure.Engines) -> None:
    person = measure.Person(panel)
    row = engines.deploy()
    measure.wait_for(row, "ready")
    say(f"Click to engine's process: {measure.spread(measure.click_to_engine(person, row, engines))}")
    if measure.CHROMIUM:
        say(f"Engine's line to the drawn page: {measure.spread(measure.line_to_page(person, row, panel))}")
    else:
        say("Engine's line to the drawn page: not measured, there is no Chromium here")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without-door", action="store_true", help="leave out the door's cost (about a minute)")
    options = parser.parse_args()
    good_estimates = estimate.main()
    good_diagnosis = diagnosis.main()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        folder = Path(name)
        panel = Panel(folder / "data", free_port())
        engines = measure.Engines(panel, folder)
        try:
            good = start_and_memory(panel, engines)
            django_on(panel.data)
            delays(panel, engines)
        finally:
            panel.manage("down", timeout=180)
    good_end = shutdown.main()
    if not options.without_door:
        from benchmarks import door

        door.main()
    return 0 if good and good_end and good_estimates and good_diagnosis else 1


if __name__ == "__main__":
    raise SystemExit(main())
