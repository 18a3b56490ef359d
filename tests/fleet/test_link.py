"""The agents' line over HTTP with odd bodies: whatever a host says, its next call and its other jobs still work."""

import json
import uuid
from typing import Any

import pytest
from django.test import Client

from panel.fleet import services, wire
from panel.fleet.models import Host, Job, Runtime
from tests.fleet.test_reports import FACTS, engine_task

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("models_catalog.events.send", lambda *args, **kwargs: None, raising=False)


@pytest.fixture
def host() -> Host:
    return Host.objects.create(name="h", token_hash=services.digest("secret"))


@pytest.fixture
def agent(host: Host) -> Client:
    return Client(headers={"Authorization": "Bearer secret"}, raise_request_exception=False)


def post(agent: Client, path: str, body: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return agent.post(f"/agent/v1/{path}", data, content_type="application/json")


def report(**values: Any) -> dict[str, Any]:
    return {"agent_version": "1", "sent_at": 1.0, "rev": 1, **values}


def test_what_the_database_cannot_hold_is_replaced_not_refused(host: Host, agent: Client) -> None:
    """PostgreSQL's JSON has no NUL. A result that is refused for ever would hold up all others of that host."""
    job = services.order_job(host=host, task=wire.RuntimesTask())
    found = {"engine": "vllm", "executable": "/opt/vllm", "version": "0.32", "flags": [{"help": "a\0b \\u0000 c"}]}
    assert post(agent, f"jobs/{job.pk}/result", {"items": [found]}).status_code == 204
    assert Runtime.objects.get().flags == [{"help": "a\ufffdb \\u0000 c"}]
    gpu = {"index": 0, "uuid": "GPU-1", "name": "a\0b", "total_mib": 1, "used_mib": 0}
    assert post(agent, "report", report(facts={**FACTS, "hostname": "h\0", "gpus": [gpu]})).status_code == 200
    host.refresh_from_db()
    assert host.last_seen_at is not None


def test_numbers_that_do_not_fit_are_refused_with_a_word(host: Host, agent: Client) -> None:
    job = services.order_job(host=host, task=engine_task())
    huge = 10**30
    assert post(agent, "report", report(facts={**FACTS, "ram_total_mib": huge})).status_code == 422
    assert post(agent, "report", report(rev=huge)).status_code == 422
    assert agent.get(f"/agent/v1/work?rev={huge}").status_code == 422
    for query in (f"offset={huge}&skipped={huge}", "offset=-1", "offset=x", f"offset={'9' * 5000}"):
        answer = agent.post(f"/agent/v1/jobs/{job.pk}/log?{query}", b"x", content_type="application/octet-stream")
        assert answer.status_code == 422, query
        assert answer.json()["code"].startswith("link.")
    assert agent.get("/agent/v1/work?rev=nan&wait=x").status_code == 422
    assert post(agent, "report", report()).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"rev": "x"}', b"null"])
def test_a_body_that_is_no_message(host: Host, agent: Client, body: bytes) -> None:
    job = services.order_job(host=host, task=wire.ScanTask())
    assert post(agent, "report", body).status_code == 422
    if body != b'{"rev": "x"}':  # unknown fields are ignored: this is an empty result
        assert post(agent, f"jobs/{job.pk}/result", body).status_code == 422


def test_a_long_result_of_a_scan_is_taken(host: Host, agent: Client) -> None:
    """As long as an agent may make it (12 MiB); pages take far less."""
    job = services.order_job(host=host, task=wire.ScanTask())
    items = [{"path": f"/m/{n}", "pad": "x" * 1000} for n in range(10_000)]
    assert post(agent, f"jobs/{job.pk}/result", {"items": items}).status_code == 204
    assert len(Job.objects.get(pk=job.pk).result["items"]) == 10_000
    assert post(agent, f"jobs/{job.pk}/result", b" " * ((16 << 20) + 1)).status_code == 413


def test_an_id_that_is_none(host: Host, agent: Client) -> None:
    said = report(jobs=[{"id": "../../etc", "kind": "engine", "state": "running"}])
    assert post(agent, "report", said).json()["forget"] == ["../../etc"]
    answer = agent.post(f"/agent/v1/jobs/{uuid.uuid4()}/log?offset=0", b"x", content_type="text/plain")
    assert answer.status_code == 404
