"""What docker/compose.yml runs, run as processes: the same commands, settings, names, ports and signals.

test_compose.py starts this file in a network and mount namespace of its own, where `database`, `broker`, `web` and the
panel's public name are addresses, the checkout is read-only, and 443 is free. PostgreSQL and Valkey are the wheels' ones.
"""

import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.compose import ROOT
from tests.panel.compose_setup import ADDRESSES, NAME, PASSWORD, WORK, Setup
from tests.waiting import until


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> None:
    """This namespace has no way out; names are those of the set-up and may be looked up."""


@pytest.fixture(scope="module")
def berth() -> Iterator[Setup]:
    setup = Setup()
    setup.network()
    setup.certificate()
    try:
        yield setup
    finally:
        setup.stop()


@pytest.fixture(scope="module")
def person(berth: Setup) -> Iterator[httpx.Client]:
    with berth.client() as client:
        yield client


LINK = f"https://{NAME}/first-admin/"
ACT = "from panel.accounts.models import User; from panel.accounts.actor import Actor; u = User.objects.get()"


def form(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """GET a page, fill in its form, send it, as a browser does."""
    page = client.get(path)
    assert page.status_code == 200, page.text
    word = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert word
    sent = {"csrfmiddlewaretoken": word[1], **fields}
    return client.post(path, data=sent, headers={"referer": f"https://{NAME}{path}", "origin": f"https://{NAME}"})


def test_services_start_in_their_order_and_are_healthy(berth: Setup) -> None:
    berth.database()
    berth.broker()
    said = berth.once("prepare", berth.compose.service("prepare").command)
    assert LINK in said, said
    (WORK / "link").write_text(re.search(rf"https://{NAME}(\S+)", said)[1])  # type: ignore[index]  # it stands there
    for name in ("web", "worker", "probe"):
        assert not berth.healthy(name), f"the health check of {name} passes without it"
        berth.spawn(name, berth.compose.service(name).command)
    for name in ("web", "worker", "probe"):
        until(lambda name=name: berth.healthy(name), timeout=60, why=f"{name} is healthy\n{berth.logs()}")
    berth.proxy()
    until(lambda: berth.healthy("proxy"), timeout=20, why=f"the proxy is healthy\n{berth.logs()}")
    # a second time nothing is left to do
    assert "Preparing" not in berth.once("prepare", berth.compose.service("prepare").command)


def test_check_deploy_has_nothing_to_say(berth: Setup) -> None:
    said = berth.once("web", [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"])
    assert "no issues" in said


def test_the_first_admin_comes_in_by_the_link_with_secure_cookies(berth: Setup, person: httpx.Client) -> None:
    again = berth.once("prepare", berth.compose.service("prepare").command)  # a new link; the older one has ended
    assert person.get((WORK / "link").read_text()).status_code == 404
    link = re.search(rf"https://{NAME}(\S+)", again)
    assert link
    answer = form(person, link[1], name="ada", password=PASSWORD, again=PASSWORD)
    assert answer.status_code == 302, answer.text
    cookies = {one.split("=")[0]: one.lower() for one in answer.headers.get_list("set-cookie")}
    assert "; secure" in cookies["berth_session"] and "httponly" in cookies["berth_session"]
    assert person.get("/").status_code == 200
    assert "max-age" in person.get("/").headers["strict-transport-security"]
    assert person.get(link[1]).status_code == 409  # there is an admin
    assert "Create the first admin" not in berth.once("prepare", berth.compose.service("prepare").command)


def test_sign_in_works_and_names_the_callers_own_address(berth: Setup) -> None:
    with berth.client() as other:
        assert other.get("/").status_code == 401
        answer = form(other, "/login", name="ada", username="ada", password=PASSWORD)
        assert answer.status_code == 302, answer.text
        assert other.get("/").status_code == 200
    addresses = berth.shell(
        "from panel.audit.models import Event; print(*Event.objects.values_list('address', flat=True))"
    )
    assert ADDRESSES["web"] not in addresses.split(), "the record names the proxy instead of the person"


def test_plain_http_is_sent_to_tls_and_strangers_headers_are_not_believed(berth: Setup) -> None:
    plain = http.client.HTTPConnection(NAME, 80, timeout=10)
    plain.request("GET", "/login")
    answer = plain.getresponse()
    assert answer.status in (301, 308) and answer.headers["location"].startswith(f"https://{NAME}/")
    past = http.client.HTTPConnection("127.0.0.1", 8080, timeout=10)  # not an address of the proxy's network
    past.request("GET", "/login", headers={"Host": NAME, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"})
    assert past.getresponse().status == 301
    plain.close()
    past.close()


def test_live_pages_come_through_the_proxy_at_once(berth: Setup, person: httpx.Client) -> None:
    with person.stream("GET", "/deployments/live", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(line for line in lines if line) == "event: hello"
        berth.shell("from panel.core import sse", "assert sse.publish('deployments')")
        began = time.monotonic()
        assert next(line for line in lines if line.startswith("event: changed"))
        assert time.monotonic() - began < 10, "the proxy collects events instead of passing them on"


# --- a host from outside --------------------------------------------------------------------------------------------
def agent(berth: Setup, *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "panel.fleet.agent", "--dir", str(WORK / "agent"), *args]
    return subprocess.run(argv, cwd=ROOT, env=agent_environment(berth), capture_output=True, text=True, timeout=60)


def agent_environment(berth: Setup) -> dict[str, str]:
    plain = {key: value for key, value in berth.environment("proxy").items() if not key.startswith("BERTH_")}
    return {**plain, "PATH": f"{WORK / 'engines'}:{plain['PATH']}"}


def code(berth: Setup) -> str:
    return berth.shell(
        ACT, "from panel.fleet.joining.services import make_code", "print(make_code(Actor.from_user(u), 'gpu-1')[1])"
    ).split()[-1]


def test_an_agent_refuses_to_join_by_plain_http(berth: Setup) -> None:
    done = agent(berth, "--join", f"http://{NAME}", "--code", "AAAA-BBBB-CCCC")
    assert done.returncode == 2 and "https" in done.stderr, done.stderr
    assert not (WORK / "agent" / "token").exists()


def test_an_agent_refuses_a_certificate_that_nobody_vouches_for(berth: Setup) -> None:
    done = agent(berth, "--join", f"https://{NAME}", "--code", "AAAA-BBBB-CCCC")
    assert done.returncode == 2 and "certificate" in done.stderr.lower(), done.stderr


def test_an_agent_joins_by_the_outside_address(berth: Setup) -> None:
    pin = berth.shell("from panel.fleet.joining.panel_tls import trust", "t = trust()", "print(t.kind, t.pin)").split()
    assert pin[0] == "pinned", (
        "the panel sees its own certificate through the proxy, and that no authority stands behind"
    )
    done = agent(berth, "--join", f"https://{NAME}", "--pin", pin[1], "--code", code(berth))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "gpu-1"
    assert agent(berth, "--check").returncode == 0


def test_an_engine_there_answers_here_piece_by_piece(berth: Setup) -> None:
    make_fake_engine(WORK / "engines")
    make_fake_model(
        WORK / "models" / "talks", answer_after_s=8.0, token_s=1.0, text="one two three four five six seven eight"
    )
    config = WORK / "agent" / "agent.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_roots": [str(WORK / "models")]}))
    argv = [sys.executable, "-m", "panel.fleet.agent", "--dir", str(WORK / "agent")]
    berth.spawn("agent", argv, agent_environment(berth))
    token = berth.shell(*DEPLOY).split()[-1]
    until(lambda: state(berth) == "ready", timeout=90, why=f"the deployment is ready\n{berth.logs()}")
    (WORK / "token").write_text(token)
    body = {"model": "talks", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with berth.client() as client:
        times = []
        with client.stream("POST", "/v1/chat/completions", json=body, headers=bearer()) as answer:
            assert answer.status_code == 200, answer.read()
            times = [time.monotonic() for line in answer.iter_lines() if line.startswith("data: {")]
        assert len(times) >= 8
        assert times[-1] - times[0] > 4, "the proxy collected the answer and gave it at the end"


DEPLOY = (
    ACT,
    "import time",
    "from deployments import services; from deployments.spec import DeploymentSpec",
    "from models_catalog.models import Copy; from panel.accounts.services import create_token",
    "from panel.fleet.models import Runtime",
    "end = time.monotonic() + 90",
    "while not (Copy.objects.filter(present=True, path__contains='talks').exists() and Runtime.objects.exists()):",
    "    assert time.monotonic() < end; time.sleep(0.2)",
    "copy = Copy.objects.select_related('artifact').get(path__contains='talks')",
    "spec = DeploymentSpec(artifact_id=copy.artifact_id, device='cpu', kv_cache_gib=1, grace_s=1.0)",
    "services.create(name='talks', spec=spec, actor=Actor.from_user(u))",
    "print(create_token(u, 'tests', actor=u)[1])",
)


def state(berth: Setup) -> str:
    said = berth.shell(
        "from deployments.models import Deployment", "d = Deployment.objects.get()", "print(d.state, d.reason)"
    )
    assert not said.startswith("failed"), said
    return said.split()[0]


def bearer() -> dict[str, str]:
    return {"authorization": f"Bearer {(WORK / 'token').read_text()}"}


def asked(engine: psutil.Process, port: int) -> set[Any]:
    """The other ends of the connections that this engine answers on; the panel's own questions are among them."""
    found: list[Any] = engine.net_connections("tcp")
    return {one.raddr for one in found if one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port}


def test_who_leaves_is_not_answered_any_longer(berth: Setup) -> None:
    """An engine must not go on generating for someone who has left; a proxy can hide that they did."""
    model = str(WORK / "models" / "talks")
    engines = [
        proc
        for proc in psutil.process_iter(["name", "cmdline"])
        if model in (proc.info["cmdline"] or ()) and proc.info["name"] != "sh"
    ]
    ports = {one.laddr.port: proc for proc in engines for one in proc.net_connections("tcp") if one.status == "LISTEN"}
    assert len(ports) == 1, engines
    ((port, engine),) = ports.items()
    until(lambda: not asked(engine, port), timeout=90, why="earlier connections end")
    body = {"model": "talks", "messages": [{"role": "user", "content": "Hello"}]}
    with berth.client() as client:
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=bearer()) as answer:
            assert answer.status_code == 200, answer.read()
            lines = answer.iter_lines()  # kept: without it the stream would be closed after the first line
            next(filter(None, lines))
            mine = until(lambda: asked(engine, port), timeout=2, why="the engine is answering")
            left = time.monotonic()
        until(lambda: not mine & asked(engine, port), timeout=10, why="the engine is left alone")
        assert time.monotonic() - left < 4, "the answer went on to its end"
    # the same before the first byte of an answer, where a proxy has nothing to write that would fail
    trusted = ssl.create_default_context(cafile=str(berth.pem))
    call = http.client.HTTPSConnection(NAME, 443, context=trusted, timeout=10)
    before = asked(engine, port)
    call.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **bearer()})
    mine = until(lambda: asked(engine, port) - before, timeout=5, why="the engine is asked")
    call.close()
    left = time.monotonic()
    until(lambda: not mine & asked(engine, port), timeout=10, why="the engine is left alone")
    assert time.monotonic() - left < 4, "the engine was made to answer someone who had left"


# --- the end --------------------------------------------------------------------------------------------------------
def test_all_end_within_their_grace_while_people_are_there(berth: Setup, person: httpx.Client) -> None:
    assert berth.procs["agent"].poll() is None
    with person.stream("GET", "/deployments/live", timeout=30) as stream:
        lines = stream.iter_lines()  # kept open until the end
        next(filter(None, lines))
        for name in ("worker", "probe", "web", "proxy", "broker", "database"):
            service, proc = berth.compose.service(name), berth.procs[name]
            assert proc.poll() is None, f"{name} had ended before\n{berth.logs()}"
            began = time.monotonic()
            proc.send_signal(getattr(signal, service.signal))
            try:
                proc.wait(service.grace_s)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} did not end within {service.grace_s} s\n{berth.logs()}") from None
            assert time.monotonic() - began < service.grace_s
    said = "\n".join((WORK / f"{name}.log").read_text(errors="replace") for name in ("web", "worker", "probe"))
    assert "Traceback" not in said, said
    assert "Read-only file system" not in said
