"""A second host in a network namespace of its own: joined by a code over TLS, asked through the panel's one address,
with the cable cut, plugged again and slow. Every process is real but the engine.
"""

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from django.test import Client

from deployments import services
from deployments.models import Deployment
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.fleet import logstore, wire
from panel.fleet import services as fleet
from panel.fleet.agent import door_process
from panel.fleet.agent.pins import pin_of
from panel.fleet.door import serve
from panel.fleet.joining import services as joining
from panel.fleet.models import Host, Job
from tests import netns
from tests.e2e.stack import ROOT, Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers
from tests.waiting import free_port, until

WHY_NOT = netns.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@dataclass
class Far:
    """The second host: its network, its agent, and the panel that it belongs to."""

    stack: Stack
    net: netns.SecondHost
    folder: Path
    token: str = ""
    front: subprocess.Popen[bytes] | None = None
    agent: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> Host:
        return Host.objects.get(is_local=False)

    def run(self, *argv: str) -> subprocess.Popen[bytes]:
        """A process of that machine."""
        with (self.stack.folder / "far.log").open("ab") as log:
            return subprocess.Popen(
                self.net.argv(sys.executable, *argv),
                cwd=ROOT, env=self.stack.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def start_agent(self) -> None:
        self.agent = self.run("-m", "panel.fleet.agent", "--dir", str(self.folder))

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(10)

    def ask(self, name: str, **body: object) -> httpx.Response:
        return httpx.post(
            f"{self.stack.url}/v1/chat/completions",
            json={"model": name, "messages": [{"role": "user", "content": "Hello"}], **body},
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
        )

    def answers(self, name: str) -> httpx.Response:
        return until(lambda: (a := self.ask(name)).status_code == 200 and a, why=f"{name} answers")

    def deploy(self, name: str, model: str = "good") -> Deployment:
        return self.stack.deploy(name, model, host_id=self.host.pk)


def start_front(stack: Stack, net: netns.SecondHost, port: int) -> subprocess.Popen[bytes]:
    certificate, key = serve.make_certificate(stack.folder)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.front", net.near, str(port), str(stack.port), certificate, key],
        cwd=ROOT,
    )


def join(far: Far, url: str) -> None:
    """As a person would: a code from the panel, one command on the machine."""
    pin = pin_of(ssl.PEM_cert_to_DER_cert((far.stack.folder / "door.crt").read_text()))
    _row, code = joining.make_code(Actor.shell(), "atlas")
    args = ["--dir", str(far.folder), "--join", url, "--code", code, "--pin", pin]
    done = far.run("-m", "panel.fleet.agent", *args)
    assert done.wait(60) == 0, far.stack.logs()
    config = far.folder / "agent.json"
    more = {"model_roots": [str(far.stack.models)], "engine_cache": str(far.stack.engines), "report_s": 1}
    config.write_text(json.dumps({**json.loads(config.read_text()), **more}))


def look(far: Far) -> None:
    """The host's engines and models are known."""
    jobs = [
        fleet.order_job(host=far.host, task=wire.RuntimesTask()),
        fleet.order_job(host=far.host, task=wire.ScanTask()),
    ]
    pks = [job.pk for job in jobs]
    until(lambda: Job.objects.filter(pk__in=pks, open=False).count() == 2, timeout=60, why="it was looked at")


@pytest.fixture(scope="module")
def far(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Far]:
    net = netns.SecondHost()
    port = free_port()
    url = f"https://{net.near}:{port}"
    env = {"BERTH_URL": url, "BERTH_ALLOWED_HOSTS": net.near, "BERTH_PRIVATE_RANGES": netns.NETWORK}
    folder = tmp_path_factory.mktemp("second")
    with django_db_blocker.unblock(), running(servers, folder, env=env) as stack:
        there = Far(stack, net, folder / "far")
        try:
            net.start()
            make_fake_engine(stack.engines)
            make_fake_model(stack.models / "good", phase_s=0.05)
            make_fake_model(stack.models / "slow", token_s=0.3, text="one two three four five six seven eight nine")
            there.front = start_front(stack, net, port)
            stack.start_all()
            join(there, url)
            there.start_agent()
            until(lambda: there.host.last_seen_at, timeout=30, why="the agent called")
            until(lambda: there.host.door.get("certificate"), timeout=30, why="its door is open")
            look(there)
            there.token = door_token()
            yield there
        finally:
            net.plug()
            door_process.end(there.folder)
            for process in (there.agent, there.front):
                if process is not None:
                    process.kill()
                    process.wait(10)
            net.stop()


def door_token() -> str:
    from panel.accounts.services import create_token

    user = User.objects.create_user("maria", password="correct horse battery", role="operator")
    return create_token(user, "tests", actor=user)[1]


@pytest.fixture(scope="module")
def row(far: Far) -> Deployment:
    """A deployment that is ready on the second host."""
    made = far.deploy("over-there")
    far.stack.wait_for(made, "ready", timeout=60)
    return made


def engine_of(far: Far, row: Deployment) -> psutil.Process:
    return next(p for p in far.stack.job_processes(row.run_id) if "serve" in p.cmdline())


def test_it_answers_through_the_panels_one_address(far: Far, row: Deployment) -> None:
    row.run.refresh_from_db()
    assert row.run.host == far.host and row.run.answer["answer"] == "The capital of France is Paris."
    answer = far.answers("over-there")
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer.headers["x-berth-said-by"] == "engine"
    models = httpx.get(f"{far.stack.url}/v1/models", headers={"Authorization": f"Bearer {far.token}"}).json()
    assert [model["id"] for model in models["data"]] == ["over-there"]


def test_nothing_but_its_door_is_open_on_that_machine(far: Far, row: Deployment) -> None:
    host = far.host
    assert host.door["address"] == far.net.far
    port = Job.objects.get(pk=row.run_id).status["port"]
    knock = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()"

    def is_open(address: str, number: int, *, there: bool = False) -> bool:
        argv = [sys.executable, "-c", knock, address, str(number)]
        argv = far.net.argv(*argv) if there else argv
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    assert is_open("127.0.0.1", port, there=True), "the engine listens on its own loopback"
    assert not is_open(far.net.far, port), "and nowhere else"
    assert is_open(far.net.far, host.door["port"])
    listening = far.net.argv("ss", "-Hltn")
    shown = subprocess.run(listening, capture_output=True, text=True, check=True).stdout
    outside = [line.split()[3] for line in shown.splitlines() if not line.split()[3].startswith("127.0.0.1:")]
    assert outside == [f"0.0.0.0:{host.door['port']}"]


def test_a_stream_comes_as_it_is_made(far: Far, row: Deployment) -> None:
    talk = far.deploy("slow-talk", "slow")
    far.stack.wait_for(talk, "ready", timeout=60)
    far.answers("slow-talk")
    body = {"model": "slow-talk", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    headers = {"Authorization": f"Bearer {far.token}"}
    times = []
    with httpx.stream("POST", f"{far.stack.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as got:
        for line in got.iter_lines():
            if line.startswith("data: {"):
                times.append(time.monotonic())
    assert len(times) > 5 and times[-1] - times[0] > 1, "piece by piece, not all at the end"
    services.stop(talk, actor=None)
    far.stack.wait_for(talk, "stopped", timeout=60)


def test_its_agent_away_its_engines_and_its_door_go_on(far: Far, row: Deployment) -> None:
    run_id = row.run_id
    far.kill_agent()
    far.stack.wait_for(row, "lost", timeout=40)
    assert far.answers("over-there").status_code == 200, "silent is not dead"
    far.start_agent()
    far.stack.wait_for(row, "ready", timeout=40)
    assert row.run_id == run_id and row.runs.count() == 1


def test_the_cable_is_cut_and_plugged_again(far: Far, row: Deployment) -> None:
    far.answers("over-there")
    run_id, engine = row.run_id, engine_of(far, row)
    far.net.cut()
    begin = time.monotonic()
    said = far.ask("over-there")
    assert (said.status_code, said.json()["error"]["code"]) in ((503, "door.host_away"), (502, "door.broke_off"))
    assert time.monotonic() - begin < 25, "nobody waits for ever"
    far.stack.wait_for(row, "lost", timeout=40)
    assert row.reason["code"] == "lost.no_contact"
    said = until(
        lambda: (a := far.ask("over-there")).json()["berth"].get("last_heard_at") and a, why="it says since when"
    )
    assert (said.status_code, said.json()["error"]["code"]) == (503, "door.host_away")
    assert said.json()["berth"]["host"] == "atlas" and said.headers["retry-after"]
    begin = time.monotonic()
    assert far.ask("over-there").status_code == 503 and time.monotonic() - begin < 6
    page = page_of(far.host)
    assert "No contact" in page and "last heard of" in page and "over-there" in page
    assert engine.is_running(), "the engine is not touched"
    # What it writes meanwhile is not lost.
    log = far.folder / "jobs" / str(run_id) / "log"
    assert log.exists()
    far.net.plug()
    far.stack.wait_for(row, "ready", timeout=60)
    assert row.run_id == run_id and row.runs.count() == 1 and engine.is_running()
    assert far.answers("over-there").status_code == 200
    until(lambda: stored(run_id) == log.read_bytes(), timeout=30, why="the whole log is here")


def test_an_answer_whose_cable_is_cut_ends_and_says_so(far: Far, row: Deployment) -> None:
    talk = far.deploy("cut-off", "slow")
    far.stack.wait_for(talk, "ready", timeout=60)
    far.answers("cut-off")
    body = {"model": "cut-off", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    headers = {"Authorization": f"Bearer {far.token}"}
    said = ""
    try:
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{far.stack.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as got,
        ):
            for line in got.iter_lines():
                said += line
                if said.count("data:") == 2:
                    far.net.cut()
    finally:
        far.net.plug()
    assert '"code": "door.broke_off"' in said and "[DONE]" not in said
    far.stack.wait_for(talk, "ready", timeout=60)
    services.stop(talk, actor=None)
    far.stack.wait_for(talk, "stopped", timeout=60)


def stored(run_id: Any) -> bytes:
    return b"".join(part.data for part in logstore.read_all(run_id))


def page_of(host: Host) -> str:
    """The host's page as the operator sees it."""
    client = Client(headers={"Host": "localhost"})
    client.force_login(User.objects.get(username="maria"))
    return client.get(f"/hosts/{host.pk}/").content.decode()


def test_a_slow_line_is_only_slow(far: Far, row: Deployment) -> None:
    far.net.delay(0.2)
    try:
        assert far.answers("over-there").status_code == 200
        late = far.deploy("far-away")
        far.stack.wait_for(late, "ready", timeout=90)
        assert late.run.answer["latency_ms"] > 400
        services.stop(late, actor=None)
        far.stack.wait_for(late, "stopped", timeout=60)
    finally:
        far.net.delay(0)


def test_a_new_key_for_its_door_costs_no_request(far: Far, row: Deployment) -> None:
    from panel.fleet import doors, hosts

    before = doors.key_for(far.host)
    far.answers("over-there")
    hosts.new_door_key(far.host, actor=Actor.shell())
    said = set()
    end = time.monotonic() + 60
    while doors.key_for(far.host) == before:
        said.add(far.ask("over-there").status_code)
        assert time.monotonic() < end
    said.add(far.ask("over-there").status_code)
    assert said == {200}
    assert len(doors.keys_of(Host.objects.get(is_local=False))) == 1


def test_a_host_that_is_set_aside_gets_nothing_new(far: Far, row: Deployment) -> None:
    from deployments import on_host
    from panel.fleet import hosts

    hosts.drain(far.host, actor=Actor.shell(), note="new cooler")
    waits = far.deploy("not-there")
    far.stack.wait_for(waits, "failed", timeout=30)
    (place,) = waits.reason["params"]["candidates"]
    assert (place["code"], place["params"]["note"]) == ("host.paused_for", "new cooler")
    assert far.answers("over-there").status_code == 200, "what runs goes on"
    assert [one.pk for one in on_host.stop_all(far.host, actor=Actor.shell())] == [row.pk]
    far.stack.wait_for(row, "stopped", timeout=60)
    assert far.stack.job_processes(row.run_id) == []
    hosts.forget(far.host, actor=Actor.shell())
    assert not Host.objects.filter(is_local=False).exists() and Host.everyone.filter(is_local=False).count() == 1
    waits.refresh_from_db()
    assert Deployment.objects.get(pk=row.pk).run.host.name == "atlas", "its history stays"
