"""A start whose engine is asked first, one that it refused, and one that never had a place, as people see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from deployments.models import Deployment
from deployments.reconcile import reconcile
from panel.fleet import logstore
from tests.browser.checks import assert_sound
from tests.deployments import builders
from tests.deployments.test_check import REFUSED, TOO_LONG, answer


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390}], ids=["light", "dark", "phone"])
def test_it_is_asked_then_refused_or_never_has_a_place(
    transactional_db: None,
    visit: Callable[..., Page],
    look: dict[str, object],
    request: pytest.FixtureRequest,
    settings: Any,
) -> None:
    settings.BERTH_CHECK_BEFORE_START = True
    kind = request.node.callspec.id
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, desired="running")
    row.revision.spec = {**row.revision.spec, "options": {"max_model_len": 4000}}
    row.revision.save()
    reconcile(row.pk)
    where = reverse("deployment", args=[row.pk])
    page = visit(where, role="operator", **look)
    expect(page.locator("#why")).to_contain_text("Asking the engine what it thinks of these settings.")
    expect(page.locator(".tl")).to_contain_text("The engine is asked about the settings")
    assert_sound(page, f"start-asked-{kind}")

    page.goto("about:blank")  # the open page would load itself anew while it is led to another
    job = answer(REFUSED)
    logstore.append(job.pk, 0, f"$ python check_script.py vllm serve\n{TOO_LONG}".encode())
    reconcile(row.pk)
    page.goto(where)
    expect(page.locator("#nothing-started")).to_contain_text("What the engine said when it was asked is kept below.")
    expect(page.locator("#lg-h")).to_have_text("What the engine said when it was asked")
    expect(page.locator(".fix").first).to_be_visible()
    expect(page.locator("#verdict")).to_contain_text("Was this right?")
    expect(page.locator(".log")).to_contain_text("User-specified max_model_len (999999)")
    assert_sound(page, f"start-refused-{kind}")
    row.refresh_from_db()
    page.goto(reverse("run", args=[row.run_id]))
    expect(page.locator(".tl")).to_contain_text("Settings checked by the engine")
    assert_sound(page, f"start-refused-record-{kind}")

    copy.host.runtimes.all().delete()
    Deployment.objects.filter(pk=row.pk).update(state="queued", next_attempt_at=None)
    reconcile(row.pk)
    page.goto(where)
    expect(page.locator("#nothing-started")).to_have_text("Nothing was started, so there is no log.")
    assert_sound(page, f"start-never-began-{kind}")
    row.refresh_from_db()
    page.goto(reverse("run", args=[row.run_id]))
    expect(page.get_by_text("It ended before it had a place. Nothing was started.")).to_be_visible()
    assert_sound(page, f"start-never-began-record-{kind}")
