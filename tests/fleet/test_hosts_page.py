"""The hosts' page: who uses what, who may do what, and a number of queries that does not grow."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel.audit.models import Event
from panel.fleet import labels, queries, wording
from panel.fleet.labels import Label
from panel.fleet.models import Gpu, Host, Job, Runtime

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _local(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def as_role(django_user_model: Any) -> Any:
    def make(role: str) -> Client:
        client = Client()
        client.force_login(django_user_model.objects.create(username=f"a {role}", role=role))
        return client

    return make


def host(name: str = "atlas", *, seen_s: float = 3, **values: Any) -> Host:
    at = timezone.now() - timedelta(seconds=seen_s)
    facts = {"os": "Debian 13", "ram_available_mib": 3000, "cpu_flags": ["avx2"], "disks": []}
    return Host.objects.create(
        name=name, token_hash=name, last_seen_at=at, facts=facts, facts_at=at, ram_total_mib=8000, **values
    )


def gpu(owner: Host, index: int = 0, *, used: int = 0, processes: list[dict[str, Any]] | None = None) -> Gpu:
    return Gpu.objects.create(
        host=owner,
        uuid=f"{owner.name}-{index}",
        index=index,
        name="L4",
        total_mib=24_000,
        used_mib=used,
        measured={"processes": processes or []},
    )


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> dict[uuid.UUID, Label]:
    """Jobs that some room above has a name for."""
    known: dict[uuid.UUID, Label] = {}
    monkeypatch.setattr(labels, "_sources", [lambda ids: {i: known[i] for i in ids if i in known}])
    return known


def test_memory_is_told_apart_by_who_uses_it(named: dict[uuid.UUID, Label]) -> None:
    ours, strange = uuid.uuid4(), uuid.uuid4()
    named[ours] = Label("support-chat", "/deployments/1/")
    gpu(
        host(),
        used=20_000,
        processes=[
            {"pid": 1, "used_mib": 9000, "job_id": str(ours)},
            {"pid": 2, "used_mib": 1000, "job_id": str(ours)},
            {"pid": 3, "used_mib": 2000, "job_id": str(strange)},
            {"pid": 4, "used_mib": 3000, "user": "sam", "name": "train.py"},
            {"pid": 5, "used_mib": None, "user": "sam", "name": "jupyter"},
            {"pid": 6, "used_mib": 500, "job_id": "not a job"},
        ],
    )
    (view,) = queries.hosts()[0].gpus
    assert [(use.label.text if use.label else "", use.mib) for use in view.ours] == [
        ("support-chat", 10_000),
        (str(strange)[:8], 2000),
    ]
    assert [(use.user, use.names, use.mib) for use in view.others] == [
        ("sam", ("train.py", "jupyter"), 3000),
        ("", (), 500),
    ]
    assert (view.unknown_mib, view.free_mib) == (4500, 4000)
    row = wording.gpu_row(view)
    assert sum(mib for _colour, mib in row["bar"]) + view.free_mib == 24_000
    assert "not Berth: sam, train.py, jupyter, 2.9" in row["label"]


def test_driver_that_counts_less_than_its_processes_gives_no_negative_memory() -> None:
    gpu(host(), used=10, processes=[{"pid": 1, "used_mib": 30_000, "user": "x"}])
    (view,) = queries.hosts()[0].gpus
    assert (view.unknown_mib, view.free_mib) == (0, 0)


def test_lost_hosts_come_first_and_silence_counts_before_the_ticker_says_so() -> None:
    host("alive"), host("silent", seen_s=600), host("lost", lost_at=timezone.now())
    Host.objects.create(name="new", token_hash="new")
    views = queries.hosts()
    assert views[0].host.name == "lost"
    assert {view.host.name for view in views if view.silent} == {"lost", "silent", "new"}


def test_page_shows_each_state_with_its_next_step(as_role: Any) -> None:
    owner = host("atlas")
    Runtime.objects.create(host=owner, engine="vllm", executable="/a", version="0.32.0", device="cpu")
    Runtime.objects.create(
        host=owner,
        engine="vllm",
        executable="/b",
        refusal={"code": "probe_failed", "params": {"detail": "ImportError: libcudart.so.12"}},
    )
    Runtime.objects.create(host=owner, engine="vllm", executable="/c", refusal={"code": "brand_new_code"})
    host("lost", lost_at=timezone.now(), seen_s=700)
    text = as_role("viewer").get("/hosts/").content.decode()
    assert (
        "vLLM 0.32.0 for CPU" in text
        and "It does not start: ImportError: libcudart" in text
        and "brand_new_code" in text
    )
    assert "Start the agent again on that machine" in text
    assert "Look for engines again" not in text, "a viewer may not"


def test_what_an_agent_says_is_text(as_role: Any) -> None:
    evil = "<script>alert(1)</script>"
    owner = host("evil")
    Host.objects.update(facts={"os": evil, "cpu_model": evil, "disks": [{"path": evil, "total_mib": 1, "free_mib": 1}]})
    gpu(owner, processes=[{"pid": 1, "used_mib": 1000, "user": evil, "name": evil}])
    Runtime.objects.create(host=owner, engine=evil[:16], executable=evil, version=evil, refusal={"code": evil})
    assert "<script>alert" not in as_role("admin").get("/hosts/").content.decode()


def test_number_of_queries_does_not_grow(as_role: Any) -> None:
    client = as_role("admin")

    def fill(prefix: str) -> None:
        for n in range(3):
            owner = host(f"{prefix}{n}")
            job = Job.objects.create(host=owner, kind="engine", state="running")
            for index in range(2):
                gpu(owner, index, used=900, processes=[{"pid": 1, "used_mib": 900, "job_id": str(job.pk)}])
            Runtime.objects.create(host=owner, engine="vllm", executable="/a")

    counts = []
    for prefix in ("a", "b"):
        fill(prefix)
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert client.get("/hosts/").status_code == 200
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_admin_looks_for_engines(as_role: Any) -> None:
    owner = host()
    answer = as_role("admin").post(f"/hosts/{owner.pk}/engines/find")
    assert answer.status_code == 302
    assert owner.jobs.get().kind == "runtimes"
    assert Event.objects.filter(verb="host.engines_searched", actor="a admin").exists()


def test_operator_may_not_and_that_is_recorded(as_role: Any) -> None:
    owner = host()
    client = as_role("operator")
    assert client.post(f"/hosts/{owner.pk}/engines/find").status_code == 403
    assert client.get(f"/hosts/{owner.pk}/engines/new").status_code == 403
    assert not owner.jobs.exists()
    assert Event.objects.filter(outcome="denied", actor="a operator").exists()


def test_engine_named_by_path(as_role: Any) -> None:
    owner = host()
    client = as_role("admin")
    assert client.post(f"/hosts/{owner.pk}/engines/new", {"executable": "/opt/vllm/bin/vllm"}).status_code == 302
    owner.refresh_from_db()
    assert owner.runtime_executables == ["/opt/vllm/bin/vllm"]
    assert owner.jobs.get().order["executables"] == ["/opt/vllm/bin/vllm"]


@pytest.mark.parametrize("path", ["", "vllm", "/opt/../etc/passwd", "/x" * 400, "; rm -rf /", "$(id)"])
def test_impossible_path_comes_back_with_the_form(as_role: Any, path: str) -> None:
    owner = host()
    answer = as_role("admin").post(f"/hosts/{owner.pk}/engines/new", {"executable": path})
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.content.decode()
    assert not owner.jobs.exists()


def test_unknown_host_is_not_found(as_role: Any) -> None:
    assert as_role("admin").post("/hosts/999/engines/find").status_code == 404


def test_stranger_is_led_to_the_sign_in() -> None:
    answer = Client().get("/hosts/", headers={"Accept": "text/html"})
    assert answer.status_code == 302 and answer.headers["Location"].startswith("/login")


def test_memory_of_the_team_counts_connected_hosts(as_role: Any) -> None:
    assert queries.memory() is None
    gpu(host("a"), used=1000), gpu(host("b"), used=2000)
    gpu(host("gone", lost_at=timezone.now()), used=9000)
    memory = queries.memory()
    assert memory is not None and (memory.used_mib, memory.total_mib, memory.hosts) == (3000, 48_000, 2)
