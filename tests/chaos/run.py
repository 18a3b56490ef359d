"""Seeds become runs: one moment, one fault, and what was not true afterwards."""

import json
import random
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import invariants
from tests.chaos.berth import Berth
from tests.chaos.faults import Factory, all_faults
from tests.chaos.moments import MOMENTS
from tests.chaos.scene import Goal, Scene

LIMIT_S = 10.0  # from the fault's end until all is true
PATIENCE = 4.0  # how many times that is waited, to tell late from never
STRIDE = 7919  # a prime: seeds that follow each other meet moments and faults in no order


@dataclass
class Result:
    """One run. `settled_s` is from the end of the fault until everything was true; -1 when it never was."""

    seed: int
    moment: str = ""
    point: str = ""
    fault: str = ""
    model: str = ""
    hit: bool = False
    settled_s: float = -1.0
    took_s: float = 0.0
    scale: float = 0.0
    code: str = ""
    end: str = ""
    violations: list[str] = field(default_factory=list)

    @property
    def late(self) -> bool:
        return self.settled_s > LIMIT_S

    def line(self) -> str:
        word = (
            "VIOLATED" if self.violations else "missed  " if not self.hit else "late    " if self.late else "ok      "
        )
        text = f"{word} seed {self.seed:<6} {self.moment:<22} {self.point:<14.14} {self.fault:<24.24} {self.model:<8}"
        text += f" {self.end:<8} settled {self.settled_s:5.1f} s, took {self.took_s:5.1f} s"
        return "\n    ".join([text, *self.violations])


def code_state() -> str:
    """The commit that is tested; "+" when files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--short", "--untracked-files=no", "--", "panel", "deployments", "models_catalog")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def chosen(seed: int, factories: list[Factory]) -> tuple[str, Factory]:
    """Each moment meets each fault once in so many seeds as there are pairs."""
    names = list(MOMENTS)
    pair = seed * STRIDE % (len(names) * len(factories))
    return names[pair % len(names)], factories[pair // len(names)]


def play(berth: Berth, seed: int, *, only_moment: str = "", only_fault: str = "") -> Result:
    """One run, on a Berth that is whole. What is not true is in the result; nothing is raised."""
    rng = random.Random(seed)
    factories = all_faults()
    if only_fault:
        factories = [make for make in factories if only_fault in make(berth, random.Random(0)).name]
    moment, factory = chosen(seed, factories)
    moment = only_moment or moment
    scene = Scene(berth, rng, f"chaos-{seed}-{rng.randrange(10**6)}", factory(berth, rng))
    scene.model = rng.choices(["steady", "slow", "stubborn", "forks"], [5, 2, 2, 2])[0]
    scene.policy = rng.choice(["on_failure", "never"])
    result = Result(seed, moment, fault=scene.fault.name, model=scene.model, scale=berth.times.scale)
    began = time.monotonic()
    try:
        _play(scene, MOMENTS[moment], result)
    except Exception as exc:  # a run that broke off is a finding like any other
        result.violations.append(f"{type(exc).__name__}: {exc}")
    finally:
        _whole(berth, result)
    result.point, result.hit, result.took_s = scene.point, scene.hit, time.monotonic() - began
    return result


def _play(scene: Scene, moment: Any, result: Result) -> None:
    goal = moment(scene)
    began = time.monotonic()
    hold = scene.fault.hold()
    time.sleep(max(0.0, hold - (time.monotonic() - began)))
    if scene.fault.silences_agent and scene.hit and hold > scene.berth.times.lost and scene.pk:
        result.violations += _settled(lambda: invariants.without_contact(scene), 5.0)[1]
    scene.fault.end()
    ended = time.monotonic()
    scene.finish()
    _took, found = _settled(lambda: invariants.broken(scene, goal), LIMIT_S * PATIENCE)
    result.settled_s = time.monotonic() - ended if not found else -1.0
    result.violations += found
    result.end = scene.row().state
    if not found:
        _clear(scene, result)


def _clear(scene: Scene, result: Result) -> None:
    """The run's deployment is deleted, which must leave nothing either."""
    if scene.row().deleted_at is None:
        scene.press("delete")
        scene.finish()
    scene.fault.kills_engine = True  # a failure that was there before is no news
    _took, found = _settled(lambda: invariants.broken(scene, Goal("deleted", (0, 99))), LIMIT_S * PATIENCE)
    result.violations += [f"after its deletion: {text}" for text in found]


def _settled(check: Any, limit: float) -> tuple[float, list[str]]:
    began = time.monotonic()
    while found := check():
        if time.monotonic() - began > limit:
            break
        time.sleep(0.15)
    return time.monotonic() - began, found


def _whole(berth: Berth, result: Result) -> None:
    try:
        berth.heal()
    except Exception as exc:
        result.violations.append(f"not whole again: {type(exc).__name__}: {exc}")


def keep(path: Path, result: Result) -> None:
    """Append one run to the file of results."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
