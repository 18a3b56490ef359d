"""Choosing a model on the deploy page, with the page's own scripts."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from deployments.models import Deployment
from models_catalog import fits
from models_catalog.models import Artifact, Copy
from tests.browser.checks import assert_sound
from tests.browser.deployment_rows import cpu_shelf, gpu_shelf
from tests.deployments import builders
from tests.deployments.pure.plans import model


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


def real_shelf() -> dict[str, Copy]:
    """Two cards, and models whose shape is known, so that plans have numbers."""
    host = gpu_shelf().host
    shapes = {"Qwen3-8B": "Qwen--Qwen3-8B", "gemma-3-27b-it": "google--gemma-3-27b-it"}
    copies = {name: builders.make_copy(host, name) for name in shapes}
    for name, shape in shapes.items():
        Artifact.objects.filter(model__name=name).update(facts=model(shape))
    fits.freshen()
    return copies


def chosen(page: Page, name: str) -> None:
    page.locator("#model-list label", has_text=name).click()
    expect(page.locator("#plan")).to_have_attribute("data-fit", re.compile("numbers"))


def widths(page: Page) -> list[float]:
    """Of the parts of the first bar, in per cent."""
    found = page.locator("#bars .bar").first.locator("rect")
    return [float((rect.get_attribute("width") or "0").rstrip("%")) for rect in found.all()]


def test_from_the_home_page_to_a_running_deployment_in_few_clicks(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    copy = real_shelf()["Qwen3-8B"]
    builders.make_deployment(copy, "already-here")
    page = visit("/", role="operator")
    count = "addEventListener('pointerdown', () => { sessionStorage.clicks = +(sessionStorage.clicks || 0) + 1 }, true)"
    page.evaluate(f"() => {count}")
    page.context.add_init_script(count)
    page.get_by_role("link", name="Deploy a model").first.click()
    page.locator("#model-list label", has_text="Qwen3-8B").click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.locator("h1")).to_contain_text("qwen3-8b")
    row = Deployment.objects.get(name="qwen3-8b")
    assert row.desired == "running" and row.revision.spec["extra_args"] == [] and row.revision.spec["options"] == {}
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    Deployment.objects.filter(pk=row.pk).update(state="ready")
    again = page.context.new_page()  # the first one may just be loading itself anew
    again.goto(f"/deployments/{row.pk}/")
    expect(again.locator("main .state.ok").first).to_contain_text("Ready")
    assert 3 <= int(page.evaluate("sessionStorage.clicks")) <= 6  # and not one more to see it run


def test_the_bar_follows_the_slider_at_once_and_the_panel_says_the_same(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    slider = page.get_by_role("slider", name="Longest conversation")
    before = widths(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # Everything between the event and the drawn bar runs in one task; the panel is asked a quarter of a second later.
    took = page.evaluate(
        """() => { const range = document.querySelector('.slider input[type=range]'), begin = performance.now();
                   range.value = range.max; range.dispatchEvent(new Event('input', { bubbles: true }));
                   document.querySelector('#bars .bar').getBoundingClientRect();
                   return performance.now() - begin }"""
    )
    assert took < 50 and not asked
    moved = widths(page)
    assert moved[5] > before[5] and moved[:5] == pytest.approx(before[:5], abs=0.01)  # one long conversation takes more
    expect(page.get_by_role("spinbutton", name="Longest conversation")).to_have_value("40960")
    room = page.locator("[data-count=people]").inner_text()
    page.wait_for_function(
        "() => JSON.parse(document.querySelector('#plan').dataset.fit).longest && !document.querySelector('[data-stale][hidden]')"
    )
    expect(page.locator("[data-count=people]")).to_have_text(room)  # the planner counted the same
    assert widths(page) == pytest.approx(moved, abs=0.02)
    slider.focus()
    slider.press("Home")
    expect(page.get_by_role("spinbutton", name="Longest conversation")).to_have_value("1024")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("1,024 tokens"))


def test_more_people_than_fit_are_told_at_once_and_the_mark_says_how_many_do(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    most = page.get_by_role("button", name="Most that fit")
    number = int(most.inner_text().rpartition(" ")[2])
    page.get_by_role("spinbutton", name="People at the same time").fill(str(number * 3))
    expect(page.locator("#plan")).to_contain_text("What would help")
    most.click()
    expect(page.get_by_role("spinbutton", name="People at the same time")).to_have_value(str(number))
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.locator("h1")).to_contain_text("qwen3-8b")
    assert Deployment.objects.get(name="qwen3-8b").revision.spec["people"] == number


def test_a_proposed_change_is_put_into_the_form_by_one_press_of_a_key(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator")
    page.locator("#model-list label", has_text="gemma-3-27b-it").click()
    plan = page.locator("#plan")
    expect(plan).to_contain_text("On 2 GPUs it fits")
    plan.get_by_role("listitem").filter(has_text="On 2 GPUs").get_by_role("button").press("Enter")
    expect(plan).to_contain_text("Can start")
    assert page.locator("#f-gpu_count").input_value() == "2"
    assert len(page.locator("#bars .bar").all()) == 2
    assert_sound(page, "deploy-two-gpus")


def test_settings_are_searched_and_change_the_plan_and_enter_deploys(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator", width=390)
    chosen(page, "Qwen3-8B")
    room = int(page.locator("[data-count=people]").inner_text())
    page.locator("#expert > summary").press("Enter")
    page.get_by_role("searchbox", name="Search settings").fill("precision of the kv")
    expect(page.locator(".setting:visible")).to_have_count(1)
    page.get_by_label("Precision of the KV cache").select_option("fp8")
    page.wait_for_function(
        "before => +document.querySelector('[data-count=people]')?.textContent > 1.8 * before", arg=room
    )
    page.get_by_role("searchbox", name="Search settings").fill("")
    page.get_by_role("link", name="in the engine's own words").press("Enter")
    page.get_by_role("searchbox", name="Search settings").fill("numa")
    page.get_by_label("--numa-bind-nodes").fill("0 1")
    assert_sound(page, "deploy-settings.390")
    page.get_by_role("textbox", name="Name", exact=True).press("Enter")
    expect(page.locator("h1")).to_contain_text("qwen3-8b")
    assert Deployment.objects.get(name="qwen3-8b").revision.spec["options"] == {
        "kv_cache_dtype": "fp8", "numa_bind_nodes": ["0", "1"],
    }  # fmt: skip


def test_without_scripts_the_form_shows_the_plan_and_takes_a_change(
    transactional_db: None, visit: Callable[..., Page], browser: Browser
) -> None:
    real_shelf()
    state = visit("/deployments/new", role="operator").context.storage_state()
    web = visit("/deployments/new", role="operator").url.partition("/deployments")[0]
    context = browser.new_context(base_url=web, java_script_enabled=False, storage_state=state, locale="en-GB")
    page = context.new_page()
    page.goto("/deployments/new")
    page.get_by_label("gemma-3-27b-it").check()
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("#plan")).to_contain_text("On 2 GPUs it fits")
    page.locator("#plan li", has_text="On 2 GPUs").get_by_role("button").click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.get_by_role("textbox", name="Name", exact=True).fill("no-scripts")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.locator("h1")).to_contain_text("no-scripts")
    assert Deployment.objects.get(name="no-scripts").revision.spec["gpu_count"] == 2
    context.close()


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
