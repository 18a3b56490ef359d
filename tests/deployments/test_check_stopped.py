"""What is stopped says on its page what speaks against a start; a start in spite of that is recorded."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from deployments.models import Deployment
from models_catalog.models import Artifact, Copy
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet.models import Job
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy(db: None) -> Copy:
    return builders.make_copy(builders.make_host())


def person(role: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(username=role, role=role))
    return client


def test_the_page_says_it_and_the_start_is_recorded(copy: Copy) -> None:
    Artifact.objects.update(facts={**copy.artifact.facts, "chat_template": False})
    row = builders.make_deployment(copy)
    mina, where = person("operator"), reverse("deployment", args=[row.pk])
    page = mina.get(where).content.decode()
    assert "does not say how a chat is written down" in page and "Start anyway" in page
    assert not Job.objects.exists(), "a look asks nobody"
    assert mina.post(reverse("deployment-start", args=[row.pk]), {"act": "anyway"}).status_code == 302
    event = Event.objects.get(verb="deployment.started_despite")
    assert (event.facts["warnings"], event.facts["revision"]) == (["check.no_chat_template"], 1)
    assert event.actor == "operator"
    assert Deployment.objects.get().desired == "running"
    assert "Start anyway" not in person("viewer").get(where).content.decode()


def test_what_could_not_start_has_no_start_anyway(copy: Copy) -> None:
    Copy.objects.update(present=False, usable=False)
    row = builders.make_deployment(copy)
    page = person("operator").get(reverse("deployment", args=[row.pk])).content.decode()
    assert "It would not start so." in page and "Start anyway" not in page


def test_where_nothing_speaks_against_it_nothing_is_said_or_recorded(copy: Copy) -> None:
    row = builders.make_deployment(copy)
    mina = person("operator")
    assert 'id="against"' not in mina.get(reverse("deployment", args=[row.pk])).content.decode()
    mina.post(reverse("deployment-start", args=[row.pk]), {"act": "anyway"})
    assert not Event.objects.filter(verb="deployment.started_despite").exists()
    assert Deployment.objects.get().desired == "running"


def test_a_plain_start_reads_no_list(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    Artifact.objects.update(facts={**copy.artifact.facts, "chat_template": False})
    row = builders.make_deployment(copy)
    monkeypatch.setattr("deployments.views.check.look", lambda *args, **kwargs: pytest.fail("it was looked at"))
    assert person("operator").post(reverse("deployment-start", args=[row.pk])).status_code == 302
    assert not Event.objects.filter(verb="deployment.started_despite").exists()
