"""Folders and scans as people ask for them, and how a finished scan is taken."""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from models_catalog import services, sweep, tasks
from models_catalog.inspect.scan import scan_roots
from models_catalog.models import CatalogModel, Copy, ScannedRoot
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core import queue
from panel.core.errors import Conflict, Invalid, NotFound
from panel.fleet import reports, wire
from panel.fleet.models import Host, Job
from tests.models_catalog.builders import hf_folder

pytestmark = pytest.mark.django_db


@pytest.fixture
def host() -> Host:
    return Host.objects.create(name="atlas", token_hash="t", facts={"model_roots": ["/home/me/models"]})


@pytest.fixture
def admin() -> User:
    return User.objects.create_user("ada", password="not used here", role="admin")


def recorded(verb: str) -> list[Event]:
    return list(Event.objects.filter(verb=verb))


def finish(job: Job, items: list[dict[str, Any]] | None = None, **status: Any) -> None:
    """The host's words: an end by a report, and a result."""
    said = {"id": str(job.pk), "kind": "scan", "state": "ended", "exit_code": 0, **status}
    report = wire.Report.model_validate({"agent_version": "1", "sent_at": 0, "rev": 1, "jobs": [said]})
    reports.take_report(job.host, report)
    if items is not None:
        reports.take_result(job.host, job.pk, wire.JobResult(items=items))


def test_a_scan_is_ordered_once_and_audited(host: Host, admin: User) -> None:
    job = services.request_scan(host, actor=admin)
    assert (job.kind, job.order["kind"]) == ("scan", "scan")
    assert services.request_scan(host, actor=admin).pk == job.pk
    assert [event.actor for event in recorded("host.models_searched")] == ["ada"]


def test_a_lost_host_is_not_asked(host: Host, admin: User) -> None:
    Host.objects.filter(pk=host.pk).update(lost_at=timezone.now())
    with pytest.raises(Conflict) as caught:
        services.request_scan(host, actor=admin)
    assert "atlas" in caught.value.text
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "path",
    [
        "", "models", "../models", "/data/../etc", "/", "///", "/data/\x00x", "/data/a\nb", "/" + "x" * 600,
        "~/models", "$(id)", "file:///etc",
    ],
)  # fmt: skip
def test_impossible_folders_are_refused(host: Host, admin: User, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        services.add_root(host, path, actor=admin)
    assert "path" in caught.value.fields
    host.refresh_from_db()
    assert host.model_roots == []
    assert not Job.objects.exists()
    assert not recorded("host.folder_added")


def test_an_added_folder_is_normalised_scanned_and_audited(host: Host, admin: User) -> None:
    job = services.add_root(host, " /data//模型; rm -rf ~/ ", actor=admin)
    assert job.order["roots"] == ["/data/模型; rm -rf ~"]  # a name like any other: no shell ever sees it
    (event,) = recorded("host.folder_added")
    assert (event.before, event.after) == ({"folders": []}, {"folders": ["/data/模型; rm -rf ~"]})
    host.refresh_from_db()
    with pytest.raises(Conflict):
        services.add_root(host, "/data/模型; rm -rf ~", actor=admin)
    with pytest.raises(Conflict):
        services.add_root(host, "/home/me/models", actor=admin)  # the agent takes it by itself


def test_a_scan_that_lacks_a_new_folder_does_not_stand_in_for_a_new_one(host: Host, admin: User) -> None:
    first = services.request_scan(host, actor=admin)
    second = services.add_root(host, "/data", actor=admin)
    assert services.request_scan(host, actor=admin).pk == second.pk != first.pk


def test_removing_a_folder_takes_its_models_out_and_keeps_the_rest(host: Host, admin: User) -> None:
    services.add_root(host, "/data", actor=admin)
    services.add_root(host, "/data/keep", actor=admin)
    model = CatalogModel.objects.create(name="m")
    for n, path in enumerate(["/data/x", "/data/keep/y", "/database/z"]):
        artifact = model.artifacts.create(format="hf", label="x", fingerprint=str(n))
        Copy.objects.create(artifact=artifact, host=host, path=path)
    ScannedRoot.objects.create(host=host, path="/data", scanned_at=timezone.now())
    assert services.remove_root(host, "/data", actor=admin) == 1
    assert set(Copy.objects.filter(present=True).values_list("path", flat=True)) == {"/data/keep/y", "/database/z"}
    assert not ScannedRoot.objects.exists()
    assert recorded("host.folder_removed")[0].facts["copies"] == 1
    with pytest.raises(NotFound):
        services.remove_root(host, "/data", actor=admin)
    with pytest.raises(NotFound):
        services.remove_root(host, "/home/me/models", actor=admin)  # the agent's own list is not the panel's to change


def test_the_end_of_a_scan_nudges_and_the_task_writes(
    host: Host, admin: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudged: list[str] = []
    monkeypatch.setattr(queue, "send", lambda task, *args: nudged.extend(args))
    hf_folder(tmp_path / "m")
    job = services.request_scan(host, actor=admin)
    finish(job, list(scan_roots([tmp_path])))
    assert str(job.pk) in nudged
    assert not Copy.objects.exists()  # the receiver only nudges
    tasks.take_scan(nudged[-1])
    assert Copy.objects.get().path == str(tmp_path / "m")
    tasks.take_scan(nudged[-1])
    assert Copy.objects.count() == 1
    tasks.take_scan(str(uuid.uuid4()))  # a vanished row is forgiven


def test_a_broker_that_is_away_does_not_break_the_report(
    host: Host, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr(tasks.take_scan, "apply_async", refuse)
    monkeypatch.setattr("panel.core.sse.broker_failed", lambda: None)  # the other tests' broker is well
    finish(services.request_scan(host, actor=admin), [])
    assert Job.objects.get().state == "ended"


@pytest.mark.parametrize(
    ("status", "result", "code"),
    [
        ({"state": "refused", "refusal": {"code": "shutting_down"}}, None, "shutting_down"),
        ({"exit_code": 3}, None, "scan_failed"),
        ({"signal": 9, "exit_code": None}, None, "scan_failed"),
        ({}, wire.JobResult(refusal=wire.Refusal(code="not_supported_here")), "not_supported_here"),
    ],
)
def test_a_scan_that_failed_says_so_at_its_folders_and_keeps_what_is_known(
    host: Host, admin: User, status: dict[str, Any], result: wire.JobResult | None, code: str
) -> None:
    artifact = CatalogModel.objects.create(name="m").artifacts.create(format="hf", label="x", fingerprint="1")
    Copy.objects.create(artifact=artifact, host=host, path="/home/me/models/m")
    job = services.request_scan(host, actor=admin)
    finish(job, None, **status)
    if result is not None:
        reports.take_result(host, job.pk, result)
    tasks.take_scan(str(job.pk))
    root = ScannedRoot.objects.get(path="/home/me/models")
    assert [problem["code"] for problem in root.problems] == [code, "not_scanned"]
    assert Copy.objects.get().present


def test_a_lost_nudge_is_found_by_the_sweep(host: Host, admin: User, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(queue, "send", lambda task, *args: sent.extend(args))
    job = services.request_scan(host, actor=admin)
    sweep.sweep_jobs(every_s=0)
    finish(job, [])
    sent.clear()
    sweep.sweep_jobs(every_s=0)
    assert sent == []  # the nudge has its time
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - timedelta(seconds=20))
    sweep.sweep_jobs(every_s=0)
    assert sent == [str(job.pk)]
    tasks.take_scan(str(job.pk))
    sent.clear()
    sweep.sweep_jobs(every_s=0)
    assert sent == []


def test_allowing_a_models_own_code_is_audited_once(admin: User) -> None:
    model = CatalogModel.objects.create(name="m")
    assert services.set_remote_code(model, True, actor=admin)
    assert not services.set_remote_code(model, True, actor=admin)
    assert services.set_remote_code(model, False, actor=admin)
    assert [event.verb for event in Event.objects.order_by("pk")] == ["model.code_allowed", "model.code_forbidden"]
