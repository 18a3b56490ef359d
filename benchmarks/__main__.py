"""`make bench`: every figure from one run on this machine; the exit code is 1 when a limit is broken.

python -m benchmarks [--without-door] [--without-load] [--only-panel]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import diagnosis, download, estimate, inspect, measure, planner, shutdown
from benchmarks.measure import LIMITS, Figures
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


def start_and_memory(panel: Panel, engines: measure.Engines, figures: Figures) -> None:
    """The first start prepares the database; the later ones are those that people meet every day."""
    say(f"First start to first page: {measure.first_page(panel):.1f} s")
    seconds = []
    for number in range(measure.STARTS):
        panel.end()
        if not number:
            engines.allow()
        seconds.append(measure.first_page(panel))
    figures.times("Second start to first page", seconds, worst=LIMITS["first page"] * 1000)
    time.sleep(IDLE_S)
    by_kind = measure.memory(panel)
    for name, size in sorted(by_kind.items(), key=lambda item: -item[1]):
        say(f"  PSS {name}: {size:.0f} MiB")
    figures.one("Memory when idle, sum of PSS", sum(by_kind.values()), "MiB", LIMITS["memory"])


def delays(panel: Panel, person: measure.Person, row: object, figures: Figures) -> None:
    figures.times("Start to engine's process", measure.click_to_engine(person, row), p50=150, p99=500)
    figures.times("Deploy to engine's process", measure.deploy_to_engine(person, row), p50=150, p99=500)
    figures.times("An estimate over HTTP", measure.estimates(panel), p50=10)
    measure.start(person, row)
    if not measure.CHROMIUM:
        say("Engine's line and end to the drawn page: not measured, there is no Chromium here")
        return
    with measure.browser(person, panel) as page:
        figures.times("Slider to drawn bars", measure.slider_to_bars(row, page), p99=50)
        lines, longest = measure.line_to_page(row, panel, page)
        figures.times("Engine's line to the drawn page", lines, p50=100, p99=300)
        figures.one("Longest task of the browser while it follows the log", longest, "ms", 50)
        figures.times("Engine's end to the drawn page", measure.exit_to_page(person, row, page), p50=500)


def whole_panel(options: argparse.Namespace, figures: Figures) -> None:
    """One panel for all that needs one: started, watched, clicked, then filled and crowded."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        folder = Path(name)
        panel = Panel(folder / "data", free_port())
        engines = measure.Engines(panel, folder)
        try:
            start_and_memory(panel, engines, figures)
            django_on(panel.data)
            person = measure.Person(panel)
            row = engines.deploy()
            measure.wait_for(row, "ready")
            delays(panel, person, row, figures)
            if not options.without_load:
                from benchmarks import load

                measure.start(person, row)
                figures.good &= load.main(panel, row, person.client.cookies["berth_session"], say)
        finally:
            panel.manage("down", timeout=180)


def apart(module: str) -> bool:
    """Run one that starts a panel of its own: Django knows one database per process."""
    return subprocess.run([sys.executable, "-m", module], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without-door", action="store_true", help="leave out the door's cost (about a minute)")
    parser.add_argument("--without-load", action="store_true", help="leave out the long lists and the crowd (minutes)")
    parser.add_argument(
        "--only-panel", action="store_true", help="leave out the estimate, the diagnosis, the files and the door"
    )
    options = parser.parse_args()
    figures = Figures(say)
    if not options.only_panel:
        figures.good &= estimate.to_file()
        planner.main()  # said, not required: it depends on what else the machine does
        figures.good &= diagnosis.main()
        figures.good &= inspect.main()
        figures.good &= download.main()
    whole_panel(options, figures)
    if not options.only_panel:
        figures.good &= shutdown.main()
    if not options.without_load and not options.only_panel:
        figures.good &= all([apart("benchmarks.flood"), apart("benchmarks.fleet")])
    if not options.without_door and not options.only_panel:
        from benchmarks import door

        figures.good &= door.main() == 0
    say("All limits hold." if figures.good else "A limit is broken, see ✗ above.")
    return 0 if figures.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
