"""One id from a click to the shim, in plain lines and as JSON; and what may be an id."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from panel.core import loglines, trace
from panel.fleet.agent import loglines as agent_lines
from panel.fleet.agent import orders


def record(message: str, *args: Any, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("berth.test", logging.INFO, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


def plain() -> logging.Formatter:
    return loglines.Line(fmt="%(levelname)s %(trace)s%(message)s")


def test_a_line_says_the_id_of_what_goes_on() -> None:
    assert plain().format(record("quiet")) == "INFO quiet"
    with trace.bound("click-1"):
        assert plain().format(record("said")) == "INFO [click-1] said"
        assert plain().format(record("said", trace="other-2")) == "INFO [other-2] said"
        with trace.bound(""):
            assert trace.current() == "click-1", "nothing new leaves what was there"
    assert trace.current() == ""


def test_json_is_one_object_a_line_without_secrets() -> None:
    with trace.bound("click-1"):
        line = loglines.JsonLine().format(record("token %s\nsecond", "hf_abcdefghijklmnopqrstuvwxyz012345"))
    found = json.loads(line)
    assert "\n" not in line and "hf_abc" not in line
    assert (found["id"], found["level"], found["logger"]) == ("click-1", "INFO", "berth.test")
    assert found["message"].endswith("\nsecond") and found["time"].endswith("+00:00") and found["process"]
    assert "id" not in json.loads(loglines.JsonLine().format(record("quiet")))
    try:
        raise ValueError("why")
    except ValueError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    for form in (loglines.JsonLine(), agent_lines.JsonLine()):
        assert "ValueError: why" in json.loads(form.format(failed))["error"]


def test_the_agent_writes_the_same_two_forms() -> None:
    assert agent_lines.Plain().format(record("job x started", trace="click-1")).endswith("[click-1] job x started")
    assert json.loads(agent_lines.JsonLine().format(record("x", trace="click-1")))["id"] == "click-1"
    assert "id" not in json.loads(agent_lines.JsonLine().format(record("x")))


@pytest.mark.parametrize("wish", ["", "abc", "a b c d", "x" * 65, "evil\n2026 INFO", 'a"b{}:', "<b>bold</b>"])
def test_an_id_that_no_line_may_hold_is_replaced(wish: str) -> None:
    assert trace.accepted(wish) != wish and len(trace.accepted(wish)) == 16
    order = {"id": "0" * 8 + "-0000-4000-8000-" + "0" * 12, "trace": f"{wish} ", "task": {"kind": "scan"}}
    _rev, (found,) = orders.parse(json.dumps({"rev": 1, "jobs": [order]}).encode())
    assert found.trace == "" and found.refusal is None, "a strange id is no reason to do nothing"


def test_a_callers_own_id_is_kept() -> None:
    assert trace.accepted("4bf92f3577b34da6a3ce929d0e0e4736") == "4bf92f3577b34da6a3ce929d0e0e4736"


async def asked(path: str = "/", method: str = "POST", **headers: str) -> tuple[dict[bytes, bytes], str]:
    """The headers of the answer, and the id that the app saw."""
    seen: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(trace.current())
        await send({"type": "http.response.start", "status": 204, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    await trace.Traced(app)(scope, None, send)
    return dict(sent[0]["headers"]), seen[0]


async def test_the_answer_names_the_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    headers, seen = await asked("/deployments/new", x_request_id="click-from-outside")
    assert headers[b"x-request-id"] == b"click-from-outside" == seen.encode() and headers[b"a"] == b"b"
    assert "POST /deployments/new: 204" in caplog.text
    first, second = await asked(method="GET"), await asked(method="GET")
    assert first[1] and first[1] != second[1] and first[0][b"x-request-id"] == first[1].encode()
    assert trace.current() == ""


async def test_one_time_links_do_not_stand_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = "Zk3" * 14
    await asked(f"/invite/{secret}")
    run = "8d0c6d8e-6f0f-4b7e-9b8f-0c2f0b1c9a11"
    await asked(f"/runs/{run}/stop")
    assert secret not in caplog.text and "/invite/…" in caplog.text and run in caplog.text


def test_pages_and_notes_of_refusals_name_it(db: None, client: Client) -> None:
    with trace.bound("click-from-outside"):
        page = client.get("/no-such-page", headers={"Sec-Fetch-Mode": "navigate"})
        note = client.get("/no-such-page", headers={"HX-Request": "true"})
    assert page.status_code == note.status_code == 404
    assert "click-from-outside" in page.text and "click-from-outside" in note.text


def test_a_failed_start_names_it(db: None, client: Client) -> None:
    from panel.accounts.models import User
    from panel.fleet.models import Job
    from tests.deployments import builders

    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="failed", reason={"code": "exit.code", "params": {"code": 1}})
    run = builders.make_run(row, copy, job_state="ended")
    Job.objects.filter(pk=run.job_id).update(trace="click-from-outside")
    client.force_login(User.objects.create_user("ada", password="correct horse battery", role="admin"))
    for path in (f"/deployments/{row.pk}/", f"/runs/{run.pk}/"):
        page = client.get(path, headers={"Sec-Fetch-Mode": "navigate"})
        assert page.status_code == 200 and "click-from-outside" in page.text, path


# --- a whole Berth ----------------------------------------------------------------------------------------------------
@pytest.fixture
def stack(servers: Any, django_test_environment: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[Any]:
    from tests.e2e.stack import running
    from tests.fakes.make_engine import make_fake_engine, make_fake_model

    env = {"BERTH_LOG_FORMAT": "json", "BERTH_LOG_LEVEL": "INFO"}
    with django_db_blocker.unblock(), running(servers, tmp_path, env=env) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.05)
        berth.start_all()
        berth.scan()
        yield berth


def lines(stack: Any, name: str) -> list[dict[str, Any]]:
    """The lines of one process; all of them must be JSON."""
    found = []
    for line in (stack.folder / f"{name}.log").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise AssertionError(f"{name}: no JSON: {line!r}") from None
    return found


@pytest.mark.slow
@pytest.mark.integration
def test_one_click_is_found_in_every_log_and_in_the_shims_record(stack: Any) -> None:
    import httpx

    from deployments.models import Deployment
    from panel.accounts.models import Scope, User
    from panel.accounts.services import create_token

    maria = User.objects.create_user("maria", password="correct horse battery", role="operator")
    _row, token = create_token(maria, "scripts", actor=maria, scope=Scope.API_WRITE)
    spec = {"artifact_id": stack.artifact("good").pk, "device": "cpu", "kv_cache_gib": 1, "grace_s": 1.0}
    body = {"name": "traced", "spec": spec}
    call = {"Authorization": f"Bearer {token}", "X-Request-ID": "click-to-start"}
    answer = httpx.post(f"{stack.url}/api/v1/deployments", json=body, headers=call, timeout=20)
    assert answer.status_code == 201, answer.text
    assert answer.headers["X-Request-ID"] == "click-to-start"
    row = stack.wait_for(Deployment.objects.get(name="traced"), "ready")
    job = row.run.job_id

    def with_id(name: str, identity: str) -> str:
        return "\n".join(str(line["message"]) for line in lines(stack, name) if line.get("id") == identity)

    assert "POST /api/v1/deployments: 201" in with_id("web", "click-to-start")
    assert "deployment.created traced by maria" in with_id("web", "click-to-start")
    assert "deployment traced: starting → ready" in with_id("worker", "click-to-start")
    assert f"job {job} started" in with_id("agent", "click-to-start")
    record = json.loads((stack.data / "agent" / "jobs" / str(job) / "run.json").read_text())
    assert record["trace"] == "click-to-start"

    # the stop is another click; the task of the first one is long gone
    call["X-Request-ID"] = "click-to-stop"
    path = f"/api/v1/deployments/{row.pk}/stop"
    assert httpx.post(stack.url + path, headers=call, timeout=20).status_code in (200, 202)
    stack.wait_for(row, "stopped")
    assert f"job {job} is being stopped" in with_id("agent", "click-to-stop")
    assert "stopping → stopped" in with_id("worker", "click-to-stop")
