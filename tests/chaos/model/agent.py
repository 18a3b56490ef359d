"""A host's agent as a stand-in at the wire: it obeys the work list, and everything on it is plain data.

It keeps what the real one keeps (docs/agent.md): the newest revision, tombstones on disk before the first signal, a
status for every id that it was ever asked about until the panel says "forget". Its processes move when `live()` says
so. What it sent is kept, so that a test can deliver it again, late, or in another order.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from django.test import Client

from panel.fleet import wire
from tests.deployments.builders import FACTS

OVER = ("ended", "refused")
CARD_MIB, IDLE_MIB = 46_068, 600


# What engines say when they are asked before a start; none of it ends one.
ANSWERS: tuple[dict[str, Any], ...] = (
    {"verdict": "passed", "output": "", "seconds": 7.0, "host": {}},
    {"verdict": "unknown", "output": "", "seconds": 0.1, "host": {}},
    {"verdict": "refused", "output": "", "signal": 9, "seconds": 1.0, "host": {}},
)


@dataclass
class Process:
    """One job on the host. `deaf` rounds pass after a stop before it goes."""

    id: str
    kind: str
    gpus: tuple[str, ...] = ()
    state: str = "starting"
    pid: int = 0
    port: int | None = None
    listening: bool = False
    stop_asked: bool = False
    deaf: int = 0
    exit_code: int | None = None
    signal: int | None = None
    refusal: dict[str, Any] | None = None
    log: bytes = b""
    result: dict[str, Any] | None = None

    @property
    def alive(self) -> bool:
        return self.state not in OVER

    def end(self, *, exit_code: int | None = None, signal: int | None = None, refusal: str = "") -> None:
        self.state, self.listening = "ended", False
        self.exit_code, self.signal = exit_code, signal
        self.refusal = {"code": refusal} if refusal else None

    def status(self) -> dict[str, Any]:
        return {
            "id": self.id, "kind": self.kind, "state": self.state, "pid": self.pid if self.alive else None,
            "port": self.port, "listening": self.listening, "stop_asked": self.stop_asked, "exit_code": self.exit_code,
            "signal": self.signal, "refusal": self.refusal, "processes": int(self.alive), "log_size": len(self.log),
        }  # fmt: skip


@dataclass
class Sent:
    """A call as it went over the line, for delivering it again."""

    path: str
    body: bytes
    instance: str


@dataclass
class Agent:
    """`down`: the agent's process is away, or its cable is; what runs on the host runs on."""

    token: str
    gpus: list[str]
    seat: str = f"{1:032x}"
    start: int = 1
    down: bool = False
    boot: int = 1
    seen_rev: int = 0
    polled_rev: int = 0
    deafness: int = 0
    jobs: dict[str, Process] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # how often each id was started, ever
    told: set[str] = field(default_factory=set)  # ids whose process the panel was told of
    pids: int = 1000
    reports: int = 0

    def __post_init__(self) -> None:
        self.client = Client(headers={"Authorization": f"Bearer {self.token}", "User-Agent": "berth-agent/0.1.0"})

    @property
    def instance(self) -> str:
        return f"{self.seat}.{self.start}"

    def living(self) -> list[Process]:
        return [process for process in self.jobs.values() if process.alive]

    # --- the line ---------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: bytes = b"", instance: str = "") -> Any:
        headers = {wire.INSTANCE_HEADER: instance or self.instance, wire.WIRE_HEADER: str(wire.WIRE_VERSION)}
        call = self.client.get if method == "GET" else self.client.post
        more = {} if method == "GET" else {"data": body, "content_type": "application/json"}
        return call(f"/agent/v1/{path}", headers=headers, **more)

    def poll(self, *, reply_lost: bool = False) -> int:
        """Fetch the work and make it true; the status of the answer."""
        answer = self.call("GET", f"work?rev={self.polled_rev}&wait=0")
        if answer.status_code == 200 and not reply_lost:
            self.take(json.loads(answer.content))
        return int(answer.status_code)

    def take(self, work: dict[str, Any]) -> bool:
        """False for an older revision than was seen, which changes nothing."""
        if work["rev"] < self.seen_rev:
            return False
        self.seen_rev = self.polled_rev = work["rev"]
        wanted = {order["id"]: order for order in work["jobs"]}
        for order in wanted.values():
            if order["desired"] == "run" and order["id"] not in self.jobs:
                self._run(order)
        stops = {job_id for job_id, order in wanted.items() if order["desired"] == "stop"}
        gone = {process.id for process in self.living()} - wanted.keys()
        self.tombstones |= stops | gone
        for job_id in stops | gone:
            process = self.jobs.get(job_id)
            if process is None:
                process = self.jobs[job_id] = Process(job_id, wanted[job_id]["task"]["kind"], state="ended")
            if process.alive and not process.stop_asked:
                process.state, process.deaf = "stopping", self.deafness
            process.stop_asked = process.stop_asked or process.alive or not process.pid
        return True

    def _run(self, order: dict[str, Any]) -> None:
        job_id, task = order["id"], order["task"]
        if job_id in self.tombstones:
            self.jobs[job_id] = Process(job_id, task["kind"], state="refused", refusal={"code": "tombstone"})
            return
        if order.get("begun"):  # it ran once and this host knows nothing of it: a disk of an earlier day
            self.jobs[job_id] = Process(job_id, task["kind"], state="ended", refusal={"code": "host_restarted"})
            return
        self.pids += 1
        self.ran[job_id] = self.ran.get(job_id, 0) + 1
        self.jobs[job_id] = Process(
            job_id, task["kind"], tuple(task.get("gpu_uuids", ())), pid=self.pids, port=20_000 + self.pids % 9000
        )

    def report(self, *, reply_lost: bool = False, forgets: bool = True) -> Any:
        body = json.dumps(self._report()).encode()
        self.sent.append(Sent("report", body, self.instance))
        answer = self.call("POST", "report", body)
        self.told |= {process.id for process in self.jobs.values() if process.pid}
        if answer.status_code == 200 and not reply_lost and forgets:
            for job_id in json.loads(answer.content)["forget"]:
                process = self.jobs.get(job_id)
                if process is not None and not process.alive:
                    self.tombstones.add(job_id)
                    del self.jobs[job_id]
        return answer

    def _report(self) -> dict[str, Any]:
        from django.utils import timezone

        self.reports += 1
        return {
            "agent_version": "0.1.0", "instance": self.instance, "sent_at": timezone.now().timestamp(),
            "seq": 1000 * self.boot + self.reports, "rev": self.seen_rev, "facts": self.facts(),
            "jobs": [process.status() for process in self.jobs.values()],
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        cards = []
        for index, uuid in enumerate(self.gpus):
            users = [process for process in self.living() if uuid in process.gpus]
            cards.append({
                "index": index, "uuid": uuid, "name": "NVIDIA L40S", "total_mib": CARD_MIB,
                "used_mib": IDLE_MIB + 20_000 * len(users),
                "processes": [{"pid": p.pid, "used_mib": 20_000, "job_id": p.id} for p in users],
            })  # fmt: skip
        return {**FACTS, "boot_id": f"boot-{self.boot}", "gpus": cards}

    def ship(self) -> None:
        """The logs, from where the panel has them."""
        for process in list(self.jobs.values()):
            if process.result is not None:
                self.call("POST", f"jobs/{process.id}/result", json.dumps(process.result).encode())
            if not process.log:
                continue
            answer = self.call("POST", f"jobs/{process.id}/log?offset=0", process.log)
            assert answer.status_code in (200, 404, 409), answer.content
            self.told.add(process.id)

    def deliver(self, old: Sent) -> int:
        """Something that was sent before, once more."""
        return int(self.call("POST", old.path, old.body, old.instance).status_code)

    def round(self) -> None:
        """What a living agent does all the time."""
        if self.down:
            return
        self.live()
        self.poll()
        self.live()
        self.ship()
        self.report()

    # --- what happens on the host ------------------------------------------------------------------------------------

    def live(self) -> None:
        """Time passes: everything goes one step of its way."""
        for process in self.living():
            if process.kind == "check":
                process.end(exit_code=0)
                process.result = {"items": [ANSWERS[process.pid % len(ANSWERS)]], "refusal": None}
            elif process.kind != "engine":
                process.end(exit_code=0)
            elif process.state == "stopping":
                process.deaf -= 1
                if process.deaf < 0:
                    process.log += b"bye\n"
                    process.end(signal=15)
            elif process.state == "starting":
                process.state = "running"
                process.log += b"INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0\n"
            elif not process.listening:
                process.listening = True

    def restart(self) -> None:
        """The agent's process dies and another one takes its folder."""
        self.start += 1
        self.polled_rev = 0
        self.down = False

    def power_cut(self, draw: random.Random) -> None:
        """The machine goes down with all that runs and comes up again, perhaps with a disk of an earlier day.

        Then the journal may lack jobs, their ends, tombstones and the newest revision.
        """
        for process in list(self.jobs.values()):
            if draw.random() < 0.5:
                if process.id not in self.told:  # nobody ever saw it: it may be started as if it had not been
                    self.ran.pop(process.id, None)
                del self.jobs[process.id]
                self.tombstones.discard(process.id)
            elif process.alive:
                process.end(refusal="host_restarted")
        self.seen_rev -= draw.randrange(0, 4) if self.seen_rev > 4 else 0
        self.boot += 1
        self.seat, self.reports = f"{self.boot:032x}", 0
        self.restart()
