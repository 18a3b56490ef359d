"""The rows that `make bench` makes fit the tables as they are now."""

import pytest
from django.db import connection

from benchmarks import fill
from deployments.models import Deployment, Run
from models_catalog.models import Download
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet.models import Gpu, Host
from tests.deployments import builders

pytestmark = [pytest.mark.django_db, pytest.mark.integration]


def test_one_real_deployment_becomes_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "DEPLOYMENTS": 12,
        "RUNS_EACH": 3,
        "EVENTS": 200,
        "HOSTS": 2,
        "MODELS": 4,
        "DOWNLOADS": 5,
        "PEOPLE": 3,
    }.items():
        monkeypatch.setattr(fill, name, value)
    monkeypatch.setattr(connection, "close", lambda: None)
    User.objects.create_user("bench", password="correct horse battery", role="admin")
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    builders.make_run(row, copy)
    before = Event.objects.count()
    row.refresh_from_db()
    made = fill.fill(row)
    assert made["Deployment"] == 12 and made["Run"] == 11 * 3 + 1
    assert made["Failure"] == 11 * 2
    assert Host.objects.count() == 3 and Gpu.objects.count() == 2 * fill.GPUS_EACH
    assert made["CatalogModel"] == made["Download"] == 5 and not Download.objects.filter(ended_at=None).exists()
    assert Event.objects.count() == before + 200
    states = set(Deployment.objects.values_list("state", flat=True))
    assert states == {"ready", "stopped", "failed"}
    assert not Deployment.objects.filter(run=None).exists() and not Run.objects.filter(job=None).exists()
    assert not Deployment.objects.exclude(pk=row.pk).filter(due_at__isnull=False).exists(), "the loop leaves them alone"
