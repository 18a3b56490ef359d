"""A deployment whose host falls silent: the open page says with whom there is no contact and since when, the list too."""

from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import Page, expect

from deployments import events
from deployments.reconcile import reconcile
from panel.core.numbers import clock
from panel.fleet.models import Host
from tests.browser.deployment_rows import gpu_deployment, page_of
from tests.deployments import builders


def test_the_open_page_says_since_when(transactional_db: None, visit: Callable[..., Page]) -> None:
    row, copy = gpu_deployment("ready")
    builders.ready(row, builders.make_run(row, copy))
    page = visit(page_of(row), role="operator")
    expect(page.get_by_text("No contact")).to_have_count(0)
    heard = timezone.now() - timedelta(minutes=4)
    Host.objects.filter(pk=copy.host_id).update(lost_at=timezone.now(), last_seen_at=heard)
    reconcile(row.pk)
    events.announce(row.pk, state="lost", name=row.name)
    said = f"No contact with {copy.host.name} since {clock(heard)}"
    expect(page.get_by_role("heading", name=said)).to_be_visible()
    page.goto(page.url.split("/deployments/")[0] + "/")
    expect(page.get_by_text(said).first).to_be_visible()
    assert not page.complaints  # type: ignore[attr-defined]
