"""The check before a start on the deploy page: item by item, with changes that one click puts into the form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from deployments.models import Deployment
from models_catalog.models import Artifact
from panel.audit.models import Event
from panel.fleet.models import Job
from tests.browser.checks import assert_sound
from tests.browser.deployment_rows import cpu_shelf
from tests.deployments import builders
from tests.deployments.test_check import PASSED, REFUSED, answer


def begin(visit: Callable[..., Page], **look: object) -> Page:
    cpu_shelf()
    page = visit("/deployments/new", role="operator", **look)
    page.locator("#model-list label").first.click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    return page


def press(page: Page) -> None:
    page.get_by_role("button", name="Check without starting").click()


@pytest.mark.parametrize(
    "look", [{}, {"dark": True}, {"width": 390}], ids=["light", "dark", "phone"]
)  # fmt: skip
def test_the_list_appears_as_it_is_known(
    transactional_db: None, visit: Callable[..., Page], look: dict[str, object], request: pytest.FixtureRequest
) -> None:
    page = begin(visit, **look)
    kind = request.node.callspec.id
    press(page)
    card = page.locator("#check")
    expect(card).to_contain_text("The engine is being asked")
    expect(card.locator("li")).to_have_count(5)
    expect(card.locator(".state.ok")).to_have_count(3)  # files, settings and place are known at once
    assert_sound(page, f"deploy-check-asking-{kind}")
    answer(REFUSED)
    expect(card).to_contain_text("It would not start so.")
    expect(card).to_contain_text("User-specified max_model_len (999999)")
    assert_sound(page, f"deploy-check-refused-{kind}")
    card.get_by_role("button", name="Check again").click()
    expect(card).to_contain_text("The engine is being asked")
    answer({**PASSED, "host": {**PASSED["host"], "open_files": 1024}})
    expect(card).to_contain_text("may open 1024 files at most")
    assert_sound(page, f"deploy-check-warned-{kind}")
    assert Job.objects.filter(kind="check").count() == 2 and not Deployment.objects.exists()
    card.get_by_role("button", name="Start anyway").click()
    expect(page.locator("h1")).to_contain_text(Deployment.objects.get().name)
    assert Event.objects.get(verb="deployment.started_despite").facts["warnings"] == ["check.few_files"]


def test_a_fix_is_put_into_the_form_and_the_old_list_goes(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = begin(visit)
    page.locator("#expert > summary").click()
    page.get_by_label("More engine flags").fill("--max-modl-len 2048 --seed 7")
    press(page)
    card = page.locator("#check")
    expect(card).to_contain_text("It would not start so.")
    card.get_by_role("button", name="Do this").first.click()
    expect(page.get_by_label("More engine flags")).to_have_value("--seed 7")
    expect(page.get_by_role("spinbutton", name="Longest conversation")).to_have_value("2048")
    expect(card.locator("li")).to_have_count(0)
    expect(page.locator("#plan")).to_contain_text("Can start")
    press(page)
    expect(card).to_contain_text("The engine is being asked")
    page.get_by_label("More engine flags").fill("--seed 8")
    expect(card.locator("li")).to_have_count(0)


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390}], ids=["light", "dark", "phone"])
def test_what_is_stopped_says_what_speaks_against_a_start(
    transactional_db: None, visit: Callable[..., Page], look: dict[str, object], request: pytest.FixtureRequest
) -> None:
    copy = cpu_shelf()
    Artifact.objects.update(facts={**copy.artifact.facts, "chat_template": False})
    row = builders.make_deployment(copy)
    page = visit(f"/deployments/{row.pk}", role="operator", **look)
    expect(page.locator("#against")).to_contain_text("does not say how a chat is written down")
    assert_sound(page, f"stopped-against-{request.node.callspec.id}")
    page.get_by_role("button", name="Start anyway").click()
    expect(page.locator("#against")).to_have_count(0)
    assert Event.objects.get(verb="deployment.started_despite").facts["warnings"] == ["check.no_chat_template"]
