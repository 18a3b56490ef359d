"""A host that is out of contact is named, with the time, wherever its deployment is shown: page, list, alert, API."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from deployments.models import Deployment
from deployments.reconcile import reconcile
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.core.numbers import clock
from panel.fleet.models import Host
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def maria() -> User:
    return User.objects.create_user(username="maria", role="operator")


@pytest.fixture
def browser(maria: User) -> Client:
    client = Client(headers={"Accept": "text/html"})
    client.force_login(maria)
    return client


def gone(name: str, **ago: Any) -> tuple[Deployment, datetime]:
    """A ready deployment whose host fell silent; the loop has seen it."""
    at = timezone.now() - timedelta(**ago)
    host = builders.make_host(f"host-{name}")
    copy = builders.make_copy(host)
    row = builders.make_deployment(copy, name, state="ready")
    builders.ready(row, builders.make_run(row, copy))
    Host.objects.filter(pk=host.pk).update(lost_at=timezone.now(), last_seen_at=at)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"]) == ("lost", "lost.no_contact")
    return row, at


@pytest.mark.parametrize("ago", [{"minutes": 3}, {"days": 1}, {"days": 40}], ids=["now", "yesterday", "long-ago"])
def test_page_list_alert_and_api_say_since_when(browser: Client, maria: User, ago: dict[str, int]) -> None:
    row, at = gone("chat", **ago)
    wanted = f"No contact with host-chat since {clock(at)}"
    page = browser.get(f"/deployments/{row.pk}/").content.decode()
    assert wanted in page
    listed = browser.get("/").content.decode()
    assert listed.count(wanted) == 2, "in the list, and in what needs a person"
    token = create_token(maria, "x", actor=maria, scope="api:read")[1]
    told = Client(headers={"Authorization": f"Bearer {token}"}).get(f"/api/v1/deployments/{row.pk}").json()
    assert (told["reason"]["code"], told["host"]) == ("lost.no_contact", "host-chat")
    assert wanted in told["reason"]["message"] and datetime.fromisoformat(told["no_contact_since"]) == at.replace(
        microsecond=at.microsecond // 1000 * 1000
    )


def test_the_name_is_that_of_today_and_contact_takes_it_away(browser: Client) -> None:
    row, _at = gone("chat", minutes=3)
    Host.objects.update(name="harbour")
    assert "No contact with harbour since" in browser.get(f"/deployments/{row.pk}/").content.decode()
    Host.objects.update(lost_at=None, last_seen_at=timezone.now())
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "ready"
    assert "No contact" not in browser.get(f"/deployments/{row.pk}/").content.decode()


def test_more_of_them_cost_no_more_queries(browser: Client) -> None:
    gone("one", minutes=3)
    browser.get("/")
    with CaptureQueriesContext(
        connection,
    ) as few:
        browser.get("/")
    for name in ("two", "three", "four"):
        gone(name, minutes=5)
    with CaptureQueriesContext(connection) as many:
        browser.get("/")
    assert len(many) == len(few)
