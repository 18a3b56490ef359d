"""A short run of the matrix, and that its judges can say no. The long one is `make chaos`."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import invariants, report
from tests.chaos.berth import Berth, berth, fresh
from tests.chaos.faults import Calm, all_faults
from tests.chaos.moments import MOMENTS
from tests.chaos.run import GROUP, LIMIT_S, Result, chosen
from tests.chaos.scene import Goal, Scene
from tests.chaos.times import Times
from tests.servers import Servers
from tests.waiting import until

GROUPS, EACH = 5, 3
LEAST_RUNS, LEAST_KINDS = 10, 5
SEEDS = 5064  # restart valkey, host clock forward, kill webs, pause postgres, kill web and worker


@pytest.mark.slow
@pytest.mark.integration
def test_a_short_run_breaks_nothing(tmp_path: Path) -> None:
    out = tmp_path / "chaos.jsonl"
    argv = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--seed",
        str(SEEDS),
        "--runs",
        str(GROUPS * GROUP),
        "--each",
        str(EACH),
    ]
    done = subprocess.run([*argv, "--out", str(out)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-3000:]
    judged = [run for run in report.read([out]) if run.hit and run.settled_s >= 0]
    assert len(judged) >= LEAST_RUNS and len({run.fault for run in judged}) >= LEAST_KINDS, done.stdout


def test_every_moment_meets_every_fault() -> None:
    factories = all_faults()
    pairs = len(MOMENTS) * len(factories)
    rounds = -(-len(MOMENTS) // GROUP)
    seeds = range(rounds * len(factories) * GROUP)
    met = {(moment, factories.index(make)) for moment, make in (chosen(seed, factories) for seed in seeds)}
    assert len(met) == pairs


def test_growing_memory_is_told_and_a_warm_up_is_not() -> None:
    grows = [60.0 + 2 * n for n in range(60)]
    warms = [60.0, 70.0, 80.0] + [81.0 + n % 3 for n in range(57)]
    assert invariants.memory_grows({("web", 7): warms}) == []
    assert "worker (9) grew" in invariants.memory_grows({("worker", 9): grows})[0]
    assert "web was not looked at" in invariants.memory_grows({("web", 7): warms[:5]}, expected=["web"])[0]
    assert invariants.memory_grows({("web", 7): warms}, expected=["web"]) == []


def test_the_report_counts_what_was_struck(tmp_path: Path) -> None:
    rows = [
        Result(1, "ready", fault="kill web", hit=True, settled_s=1.0, scale=0.1, code="a"),
        Result(2, "ready", fault="kill web", hit=True, settled_s=LIMIT_S + 1, scale=0.1, code="a"),
        Result(3, "stopping", fault="kill web", hit=False, settled_s=1.0, scale=0.1, code="a"),
        Result(4, "ready", fault="pause web", hit=True, violations=["two engines"], scale=0.1, code="a"),
        Result(5, "ready", fault="pause web", hit=True, violations=["old"], scale=0.1, code="before"),
    ]
    file = tmp_path / "runs"
    file.write_text("".join(json.dumps(row.__dict__) + "\n" for row in rows))
    found = report.text(report.read([file], "a"))
    assert "| kill web | 2 | 1 | 6.0 s | 11.0 s | 1 | 0 |" in found
    assert "| **all** | 3 | 1 | 6.0 s | 11.0 s | 1 | 1 |" in found


# --- the judges, on a Berth that lies ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Berth]:
    with django_db_blocker.unblock(), berth(servers, tmp_path_factory.mktemp("chaos"), Times()) as made:
        yield made


@pytest.mark.slow
@pytest.mark.integration
def test_what_is_not_true_is_told(whole: Berth) -> None:
    from panel import audit
    from panel.fleet.models import Gpu, Host

    rng = random.Random(1)
    scene = Scene(whole, rng, "lies", Calm(whole, rng))
    goal = Goal("running")
    scene.create()
    scene.ready()

    def said() -> str:
        return "; ".join(invariants.broken(scene, goal))

    until(lambda: not said(), why="all is true at first")
    job = scene.job_id
    stray = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "serve"],
        env={"BERTH_JOB": "0" * 32, "HOME": str(whole.folder), "PATH": os.environ["PATH"]},
    )
    try:
        until(lambda: "over or unknown" in said(), why="a stray process")
    finally:
        stray.kill()
        stray.wait()
    with (whole.copies / job).open("ab") as file:
        file.write(b"never arrived\n")
    assert "differ at -1" in said()
    row = scene.row()
    if whole.cards.env:
        card = fresh(lambda: Gpu.objects.order_by("index")[0].pk)
        fresh(lambda: Gpu.objects.filter(pk=card).update(reserved_mib=5))
        assert "card 0 says 5 MiB are reserved, its reservations 0" in said()
        fresh(lambda: Gpu.objects.filter(pk=card).update(reserved_mib=0))
        scene.device = "gpu"
        assert "(gpu) sees the cards []" in said()
        scene.device = "cpu"
    held = whole.host().ram_reserved_mib
    fresh(lambda: Host.objects.filter(is_local=True).update(ram_reserved_mib=1))
    assert "the reservations" in said()
    fresh(lambda: Host.objects.filter(is_local=True).update(ram_reserved_mib=held))
    audit.record("deployment.stopped", row, actor=None, after={"desired": "stopped"})
    assert "stop was pressed 0 times and is 1 times in the record" in said()
    assert "the record's last word" in said()
    assert "people want stopped" in "; ".join(invariants.broken(scene, Goal("stopped")))
    for process in whole.engine_side("engine", job):
        process.kill()
    until(lambda: "by a fault that ends no engine" in said() or "runs where" in said(), why="its engine's end")
