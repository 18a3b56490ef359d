"""Many agents at once: simulated by one process against a panel that was started the way people start it.

Each agent keeps its long-poll open and reports every 10 s, as the real one does: facts with two GPUs and two disks,
four engines whose figures move. Meanwhile a person's changes of jobs (runs, stops) are timed from their commit to the
host's word for them in the database. Run: `python -m benchmarks.fleet [--agents 300] [--seconds 60]`.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fleet_agents import JOBS, REPORT_S, Seen, SimAgent

LIMITS = {"change": 2.0, "web": 1.0}  # seconds at the 99th percentile; cores
PARTS = ("panel.web", "postgres", "valkey-server", "celery", "")  # words in commands; "" is this process
TABLES = ("fleet_host", "fleet_gpu", "fleet_job", "fleet_joblog")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# --- what is done meanwhile, and what it costs ------------------------------------------------------------------------
def engine_task() -> Any:
    from panel.fleet import wire

    argv = ["/opt/vllm/bin/vllm", "serve", "/models/bench", *(f"--flag-{n}=value" for n in range(20))]
    return wire.EngineTask(argv=argv, model_path="/models/bench", secret_env={"VLLM_API_KEY": "bench"})


def make_hosts(count: int) -> list[tuple[int, str]]:
    """(number, token) of hosts with their jobs ordered, committed."""
    from panel.fleet import services
    from panel.fleet.models import Host

    made = []
    for number in range(count):
        token = f"bench-token-{number}"
        host = Host.objects.create(name=f"bench-{number}", token_hash=services.digest(token))
        for _ in range(JOBS):
            services.order_job(host=host, task=engine_task())
        made.append((number, token))
    return made


def change_one() -> float:
    """A run begins or ends on some host; seconds from its commit to the host's word in the database."""
    from panel.fleet import services
    from panel.fleet.models import Host, Job

    host = random.choice(list(Host.objects.filter(is_local=False)))
    running = list(host.jobs.filter(open=True, desired="run", state="running").values_list("pk", flat=True)[: JOBS + 1])
    began = time.monotonic()
    if len(running) >= JOBS:
        job_id, wanted = random.choice(running), "ended"
        services.stop_job(job_id)
    else:
        job_id, wanted = services.order_job(host=host, task=engine_task()).pk, "running"
    committed = time.monotonic()
    while Job.objects.values_list("state", flat=True).get(pk=job_id) != wanted:
        if time.monotonic() - committed > 30:
            raise TimeoutError(f"job {job_id} is not {wanted} after 30 s")
        time.sleep(0.01)
    return time.monotonic() - began


def updates() -> dict[str, int]:
    """Rows updated so far, by PostgreSQL's own count."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT relname, n_tup_upd FROM pg_stat_user_tables WHERE relname = ANY(%s)", (list(TABLES),))
        return dict(cursor.fetchall())


def cpu(word: str, root: int) -> float:
    """CPU seconds so far of `root` and what it started, with this word in the command; ended children counted."""
    top = psutil.Process() if not word else psutil.Process(root)
    total = 0.0
    for process in (top, *(top.children(recursive=True) if word else ())):
        try:
            if word in " ".join(process.cmdline()):
                total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


@dataclass(frozen=True)
class Figures:
    """Of one run: seconds, cores, rows updated by table, PSS of the web process in MiB."""

    agents: int
    seconds: float
    reports: list[float]
    changes: list[float]
    polls: int
    web_cores: float
    other_cores: list[float]  # of the other PARTS
    updated: dict[str, int]
    web_mib: float
    errors: list[str]
    beats: int = 0  # reports while nothing changed, and the rows that were updated meanwhile
    beat_updates: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        changes, reports, (database, valkey, workers, own) = self.changes, self.reports, self.other_cores
        each = {name: count / max(1, len(reports)) for name, count in self.updated.items()}
        return [
            f"{self.agents} agents, {JOBS} jobs each, for {self.seconds:.0f} s: {len(reports)} reports "
            f"(median {percentile(reports, 0.5) * 1000:.0f} ms, p99 {percentile(reports, 0.99) * 1000:.0f} ms), "
            f"{self.polls} polls answered, {len(self.errors)} errors",
            f"Change of a job to its state from the host: {len(changes)} changes, "
            f"p50 {percentile(changes, 0.5) * 1000:.0f} ms, p99 {percentile(changes, 0.99) * 1000:.0f} ms "
            f"(at most {LIMITS['change'] * 1000:g}), worst {max(changes) * 1000:.0f} ms",
            f"Cores: web {self.web_cores:.2f} (at most {LIMITS['web']:g}), PostgreSQL {database:.2f}, "
            f"Valkey {valkey:.2f}, workers {workers:.2f}, the agents {own:.2f}; web {self.web_mib:.0f} MiB PSS",
            f"Rows updated by {self.beats} heartbeats alone: {self.beat_updates}",
            "Rows updated per report while jobs change: " + ", ".join(f"{name} {n:.2f}" for name, n in each.items()),
            *(f"  error: {text}" for text in self.errors[:5]),
        ]

    @property
    def good(self) -> bool:
        late = percentile(self.changes, 0.99) > LIMITS["change"]
        writes = sum(self.beat_updates.values()) > 0.1 * self.beats  # a few whose clock or figures moved far
        return not (late or writes or self.web_cores > LIMITS["web"] or self.errors)


@dataclass(frozen=True)
class Pace:
    """Seconds: first reports, heartbeats alone, then with changes; between two changes; between an agent's reports."""

    warm: float = 15.0
    rest: float = 20.0
    busy: float = 40.0
    pause: float = 0.2
    report: float = REPORT_S


async def simulate(port: int, root: int, web: psutil.Process, hosts: list[tuple[int, str]], pace: Pace) -> Figures:
    """Run the agents against the panel at `port`, whose processes `root` started."""
    seen = Seen()
    agents = [SimAgent(number, port, token, seen, pace.report) for number, token in hosts]
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    await _settled(agents, pace)
    alone, count = await _rows(updates), len(seen.reports)
    await asyncio.sleep(pace.rest)
    quiet, beats = _grown(await _rows(updates), alone), len(seen.reports) - count
    before, seen.reports, seen.polls = await _rows(updates), [], 0
    used, began = [cpu(word, root) for word in PARTS], time.monotonic()
    changes = []
    while time.monotonic() - began < pace.busy:
        changes.append(await _rows(change_one))
        await asyncio.sleep(pace.pause)
    took = time.monotonic() - began
    cores = [(cpu(word, root) - was) / took for word, was in zip(PARTS, used, strict=True)]
    updated = _grown(await _rows(updates), before)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pss = web.memory_full_info().pss / 2**20
    found = Figures(len(hosts), took, seen.reports, changes, seen.polls, cores[0], cores[1:], updated, pss, seen.errors)
    return replace(found, beats=beats, beat_updates=quiet)


async def _settled(agents: list[SimAgent], pace: Pace) -> None:
    """Until everybody's first reports, which are all news, are through."""
    end = time.monotonic() + 10 * pace.warm
    await asyncio.sleep(pace.warm)
    while any(agent.beats < 2 or len(agent.jobs) < JOBS for agent in agents) and time.monotonic() < end:
        await asyncio.sleep(0.2)


async def _rows(work: Any) -> Any:
    """The answer of work with the database, in a thread that then lets its connection go."""
    from django.db import connections

    def inner() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return await asyncio.to_thread(inner)


def _grown(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items()}


def measure(agents: int, pace: Pace) -> Figures:
    """Start a panel, simulate, take everything down."""
    from benchmarks.__main__ import django_on
    from tests.panel.running import Panel
    from tests.waiting import free_port

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # rows are read in threads beside the loop
    with tempfile.TemporaryDirectory(prefix="berth-fleet-") as name:
        panel = Panel(Path(name) / "data", free_port())
        panel.env["HOME"] = name
        try:
            panel.up()
            django_on(panel.data)
            hosts = make_hosts(agents)
            return asyncio.run(simulate(panel.port, panel.process.pid, panel.part("panel.web"), hosts, pace))
        finally:
            panel.manage("down", timeout=180)


def main(agents: int = 300, seconds: float = 40.0) -> bool:
    """Print the figures; whether the limits hold."""
    found = measure(agents, Pace(busy=seconds))
    for line in found.lines():
        say(line)
    return found.good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=40.0, help="with jobs that change")
    options = parser.parse_args()
    raise SystemExit(0 if main(options.agents, options.seconds) else 1)
