"""Reports that come late, twice or in another order: what is known never goes back to what was."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from panel.fleet import reports, services, wire
from panel.fleet.models import Host, Job
from tests.fleet.test_reports import FACTS, engine_task

pytestmark = pytest.mark.django_db

START = 5_000_000_000  # µs since the machine's start


@pytest.fixture
def host(broker: Any) -> Host:
    return Host.objects.create(name="h", token_hash=services.digest("secret"), agent_instance="seat.1")


@pytest.fixture
def job(host: Host) -> Job:
    return services.order_job(host=host, task=engine_task())


def report(seq: int, job: Job, **values: Any) -> wire.Report:
    status = {"id": str(job.pk), "kind": "engine", "pid": 7, **values}
    sent = timezone.now().timestamp()
    return wire.Report(agent_version="1", sent_at=sent, rev=1, seq=seq, facts=FACTS, jobs=[status])


def said(job: Job) -> tuple[str, Any, Any]:
    job.refresh_from_db()
    return job.state, job.status.get("port"), job.status.get("listening")


def test_an_older_report_changes_nothing(host: Host, job: Job) -> None:
    early, late = report(START, job, state="starting"), report(START + 1, job, state="running", port=9, listening=True)
    reports.take_report(host, early)
    reports.take_report(host, late)
    Host.objects.update(last_seen_at=None)
    for old in (early, late):  # delivered once more
        stale = Host.objects.get()
        reports.take_report(stale, old)
    assert said(job) == ("running", 9, True)
    assert Host.objects.get().last_seen_at is None, "an old word is no contact"


def test_one_that_overtakes_on_the_way_counts_and_the_other_does_not(host: Host, job: Job) -> None:
    """Both were let in with the same row in hand: only the lock of the host tells which one is newer."""
    first, second = Host.objects.get(), Host.objects.get()
    reports.take_report(second, report(START + 1, job, state="running", port=9, listening=True))
    reports.take_report(first, report(START, job, state="starting"))
    assert said(job) == ("running", 9, True)


def test_a_machine_put_back_to_an_earlier_moment_is_heard(host: Host, job: Job) -> None:
    """A virtual machine that was restored from its own past has the same boot and an earlier clock."""
    reports.take_report(host, report(START, job, state="running", port=9))
    host.refresh_from_db()
    reports.take_report(host, report(START - reports.LATE_US - 1, job, state="running", port=10))
    assert said(job)[1] == 10


def test_an_agent_that_does_not_count_is_heard_as_ever(host: Host, job: Job) -> None:
    reports.take_report(host, report(START, job, state="running", port=9))
    host.refresh_from_db()
    reports.take_report(host, report(0, job, state="running", port=10))
    assert said(job)[1] == 10


def test_another_seat_counts_anew(host: Host, job: Job) -> None:
    """After a start of the machine its clock begins at zero."""
    reports.take_report(host, report(START, job, state="running", port=9))
    Host.objects.update(agent_instance="")
    agent = Client(headers={"Authorization": "Bearer secret", wire.INSTANCE_HEADER: "other.1"})
    body = report(1, job, state="running", port=10).model_dump_json()
    assert agent.post("/agent/v1/report", body, content_type="application/json").status_code == 200
    assert said(job)[1] == 10
