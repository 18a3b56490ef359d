"""One panel in this process: real services, loop, line and database; the clock, the queue and the host are ours.

Nothing moves by itself. Tasks lie in a list until someone takes one, time passes when `later` says so.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from deployments import probe
from deployments.gateway.ask import Answer
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile, sweep
from panel.accounts.actor import Actor
from panel.fleet import samples, signals
from panel.fleet import services as fleet
from panel.fleet.models import Host, Job
from tests.chaos.model.agent import IDLE_MIB, Agent, Process
from tests.chaos.model.workers import Worker, gates
from tests.deployments import builders

MARIA = Actor(name="maria", id=7, role="operator", via="browser")
CARDS = 2
STEP_S = 6.0  # of the clock in one round: less than makes a host lost
ROUNDS = 80
_numbers = itertools.count(1)


class Clock:
    """The panel's clock, which only goes when it is told."""

    def __init__(self) -> None:
        self.now_is = datetime.now(tz=timezone.get_default_timezone())

    def now(self) -> datetime:
        return self.now_is

    def time(self) -> float:
        return self.now_is.timestamp()

    def later(self, seconds: float) -> None:
        self.now_is += timedelta(seconds=seconds)


@dataclass
class World:
    """See the module. `tasks` are the ids of deployments whose task was sent, `questions` those of runs."""

    clock: Clock = field(default_factory=Clock)
    tasks: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    works: list[dict[str, Any]] = field(default_factory=list)  # every work list that the agent took
    wrote: dict[str, bytes] = field(default_factory=dict)  # what each process has written, ever
    torn: set[str] = field(default_factory=set)  # processes whose log went down with the disk
    stalled: Worker | None = None
    host: Host = field(init=False)
    copy: builders.Copy = field(init=False)
    agent: Agent = field(init=False)

    def begin(self) -> None:
        """Make the rows, by this world's clock: it has to be the present one."""
        number = next(_numbers)
        samples.ask(("DEL", samples.SINCE))  # of the world before, whose clock was ahead
        self.token = f"token {number}"
        self.host = builders.make_host(f"quay{number}", gpus=CARDS)
        for_cpu = self.host.runtimes.get()
        for_cpu.pk, for_cpu.device, for_cpu.executable = None, "cpu", "/opt/cpu/bin/vllm"
        for_cpu.save()
        Host.objects.filter(pk=self.host.pk).update(token_hash=fleet.digest(self.token))
        self.copy = builders.make_copy(self.host, f"Tiny-{number}")
        self.agent = Agent(self.token, [gpu.uuid for gpu in self.host.gpus.order_by("index")])
        self.agent.report()

    # --- moving ------------------------------------------------------------------------------------------------------

    def later(self, seconds: float) -> None:
        """Time passes, and the ticker looks."""
        self.clock.later(seconds)
        for host_id in fleet.mark_lost_hosts():
            signals.host_lost.send_robust(sender=Host, host_id=host_id)
        sweep()

    def take_task(self, index: int = 0) -> None:
        """A worker takes one task of the queue."""
        if self.tasks:
            reconcile(self.tasks.pop(index % len(self.tasks)))

    def drain(self) -> None:
        for _ in range(200):
            if not (self.tasks or self.questions):
                return
            self.take_task()
            if self.questions:
                probe.ask_run(self.questions.pop(0))
        raise AssertionError(f"the queue never empties: {self.tasks}")

    def round(self) -> None:
        self.agent.round()
        self.note()
        self.drain()
        self.later(STEP_S)
        self.drain()

    def note(self) -> None:
        """Keep what the processes wrote, since the host forgets it."""
        for process in self.agent.jobs.values():
            if process.kind == "engine" and process.pid:
                self.wrote[process.id] = process.log

    def power_cut(self, draw: random.Random) -> None:
        self.note()
        before = {process.id for process in self.agent.jobs.values()}
        self.agent.power_cut(draw)
        self.torn |= before - self.agent.jobs.keys()

    def settle(self, complaints: Callable[[], list[str]]) -> None:
        """Rounds until nobody complains, and two more. AssertionError when that does not come."""
        quiet = 0
        found: list[str] = []
        for _ in range(ROUNDS):
            self.round()
            found = complaints()
            quiet = 0 if found else quiet + 1
            if quiet == 3:
                return
        raise AssertionError("\n".join(found) or "it never comes to rest")

    # --- workers that stall ------------------------------------------------------------------------------------------

    def stall(self, pk: int, at: int) -> None:
        """A worker takes this row and sleeps in the middle of it for longer than its lease."""
        if self.stalled is None:
            worker = Worker(pk, at)
            if worker.start():
                self.stalled = worker
            elif worker.failure is not None:
                raise worker.failure

    def wake(self, *, dead: bool = False) -> None:
        worker, self.stalled = self.stalled, None
        if worker is not None:
            (worker.kill if dead else worker.go_on)()

    # --- what is asked by the panel ------------------------------------------------------------------------------------

    def answer(self, run_id: str) -> Answer:
        """What the engine of this run says now; nothing is there when it does not listen."""
        process = self.agent.jobs.get(run_id)
        if process is None or not process.listening:
            return Answer(0, "unreachable", 1.0)
        return Answer(200, "", 12.0, "engine", {"choices": [{"message": {"content": "Paris."}}]})

    def engines(self) -> list[Process]:
        return [process for process in self.agent.living() if process.kind == "engine"]

    def engine_of(self, pk: int) -> Process | None:
        runs = {str(run_id) for run_id in Run.objects.filter(deployment_id=pk).values_list("pk", flat=True)}
        return next((process for process in self.engines() if process.id in runs), None)

    def end(self) -> None:
        self.wake(dead=True)


def clear() -> None:
    """Rows of the world before; what was recorded stays, as it must."""
    Deployment.objects.update(revision=None, run=None)
    with connection.cursor() as cursor:
        for table in ("deployments_transition", "deployments_run", "deployments_revision", "deployments_deployment"):
            cursor.execute(f"DELETE FROM {table}")
    Job.objects.all().delete()
    builders.Copy.objects.all().delete()
    Host.objects.all().delete()


@contextmanager
def laws(holder: dict[str, World]) -> Iterator[None]:
    """What stands in for the outside of every world: clock, broker, door. `holder["world"]` is the present one."""
    patch = pytest.MonkeyPatch()

    def world() -> World:
        return holder["world"]

    def ask(_url: str, token: str, *_args: Any, **_kwargs: Any) -> Answer:
        return world().answer(token)

    def send(task: str, number: Any) -> bool:
        waiting: Any = {"deployments.tasks.probe": world().questions, "deployments.tasks.reconcile": world().tasks}
        waiting[task].append(number)
        return True

    real_now = timezone.now
    patch.setattr(timezone, "now", lambda: holder["world"].clock.now() if "world" in holder else real_now())
    for module in (probe, samples):
        patch.setattr(module, "time", _Time(holder))
    patch.setattr(samples, "datetime", _datetime(holder))
    patch.setattr(probe, "ask", ask)
    patch.setattr(probe, "probe_token", lambda _pk, run_id: run_id)
    patch.setattr("panel.core.queue.send", send)
    patch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    with contextlib.ExitStack() as stack:
        stack.callback(patch.undo)
        stack.enter_context(gates())
        yield


def _datetime(holder: dict[str, World]) -> type[datetime]:
    """`datetime` with the panel's clock, for the module that asks for it that way."""

    class OurDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return holder["world"].clock.now().astimezone(tz)

    return OurDatetime


class _Time:
    """`time.time()` of the panel's clock, for the module that asks for it that way."""

    def __init__(self, holder: dict[str, World]) -> None:
        self.holder = holder

    def time(self) -> float:
        return self.holder["world"].clock.time()


__all__ = ["CARDS", "IDLE_MIB", "MARIA", "World", "clear", "laws"]
