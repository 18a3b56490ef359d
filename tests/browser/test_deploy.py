"""Choosing a model on the deploy page, with the page's own scripts."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.deployment_rows import cpu_shelf
from tests.deployments import builders


def test_a_model_that_is_chosen_stays_and_gets_its_plan(transactional_db: None, visit: Callable[..., Page]) -> None:
    host = cpu_shelf().host
    builders.make_copy(host, "Another-1B-Instruct")
    page = visit("/deployments/new", role="operator")
    choices = page.locator("#model-list label")
    expect(choices).to_have_count(2)
    choices.first.click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    expect(page.get_by_label("Name", exact=True)).to_have_value("another-1b-instruct")
    page.wait_for_timeout(300)  # a filter would have run by now
    expect(choices.first).to_be_visible()
    expect(choices.last).to_be_visible()
    expect(page.locator("#model-none")).to_be_hidden()
    page.get_by_label("Name", exact=True).fill("mine")
    choices.last.click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("mine")
    page.get_by_label("Name", exact=True).fill("")
    expect(page.locator("#plan")).to_contain_text("Can start")
    # A newer question ends the one before it, and htmx tells the console.
    assert not [c for c in page.complaints if "Abort" not in c and "afterRequest" not in c]  # type: ignore[attr-defined]


def test_a_long_list_of_models_is_searched_and_keeps_its_choice(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    host = cpu_shelf().host
    for n in range(7):
        builders.make_copy(host, f"Model-{n}-Instruct")
    page = visit("/deployments/new", role="operator")
    page.locator("#model-list label", has_text="Model-3").click()
    page.get_by_role("searchbox").fill("model-3")
    expect(page.locator("#model-list label:visible")).to_have_count(1)
    page.get_by_role("searchbox").fill("no such")
    expect(page.locator("#model-none")).to_be_visible()


def test_what_could_only_fail_cannot_be_started(transactional_db: None, visit: Callable[..., Page]) -> None:
    host = cpu_shelf().host
    odd = builders.make_copy(host, "Odd-1B")
    odd.path = "/models/odd/odd-Q8_0.gguf"
    odd.save()
    odd.artifact.format, odd.artifact.facts = "gguf", {**odd.artifact.facts, "format": "gguf"}
    odd.artifact.save()
    page = visit(f"/deployments/new?artifact={odd.artifact_id}", role="operator")
    expect(page.locator("#plan")).to_contain_text("Convert on")
    expect(page.locator("#act-deploy")).to_be_disabled()
    expect(page.get_by_role("button", name="Save without starting")).to_be_enabled()
    page.locator("#model-list label", has_not_text="Odd").first.click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    expect(page.locator("#act-deploy")).to_be_enabled()


def test_a_model_that_is_chosen_answers_what_the_command_left_open(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    cpu_shelf()
    page = visit("/deployments/paste", role="operator")
    page.locator("#paste-text").fill("vllm serve nobody/Unheard-70B --max-model-len 4096")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#pasted .bad")).to_contain_text("is not in the catalog")
    page.locator("#model-list label").first.click()
    expect(page.locator("#pasted .bad")).to_be_hidden()
