"""A state machine plays people, workers, the line and the host against a simple model of the truth.

`BERTH_CHAOS_EXAMPLES` and `BERTH_CHAOS_STEPS` make it longer (`make chaos`), `BERTH_CHAOS_SEED` makes another play of
it; without these it is the same every time.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from django.test import override_settings
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deployments import services
from deployments.models import Deployment
from deployments.spec import DeploymentSpec, Restart
from panel.core.errors import Conflict
from tests.chaos.model import truth
from tests.chaos.model.truth import Wanted
from tests.chaos.model.world import MARIA, World, clear, laws

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

EXAMPLES = int(os.environ.get("BERTH_CHAOS_EXAMPLES", "12"))
STEPS = int(os.environ.get("BERTH_CHAOS_STEPS", "25"))
SEED = os.environ.get("BERTH_CHAOS_SEED")
SHRINK = os.environ.get("BERTH_CHAOS_SHRINK") == "1"  # to the shortest play that fails: minutes
MOST = 3  # deployments: one more than there are cards

index = st.integers(0, 5)
twice = st.booleans()
kinds = st.sampled_from(["gpu", "gpu, longer", "cpu", "gpu, once"])
holder: dict[str, World] = {}


def spec_of(artifact_id: int, kind: str) -> DeploymentSpec:
    values: dict[str, Any] = {"artifact_id": artifact_id, "device": kind[:3], "grace_s": 1.0}
    if kind == "gpu, longer":
        values["options"] = {"max_model_len": 2048}
    if kind == "gpu, once":
        values["restart"] = Restart(policy="never")
    return DeploymentSpec(**values)


class Play(RuleBasedStateMachine):
    """One panel, one host with two cards, one person with two windows."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        self.wanted: list[Wanted] = []

    @initialize()
    def begin(self) -> None:
        clear()
        self.world = holder["world"] = World()
        self.world.begin()

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            self.world.wake()
            self.world.agent.down = False
            self.world.settle(self.complaints)
        finally:
            self.world.end()
            holder.clear()

    def complaints(self) -> list[str]:
        return truth.at_rest(self.world, self.wanted)

    @invariant()
    def what_always_holds(self) -> None:
        if self.world is not None:
            self.world.note()
            assert not (said := truth.always(self.world, self.wanted)), "\n".join(said)

    # --- people ------------------------------------------------------------------------------------------------------

    def there(self) -> list[Wanted]:
        return [want for want in self.wanted if not want.deleted]

    def chosen(self, number: int) -> tuple[Wanted, Deployment]:
        there = self.there()
        want = there[number % len(there)]
        return want, Deployment.objects.get(pk=want.pk)

    @rule(kind=kinds, start=st.booleans(), twice=twice)
    @precondition(lambda self: len(self.there()) < MOST)
    def create(self, kind: str, start: bool, twice: bool) -> None:
        spec, name = spec_of(self.world.copy.artifact_id, kind), f"chat-{len(self.wanted)}"
        row = services.create(name=name, spec=spec, actor=MARIA, start=start)
        want = Wanted(row.pk, name, start, [spec])
        want.acts["deployment.created"] += 1
        self.wanted.append(want)
        if twice:
            assert services.create(name=name, spec=spec, actor=MARIA, start=start).pk == row.pk

    def press(self, number: int, verb: str, act: Callable[..., Any], twice: bool, *, changes: bool) -> None:
        want, row = self.chosen(number)
        act(row, actor=MARIA)
        if twice:
            act(row, actor=MARIA)
        want.acts[verb] += changes

    @rule(number=index, twice=twice)
    @precondition(lambda self: self.there())
    def start(self, number: int, twice: bool) -> None:
        want, row = self.chosen(number)
        changes = not want.running or (row.state in ("failed", "stopped") and not truth.open_acts(row))
        self.press(number, "deployment.started", services.start, twice, changes=changes)
        want.running = True
        want.crashed = want.crashed and not changes

    @rule(number=index, twice=twice)
    @precondition(lambda self: self.there())
    def stop(self, number: int, twice: bool) -> None:
        want, _row = self.chosen(number)
        self.press(number, "deployment.stopped", services.stop, twice, changes=want.running)
        want.running = False

    @rule(number=index, twice=twice)
    @precondition(lambda self: self.there())
    def restart(self, number: int, twice: bool) -> None:
        want, row = self.chosen(number)
        changes = not (want.running and truth.open_acts(row))
        self.press(number, "deployment.restarted", services.restart, twice, changes=changes)
        want.running = True
        want.crashed = want.crashed and not changes

    @rule(number=index, kind=kinds, twice=twice)
    @precondition(lambda self: self.there())
    def edit(self, number: int, kind: str, twice: bool) -> None:
        want, row = self.chosen(number)
        spec = spec_of(self.world.copy.artifact_id, kind)
        base = len(want.specs)
        services.edit(row, spec=spec, actor=MARIA, base_number=base)
        if spec != want.spec:
            want.specs.append(spec)
            want.acts["deployment.edited"] += 1
            if twice:  # the other window still shows the settings before
                with pytest.raises(Conflict):
                    services.edit(row, spec=spec, actor=MARIA, base_number=base)

    @rule(number=index, revision=index)
    @precondition(lambda self: self.there())
    def back(self, number: int, revision: int) -> None:
        want, row = self.chosen(number)
        earlier = revision % len(want.specs)
        services.use_revision(row, earlier + 1, actor=MARIA)
        if want.specs[earlier] != want.spec:
            want.specs.append(want.specs[earlier])
            want.acts["deployment.edited"] += 1

    @rule(number=index, twice=twice)
    @precondition(lambda self: self.there())
    def delete(self, number: int, twice: bool) -> None:
        want, row = self.chosen(number)
        services.delete(row, actor=MARIA)
        want.acts["deployment.deleted"] += 1
        want.running, want.deleted = False, True
        if twice:
            with pytest.raises(Conflict):
                services.delete(row, actor=MARIA)

    # --- workers -----------------------------------------------------------------------------------------------------

    @rule(number=index)
    def task(self, number: int) -> None:
        self.world.take_task(number)

    @rule()
    def all_tasks(self) -> None:
        self.world.drain()

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.later(seconds)

    @rule(number=index, at=st.integers(1, 14))
    @precondition(lambda self: self.wanted)
    def a_worker_stalls(self, number: int, at: int) -> None:
        self.world.stall(self.wanted[number % len(self.wanted)].pk, at)

    @rule(dead=st.booleans())
    @precondition(lambda self: self.world.stalled is not None)
    def a_worker_wakes(self, dead: bool) -> None:
        self.world.wake(dead=dead)

    # --- the line and the host ----------------------------------------------------------------------------------------

    @rule()
    def agents_round(self) -> None:
        self.world.agent.round()

    @rule(lost=st.booleans())
    @precondition(lambda self: not self.world.agent.down)
    def poll(self, lost: bool) -> None:
        self.world.agent.poll(reply_lost=lost)

    @rule(lost=st.booleans())
    @precondition(lambda self: not self.world.agent.down)
    def report(self, lost: bool) -> None:
        self.world.agent.report(reply_lost=lost)

    @rule(age=st.integers(1, 12), count=st.integers(1, 2))
    @precondition(lambda self: not self.world.agent.down)
    def an_old_report_comes_late(self, age: int, count: int) -> None:
        agent = self.world.agent
        for old in agent.sent[-age:][:count]:
            agent.deliver(old)

    @rule(number=index)
    @precondition(lambda self: not self.world.agent.down and self.world.agent.seen_rev)
    def an_old_revision_comes_late(self, number: int) -> None:
        agent = self.world.agent
        agent.take({"rev": agent.seen_rev - 1 - number, "jobs": []})

    @rule()
    @precondition(lambda self: not self.world.agent.down)
    def a_twin_knocks(self) -> None:
        agent = self.world.agent
        if agent.report().status_code != 200:
            return  # it has no seat yet itself
        twin = f"{'b' * 32}.1"
        assert agent.call("GET", "work?rev=0&wait=0", instance=twin).status_code == 409
        assert agent.call("POST", "report", agent.sent[-1].body, instance=twin).status_code == 409

    @rule(number=index, signal=st.sampled_from([0, 9]))
    @precondition(lambda self: self.world.engines())
    def an_engine_crashes(self, number: int, signal: int) -> None:
        engines = self.world.engines()
        process = engines[number % len(engines)]
        want = next(w for w in self.wanted if self.world.engine_of(w.pk) is process)
        process.log += b"RuntimeError: it broke\n"
        process.end(exit_code=None if signal else 1, signal=signal or None)
        want.crashed = True

    @rule(rounds=st.integers(0, 12))
    def engines_are_deaf(self, rounds: int) -> None:
        self.world.agent.deafness = rounds

    @rule(down=st.booleans())
    def the_cable(self, down: bool) -> None:
        self.world.agent.down = down

    @rule()
    def the_agent_restarts(self) -> None:
        self.world.agent.restart()

    @rule(seed=st.integers(0, 9))
    def the_host_loses_power(self, seed: int) -> None:
        self.world.power_cut(random.Random(seed))

    @rule()
    def everything_has_its_time(self) -> None:
        self.world.wake()
        self.world.settle(self.complaints)


def test_berth_and_the_model_agree(servers: Any) -> None:
    play = Play if SEED is None else hypothesis.seed(int(SEED))(Play)
    with laws(holder), override_settings(BERTH_CHECK_BEFORE_START=True):
        run_state_machine_as_test(
            play,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                derandomize=SEED is None,
                print_blob=True,
                phases=[Phase.generate, *([Phase.shrink] if SHRINK else [])],
                suppress_health_check=list(HealthCheck),
            ),
        )
    clear()
