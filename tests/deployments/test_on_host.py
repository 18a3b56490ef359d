"""What happens to deployments when their host is set aside, emptied, forgotten, or has no door."""

from typing import Any

import pytest
from django.utils import timezone

from deployments import on_host, preflight
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts.actor import Actor
from panel.audit.models import Event
from panel.fleet import hosts
from panel.fleet.models import Gpu, Host, Job, Reservation
from tests.deployments import builders

pytestmark = pytest.mark.django_db

MINA = Actor(name="mina", role="admin")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def here(db: None) -> Host:
    """The panel's own machine, so that the next host is another one."""
    return builders.make_host("quay")


def check(copy: Copy, **spec: Any) -> preflight.Check:
    return preflight.check(DeploymentSpec(artifact_id=copy.artifact_id, device="auto", **spec), name="x")


def codes(candidates: Any) -> list[tuple[str, str]]:
    return [(c["name"], c["code"]) for c in candidates]


def test_why_here_and_not_there(here: Host) -> None:
    there = builders.make_host("atlas", gpus=2)
    builders.make_copy(here)
    copy = builders.make_copy(there)
    hosts.drain(here, actor=MINA, note="new disk")
    hosts.set_gpu_schedulable(Gpu.objects.get(index=0), False, actor=MINA, note="fan")
    found = check(copy)
    assert found.ok and found.host == there and [gpu.index for gpu in found.gpus] == [1]
    assert found.placement is not None
    elsewhere = preflight.named(found.placement.elsewhere)
    assert codes(elsewhere) == [("atlas GPU 0", "gpu.paused_for"), ("quay", "host.paused_for")]
    assert [c["params"]["note"] for c in elsewhere] == ["fan", "new disk"]
    assert "elsewhere" not in found.facts(), "true of that moment only"
    hosts.drain(there, actor=MINA)
    refused = check(copy)
    assert not refused.ok and ("atlas", "host.paused") in codes(refused.reason["params"]["candidates"])
    hosts.undrain(there, actor=MINA)
    assert check(copy).ok


def test_a_host_without_a_door_gets_nothing_and_the_start_waits(here: Host) -> None:
    there = builders.make_host("atlas", door={})
    copy = builders.make_copy(there)
    found = check(copy, host_id=there.pk)
    assert codes(found.reason["params"]["candidates"]) == [("atlas", "host.no_door")] and found.retryable
    row = builders.make_deployment(copy, desired="running")
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "queued"
    Host.objects.filter(pk=there.pk).update(door=builders.DOOR)
    Deployment.objects.update(next_attempt_at=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"


def running(there: Host, name: str) -> Deployment:
    copy = Copy.objects.filter(host=there).first() or builders.make_copy(there)
    row = builders.make_deployment(copy, name, desired="running")
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.run.host == there
    return row


def test_all_of_one_host_is_stopped_by_one_act(here: Host) -> None:
    there = builders.make_host("atlas")
    rows = [running(there, name) for name in ("a", "b")]
    Deployment.objects.filter(pk=rows[1].pk).update(desired="stopped")
    other = running(here, "c")
    assert on_host.stop_all(there, actor=MINA) == [rows[0]]
    assert on_host.stop_all(there, actor=MINA) == []
    other.refresh_from_db()
    assert other.desired == "running"
    verbs = Event.objects.filter(actor="mina").order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["deployment.stopped", "host.emptied"]


def test_a_run_on_a_host_that_was_forgotten_is_over(here: Host, django_capture_on_commit_callbacks: Any) -> None:
    there = builders.make_host("atlas")
    row = running(there, "a")
    assert Reservation.objects.exists()
    Job.objects.update(state="running", status={"port": 5, "listening": True})
    Host.objects.filter(pk=there.pk).update(lost_at=timezone.now())
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "lost"
    with django_capture_on_commit_callbacks(execute=True):
        hosts.forget(there, actor=MINA, sure=True)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"], row.reason["params"]["host"]) == ("failed", "host_forgotten", "atlas")
    assert not Reservation.objects.exists(), "its memory is counted nowhere"
    run = Run.objects.get()
    assert run.ended_at and run.host is not None and run.host_name == "atlas", "its history stays"
    assert not Copy.objects.filter(host_id=there.pk, present=True).exists()
    assert not check(run.copy).ok and "atlas" not in str(check(run.copy).reason)
