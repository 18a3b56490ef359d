"""One run of the matrix: a person, their deployment, and the moment at which the fault strikes."""

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.berth import Berth, fresh
from tests.chaos.faults import Fault

CLICK_S = 4.0  # how long a person waits for an answer before they try again
PATIENCE_S = 90.0  # how long one run waits for the others of its group
AGAIN_S = 60.0  # how long they go on trying
VERBS = {"stop": "deployment.stopped", "start": "deployment.started", "restart": "deployment.restarted",
         "edit": "deployment.edited", "delete": "deployment.deleted"}  # fmt: skip
# What the engine writes when it enters a phase; "" is before its first line.
MARKS = {
    "ordered": "",
    "args": "non-default args",
    "config": "Resolved architecture",
    "dist": "is assigned as DP rank",
    "load": "Starting to load model",
    "compile": "Warming up model",
    "kvcache": "KV cache size",
    "http": "Starting vLLM server",
    "listening": "Application startup complete",
    "asked": "POST /v1/",
}


class Unanswered(Exception):
    """The person got no answer, or one that says to try again: what they wanted may have happened or not."""


@dataclass
class Goal:
    """What must become true. `runs` is how many starts there may have been without a fault that ends engines."""

    want: str  # running, stopped, deleted, or "" for whatever the last act that was taken wanted
    runs: tuple[int, int] = (1, 1)


@dataclass
class Scene:
    """See the module. `rng` decides everything that is left to chance."""

    berth: Berth
    rng: random.Random
    name: str
    fault: Fault
    pk: int = 0
    policy: str = "on_failure"
    model: str = "steady"
    device: str = "cpu"
    point: str = ""
    hit: bool = False
    group: "Group | None" = None
    owners: dict[str, int] = field(default_factory=dict)  # run → deployment
    _known: Any = None
    presses: dict[str, int] = field(default_factory=dict)  # how often each verb was sent
    given_up: set[str] = field(default_factory=set)  # verbs that were not answered and not sent again
    pending: list[Callable[[], None]] = field(default_factory=list)  # acts without an answer, in their order

    # --- the person ---

    def call(
        self, method: str, path: str, body: Any = None, *, browser: int | None = None, person: int = 0, **headers: str
    ) -> Any:
        """One request to one of the two web processes, by one of two people. Raises Unanswered."""
        url = self.berth.urls[self.rng.choice([0, 1]) if browser is None else browser]
        auth = {"Authorization": f"Bearer {self.berth.tokens[person]}", **headers}
        try:
            answer = self.berth.http.request(method, f"{url}/api/v1{path}", json=body, headers=auth, timeout=CLICK_S)
        except httpx.HTTPError as exc:
            raise Unanswered(str(exc)) from exc
        if answer.status_code >= 500:
            raise Unanswered(answer.text[:200])
        assert answer.status_code < 400 or answer.status_code in (404, 409), answer.text
        return answer.json() if answer.content and answer.status_code < 300 else {}

    def create(self) -> None:
        key = str(uuid.UUID(int=self.rng.getrandbits(128)))
        spec = {
            "artifact_id": self.berth.ids[self.model], "device": self.device, "grace_s": 0.8,
            "restart": {"policy": self.policy},
        }  # fmt: skip
        spec |= {"kv_cache_gib": 1} if self.device == "cpu" else self.berth.cards.wish(self.rng)

        def send() -> None:
            made = self.call("POST", "/deployments", {"name": self.name, "spec": spec}, **{"Idempotency-Key": key})
            self.pk = made["id"]

        self.send(send)

    def press(self, verb: str, *, browser: int | None = None) -> None:
        """As a person does: when nothing comes back they wait until the panel is there again and press once more."""
        said = self._said()
        self.send(lambda: self._send(verb, browser, said))

    def _said(self) -> dict[str, Any]:
        """What an edit says: chosen once, so that pressing Save again changes nothing that was saved."""
        return {"spec": {"options": {"max_model_len": 256 + 16 * self.rng.randrange(40)}}}

    def send(self, act: Callable[[], None]) -> None:
        if self.pending:  # a person does not press the next thing before the first was taken
            self.pending.append(act)
            return
        try:
            act()
        except Unanswered:
            self.pending.append(act)
        if self.group is not None and not self.group.begun:  # nothing is broken yet, it was only slow
            self.finish()

    def _send(self, verb: str, browser: int | None, said: dict[str, Any], person: int = 0) -> None:
        self.presses[verb] = self.presses.get(verb, 0) + 1
        path = f"/deployments/{self.pk}"
        if verb == "delete":
            self.call("DELETE", path, browser=browser, person=person)
        elif verb == "edit":
            self.call("PATCH", path, said, browser=browser, person=person)
        else:
            self.call("POST", f"{path}/{verb}", browser=browser, person=person)

    def at_once(self, *verbs: str, people: int = 1) -> None:
        """Several people, or fingers of one, at the same moment; who is not answered does not try again."""
        if self.pending:
            for verb in verbs:
                self.press(verb)
            return
        taken: list[str] = []

        def one(verb: str, number: int, said: dict[str, Any]) -> None:
            try:
                self._send(verb, number % 2, said, number % people)
                taken.append(verb)
            except Unanswered:
                self.given_up.add(verb)

        threads = [threading.Thread(target=one, args=(verb, n, self._said())) for n, verb in enumerate(verbs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not taken:
            self.press(verbs[0])

    def finish(self) -> None:
        """Press again what was not answered, now that Berth is whole."""
        end = time.monotonic() + AGAIN_S
        while self.pending:
            try:
                self.pending[0]()
                self.pending.pop(0)
            except Unanswered as exc:
                assert time.monotonic() < end, f"an act is not taken: {exc}"
                time.sleep(0.1)

    # --- moments ---

    def row(self) -> Any:
        from deployments.models import Deployment

        if self._known is not None:
            return self._known
        rows = Deployment.objects.select_related("run__job", "run__host", "revision")
        return fresh(lambda: rows.get(pk=self.pk))

    @property
    def job_id(self) -> str:
        if not self.pk:
            return ""
        run_id = self.row().run_id
        return str(run_id) if run_id else ""

    def until(self, what: Callable[[], Any], why: str, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while not what():
            assert time.monotonic() < end, f"never came to the moment: {why}; {self.row().state} {self.row().reason}"
            time.sleep(0.1)

    def ready(self) -> None:
        self.until(lambda: self.row().state == "ready", "ready")

    def keep_in(self, phase: str) -> None:
        """The next start waits in this phase until the fault has begun."""
        self.point = phase
        self._hold.write_text(phase, encoding="ascii")

    @property
    def _hold(self) -> Path:
        return self.berth.copies / f"hold-{self.name}"

    def phase(self, not_of: str = "") -> None:
        """Wait until a start (not that of the run `not_of`) is in the phase that it is kept in."""
        mark = MARKS[self.point].encode()

        def there() -> bool:
            run = self.row().run
            if run is None or str(run.pk) == not_of:
                return False
            if self.point == "asked":
                return bool(run.probe.get("asked_at"))
            return not mark or mark in self.berth.written(str(run.pk))

        self.until(there, f"phase {self.point}")
        self.nap(0.1)

    def nap(self, most: float) -> None:
        time.sleep(self.rng.uniform(0.0, most))

    def gather(self) -> None:
        """Wait for the others of the group."""
        if self.group is not None:
            self.group.gather(self)

    def strike(self) -> None:
        """Now: the last one of the group to come here lets the fault begin."""
        if self.group is not None:
            self.group.strike(self)
        self._hold.unlink(missing_ok=True)

    def mine(self, job_id: str) -> bool:
        """Whether this scene answers for a job: its own, and the first of a group for those that nobody knows."""
        scenes = self.group.scenes if self.group is not None else [self]
        owner = self.owners.get(job_id)
        return owner == self.pk or (self is scenes[0] and owner not in [scene.pk for scene in scenes])

    def refresh(self) -> None:
        """Read once what many judges ask for; until `release` they are told of this moment."""
        from deployments.models import Run

        self._known = None
        self._known = self.row()
        pks = [scene.pk for scene in self.group.scenes] if self.group is not None else [self.pk]
        rows = Run.objects.filter(deployment__in=pks).values_list("pk", "deployment_id")
        self.owners = {str(pk): deployment for pk, deployment in rows}

    def release(self) -> None:
        self._known = None


class Group:
    """Runs that share one fault: they wait for each other, and the last one lets it begin.

    Each of them comes by `gather` at most once and by `strike` once; who has come to `strike` is waited for no more.
    """

    def __init__(self) -> None:
        self.scenes: list[Scene] = []
        self.changed = threading.Condition()
        self.gathered: set[int] = set()
        self.arrived: set[int] = set()
        self.begun = False

    def _wait(self, what: Callable[[], bool]) -> None:
        assert self.changed.wait_for(what, timeout=PATIENCE_S), "the others of the group did not come"

    def gather(self, scene: Scene) -> None:
        with self.changed:
            self.gathered.add(id(scene))
            self.changed.notify_all()
            self._wait(lambda: len(self.gathered | self.arrived) >= len(self.scenes))

    def strike(self, scene: Scene) -> None:
        with self.changed:
            self.arrived.add(id(scene))
            self.changed.notify_all()
            if len(self.arrived) >= len(self.scenes):
                self._begin()
            self._wait(lambda: self.begun)

    def gone(self, scene: Scene) -> None:
        """One broke off: the others go on without it."""
        with self.changed:
            if id(scene) in self.arrived:
                return
            self.arrived.add(id(scene))
            if len(self.arrived) >= len(self.scenes) and not self.begun:
                self._begin()
            self.changed.notify_all()

    def _begin(self) -> None:
        shared = not self.scenes[0].fault.per_run
        for scene in self.scenes if not shared else self.scenes[:1]:
            scene.hit = scene.fault.begin(scene.job_id)
        for scene in self.scenes:
            scene.hit = self.scenes[0].hit if shared else scene.hit
        self.begun = True
        self.changed.notify_all()
