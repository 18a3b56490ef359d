"""Seeds become runs: one moment, one fault, and what was not true afterwards.

Six seeds that follow each other make a group: six deployments, each at a moment of its own, meet the same fault at the same time.
"""

import json
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread

from django.db import connections

from tests.chaos import invariants
from tests.chaos.berth import Berth
from tests.chaos.faults import Factory, Fault, all_faults
from tests.chaos.moments import MOMENTS
from tests.chaos.scene import Goal, Group, Scene

LIMIT_S = 10.0  # from the fault's end until all is true
TOLD_S = 4.0  # what takes longer says what it waited for
PATIENCE = 4.0  # how many times that is waited, to tell late from never: both are violations
GROUP = 6
STRIDE = 7919  # a prime: groups that follow each other meet the faults in no order


@dataclass
class Result:
    """One run. `settled_s` is from the end of the fault until everything was true; -1 when it never was."""

    seed: int
    moment: str = ""
    point: str = ""
    fault: str = ""
    model: str = ""
    device: str = ""
    hit: bool = False
    settled_s: float = -1.0
    took_s: float = 0.0
    scale: float = 0.0
    code: str = ""
    end: str = ""
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)  # of a run that was slow or broken: its states, by seconds

    @property
    def late(self) -> bool:
        return self.settled_s > LIMIT_S

    def line(self) -> str:
        word = "VIOLATED" if self.violations else "ok      " if self.hit else "missed  "
        text = f"{word} seed {self.seed:<6} {self.moment:<22} {self.point:<14.14} {self.fault:<24.24} {self.model:<8} {self.device}"
        text += f" {self.end:<8} settled {self.settled_s:5.1f} s, took {self.took_s:5.1f} s"
        return "\n    ".join([text, *self.violations, *self.story])


def code_state() -> str:
    """The newest commit of what is tested; "+" when files differ from it."""

    def git(*words: str) -> str:
        argv = ["git", *words, "--", "panel", "deployments", "models_catalog"]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--short", "--untracked-files=no") else "")


def chosen(seed: int, factories: list[Factory]) -> tuple[str, Factory]:
    """Moment and fault of a seed. The seeds of one group share the fault; in time each moment meets each fault."""
    names = list(MOMENTS)
    group, place = divmod(seed, GROUP)
    around, fault = divmod(group, len(factories))
    return names[(around * GROUP + place) % len(names)], factories[fault * STRIDE % len(factories)]


def part(first: int, count: int) -> tuple[int, int]:
    """Of a group's seeds as many as `count`, other ones in the next group: (first, how many)."""
    return first + first // GROUP * count % GROUP, count


def play(berth: Berth, first: int, count: int = GROUP, **only: str) -> list[Result]:
    """The runs of one group of seeds, on a Berth that is whole. What is not true is in the results; nothing is raised.

    `only` may name one moment, and a part of the faults' names.
    """
    group = Group()
    group.scenes, results = [], []
    factories = all_faults()
    if name := only.get("fault"):
        factories = [make for make in factories if name in make(berth, random.Random(0)).name]
    shared: Fault | None = None
    for seed in range(first, first + count):
        rng = random.Random(seed)
        moment, factory = chosen(seed, factories)
        if shared is None or shared.per_run:
            shared = factory(berth, random.Random(seed))
        scene = Scene(berth, rng, f"chaos-{seed}-{rng.randrange(10**6)}", shared, group=group)
        scene.model = rng.choices(["steady", "slow", "stubborn", "forks"], [5, 2, 2, 2])[0]
        scene.policy = rng.choice(["on_failure", "never"])
        scene.device = rng.choice(["cpu", "gpu"]) if berth.cards.env else "cpu"
        group.scenes.append(scene)
        result = Result(seed, only.get("moment") or moment, fault=shared.name, model=scene.model)
        result.scale, result.device = berth.times.scale, scene.device
        results.append(result)
    began = time.monotonic()
    _play(berth, group, results)
    for scene, result in zip(group.scenes, results, strict=True):
        result.point, result.hit, result.took_s = scene.point, scene.hit, time.monotonic() - began
    return results


def _play(berth: Berth, group: Group, results: list[Result]) -> None:
    goals: dict[int, Goal] = {}

    def come(scene: Scene, result: Result) -> None:
        goals[result.seed] = MOMENTS[result.moment](scene)

    _each(group, results, come)
    _fault_ends(berth, group, results)
    ended = time.monotonic()

    def judge(scene: Scene, result: Result) -> None:
        if result.seed not in goals:
            return
        goal = goals[result.seed]
        scene.finish()
        waited: list[str] = []
        found = _settled(lambda: invariants.broken(scene, goal), LIMIT_S * PATIENCE, waited)
        result.settled_s = time.monotonic() - ended if not found else -1.0
        result.violations += found
        result.end = scene.row().state
        if result.late:
            result.violations.append(f"true only after {result.settled_s:.1f} s, which is later than {LIMIT_S:g} s")
        if result.violations or result.settled_s > TOLD_S:
            result.story = _story(scene, time.time() - (time.monotonic() - ended))
            result.story += [f"at last it waited for: {text}" for text in waited]

    _each(group, results, judge)
    _each(group, results, _clear)
    for fault in _faults(group):
        try:
            fault.over()
        except Exception as exc:
            results[0].violations.append(f"{type(exc).__name__}: {exc}")
    _whole(berth, results)


def _each(group: Group, results: list[Result], act: Callable[[Scene, Result], None]) -> None:
    """One thread for each run; a run that breaks off is a finding like any other."""

    def one(scene: Scene, result: Result) -> None:
        try:
            act(scene, result)
        except Exception as exc:
            result.violations.append(f"{type(exc).__name__}: {exc}")
        finally:
            group.gone(scene)
            connections.close_all()

    threads = [Thread(target=one, args=pair) for pair in zip(group.scenes, results, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _faults(group: Group) -> list[Fault]:
    return list({id(scene.fault): scene.fault for scene in group.scenes}.values())


def _fault_ends(berth: Berth, group: Group, results: list[Result]) -> None:
    faults = _faults(group)
    hold = max(fault.hold() for fault in faults)
    time.sleep(hold)
    for scene, result in zip(group.scenes, results, strict=True):
        if scene.fault.silences_agent and scene.hit and hold > berth.times.lost and scene.pk:
            result.violations += _settled(partial(invariants.without_contact, scene), 5.0)
    try:
        for fault in faults:
            fault.end()
    except Exception as exc:
        results[0].violations.append(f"the fault did not end: {type(exc).__name__}: {exc}")
    _whole(berth, results)


def _clear(scene: Scene, result: Result) -> None:
    """The run's deployment is deleted, which must leave nothing either."""
    if result.violations or not scene.pk:
        return
    if scene.row().deleted_at is None:
        scene.press("delete")
        scene.finish()
    scene.fault.kills_engine = True  # a failure that was there before is no news
    found = _settled(lambda: invariants.broken(scene, Goal("deleted", (0, 99))), LIMIT_S * PATIENCE)
    result.violations += [f"after its deletion: {text}" for text in found]


def _story(scene: Scene, ended: float) -> list[str]:
    """The states of a deployment and when they came, in seconds from the end of the fault."""
    moves = scene.row().transitions.order_by("pk")
    return [f"{move.at.timestamp() - ended:+7.2f} {move.old} → {move.new} {move.reason or ''}" for move in moves]


def _settled(check: Callable[[], list[str]], limit: float, waited: list[str] | None = None) -> list[str]:
    """What is still not true after `limit` seconds. `waited` gets what was the last to become true."""
    began = time.monotonic()
    while found := check():
        if waited is not None:
            waited[:] = found
        if time.monotonic() - began > limit:
            break
        time.sleep(0.25)
    return found


def _whole(berth: Berth, results: list[Result]) -> None:
    try:
        berth.heal()
    except Exception as exc:
        results[0].violations.append(f"not whole again: {type(exc).__name__}: {exc}")


def keep(path: Path, result: Result) -> None:
    """Append one run to the file of results."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
