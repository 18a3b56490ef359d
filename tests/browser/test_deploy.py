"""Choosing a model on the deploy page, with the page's own scripts."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from deployments.models import Deployment
from models_catalog import fits
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.fleet.models import Runtime
from tests.browser.cases_record import tuned
from tests.browser.checks import assert_sound, rest, tab_to
from tests.browser.deployment_rows import cpu_shelf, gpu_shelf
from tests.deployments import builders
from tests.deployments.pure.plans import model


def test_a_model_that_is_chosen_stays_and_gets_its_plan(transactional_db: None, visit: Callable[..., Page]) -> None:
    host = cpu_shelf().host
    builders.make_copy(host, "Another-1B-Instruct")
    page = visit("/deployments/new", role="operator")
    choices = page.locator("#model-list label")
    expect(choices).to_have_count(2)
    choices.filter(has_text="Another-1B").click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    expect(page.get_by_label("Name", exact=True)).to_have_value("another-1b-instruct")
    page.wait_for_timeout(300)  # a filter would have run by now
    expect(choices.first).to_be_visible()
    expect(choices.last).to_be_visible()
    expect(page.locator("#model-none")).to_be_hidden()
    page.get_by_label("Name", exact=True).fill("mine")
    choices.filter(has_text="SmolLM2").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("mine")
    page.get_by_label("Name", exact=True).fill("")
    expect(page.locator("#plan")).to_contain_text("Can start")
    assert not page.complaints  # type: ignore[attr-defined]


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


FLAGS = Path(__file__).parents[1] / "fakes" / "flags.json"
SIZES = {"Qwen3-8B": 16 << 30, "gemma-3-27b-it": 51 << 30}


def real_shelf() -> dict[str, Copy]:
    """Two cards, and models whose shape is known, so that plans have numbers."""
    host = gpu_shelf().host
    shapes = {"Qwen3-8B": "Qwen--Qwen3-8B", "gemma-3-27b-it": "google--gemma-3-27b-it"}
    copies = {name: builders.make_copy(host, name) for name in shapes}
    for name, shape in shapes.items():
        facts = model(shape)
        Artifact.objects.filter(model__name=name).update(facts=facts, size_bytes=SIZES[name])
    fits.freshen()
    return copies


def chosen(page: Page, name: str) -> None:
    """Choose it and wait for its own plan."""
    label = page.locator("#model-list label", has_text=name)
    if not label.locator("input").is_checked():
        with page.expect_response("**/deployments/plan"):
            label.click()
    rest(page)
    expect(page.locator("#plan")).to_have_attribute("data-fit", re.compile("numbers"))


def on_one_gpu(page: Page) -> None:
    """Say so, whatever the model needs."""
    page.locator("#expert > summary").click()
    page.locator("#f-gpu_count").fill("1")


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


MOVED = """() => {
  const range = document.querySelector('.slider input[type=range]'), seen = new MutationObserver(() => {});
  seen.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  window.sameDocument = true;
  range.value = range.max; range.dispatchEvent(new Event('input', { bubbles: true }));
  const changes = seen.takeRecords().length; seen.disconnect();
  return { changes, room: document.querySelector('[data-count=people]').textContent, widths: [...document.querySelector('#bars .bar').querySelectorAll('rect')].map(r => parseFloat(r.getAttribute('width'))) };
}"""


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
    # What the event changes is there when it returns: one task, a bounded number of changes, nobody asked.
    with page.expect_response("**/deployments/plan"):
        done = page.evaluate(MOVED)
        assert 0 < done["changes"] < 150 and not asked
    moved = done["widths"]
    assert moved[5] > before[5] and moved[:5] == pytest.approx(before[:5], abs=0.01)  # one long conversation takes more
    expect(page.get_by_role("spinbutton", name="Longest conversation")).to_have_value("40960")
    room = done["room"]
    rest(page)
    assert page.evaluate("window.sameDocument") and {url.rpartition("/")[2] for url in asked} == {"plan"}
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
    on_one_gpu(page)
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
    page.get_by_role("searchbox", name="Search settings").fill("numa")  # the search has fetched the engine's own, too
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
    on_one_gpu(page)
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


def test_the_page_opens_with_the_best_model_and_shows_few(transactional_db: None, visit: Callable[..., Page]) -> None:
    host = real_shelf()["Qwen3-8B"].host
    for n in range(7):
        builders.make_copy(host, f"Model-{n}-Instruct")
    page = visit("/deployments/new", role="operator")
    labels = page.locator("#model-list label")
    expect(labels.first.filter(has_text="gemma-3-27b-it").locator("input")).to_be_checked()
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_have_value("gemma-3-27b-it")
    expect(page.locator("#plan")).to_contain_text("Room for about")  # on two GPUs, as its badge says
    expect(page.locator("#bars .bar")).to_have_count(2)
    expect(page.locator("#model-list label:visible")).to_have_count(6)
    page.get_by_role("button", name="Show 4 more").press("Enter")
    expect(page.locator("#model-list label:visible")).to_have_count(10)
    assert page.evaluate("document.activeElement.name") == "artifact"
    assert_sound(page, "deploy-many-models")


def test_by_keyboard_alone_from_the_slider_to_the_start(transactional_db: None, visit: Callable[..., Page]) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    slider = page.get_by_role("slider", name="Longest conversation")
    tab_to(page, slider)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("spinbutton", name="Longest conversation")).not_to_have_value("")
    length = int(page.get_by_role("spinbutton", name="Longest conversation").input_value())
    tab_to(page, page.locator("#exact > summary"))  # the middle of the plan scrolls to what has the focus
    page.keyboard.press("Enter")
    expect(page.locator("#cmd")).to_contain_text(f"--max-model-len {length}")
    tab_to(page, page.locator("#act-deploy"))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("qwen3-8b")
    assert Deployment.objects.get(name="qwen3-8b").revision.spec["options"] == {"max_model_len": length}


END_SEEN = """() => {
  const box = document.querySelector('#cmd').getBoundingClientRect();
  const there = document.elementFromPoint(box.left + 24, box.bottom - 14);
  return !!there && !!there.closest('#cmd') && box.bottom <= innerHeight;
}"""


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (1280, 560), (820, 900), (390, 844)])
def test_nothing_lies_on_the_end_of_the_exact_command(
    transactional_db: None, visit: Callable[..., Page], width: int, height: int
) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator", width=width)
    page.set_viewport_size({"width": width, "height": height})
    chosen(page, "Qwen3-8B")
    page.locator("#parts > summary").click()
    page.locator("#exact > summary").click()
    expect(page.locator("#cmd")).to_be_visible()
    page.evaluate("document.querySelector('#cmd').scrollIntoView({ block: 'end' })")
    assert page.evaluate(END_SEEN), f"the end of the command is covered at {width} × {height}"
    if (width, height) == (1280, 900):
        expect(page.locator("#act-deploy")).to_be_in_viewport()  # and the buttons stay in sight


def test_each_setting_says_its_effect_beside_it(transactional_db: None, visit: Callable[..., Page]) -> None:
    real_shelf()
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    page.locator("#expert > summary").press("Enter")
    page.locator("#settings-memory > summary").press("Enter")
    effect = page.locator("#o-kv_cache_dtype-effect")
    expect(effect).to_contain_text(re.compile(r"fp8 instead of auto: room for about [\d,]+ instead of [\d,]+"))
    expect(page.locator("[data-effect=gpu_memory_utilization]")).to_contain_text("Each 0.01 is about")
    page.get_by_label("Precision of the KV cache").select_option("fp8")
    expect(effect).to_contain_text("auto instead of fp8")
    expect(page.locator("[data-effect=seed]")).to_have_text("No effect on memory.")
    page.locator("#f-max_num_seqs").fill("-1")  # no plan: the plain word comes back
    expect(effect).to_have_text("Changes how much the KV cache holds.")
    page.locator("#f-max_num_seqs").fill("")
    expect(effect).to_contain_text("auto instead of fp8")
    assert_sound(page, "deploy-effects")
    page.set_viewport_size({"width": 390, "height": 900})
    assert_sound(page, "deploy-effects.390")


def test_what_can_only_fail_is_refused_without_scripts_too(
    transactional_db: None, visit: Callable[..., Page], browser: Browser
) -> None:
    real_shelf()
    first = visit("/deployments/new", role="operator")
    state, web = first.context.storage_state(), first.url.partition("/deployments")[0]
    context = browser.new_context(base_url=web, java_script_enabled=False, storage_state=state, locale="en-GB")
    page = context.new_page()
    page.goto("/deployments/new")
    on_one_gpu(page)
    page.get_by_label("gemma-3-27b-it").check()
    page.get_by_role("textbox", name="Name", exact=True).fill("no-scripts")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(page.locator("#plan")).to_contain_text("What would help")
    expect(page.locator("#act-deploy")).to_be_disabled()
    assert not Deployment.objects.exists()
    context.close()


@pytest.mark.parametrize("where", ["answers", "compare", "run"])
def test_tables_of_measured_values_need_no_scrolling_on_a_phone(
    transactional_db: None, visit: Callable[..., Page], where: str
) -> None:
    row = tuned()
    paths = {"answers": "answers", "compare": "settings/compare"}
    path = f"/deployments/{row.pk}/{paths[where]}" if where in paths else f"/runs/{row.run_id}/"
    page = visit(path, width=390)
    wide = (
        "[...document.querySelectorAll('.scroll-x:has(.cards)')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert page.locator(".scroll-x:has(.cards)").count() and page.evaluate(wide) == 0
    assert_sound(page, f"{where}.390")


def test_one_of_very_many_models_is_found_by_its_name_and_the_choice_stays(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    some = Copy.objects.first()
    assert some is not None
    models = CatalogModel.objects.bulk_create(CatalogModel(name=f"team/many-{n:03d}") for n in range(60))
    more = Artifact.objects.bulk_create(
        Artifact(model=one, format="hf", label="bf16", fingerprint=one.name, facts=some.artifact.facts, size_bytes=1)
        for one in models
    )
    Copy.objects.bulk_create(Copy(artifact=one, host=some.host, path=f"/m/{one.fingerprint}") for one in more)
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    expect(page.locator("#model-list label", has_text="team/many-059")).to_have_count(0)
    page.get_by_role("searchbox", name=re.compile("Search .* models")).fill("many-059")
    found = page.locator("#model-list label", has_text="team/many-059")
    expect(found).to_be_visible()
    expect(page.locator("#model-list input:checked")).to_have_count(1)  # what was chosen still is, though out of sight
    found.click()
    expect(page.locator("#model-list input:checked")).to_have_value(str(more[59].pk))
    expect(page.locator("#f-name")).to_have_value("many-059")


def test_a_search_reaches_every_setting_at_its_first_letters(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    real_shelf()
    Runtime.objects.update(flags=json.loads(FLAGS.read_text()))
    page = visit("/deployments/new", role="operator")
    chosen(page, "Qwen3-8B")
    page.locator("#expert > summary").click()
    search = page.get_by_role("searchbox", name="Search settings")
    assert page.locator("#rest-rows .setting").count() == 0
    search.press_sequentially("numa-bind-n")
    found = page.locator("#settings .setting:visible")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("--numa-bind-nodes")
    expect(search).to_be_focused()
    expect(search).to_have_value("numa-bind-n")
    search.fill("no such setting")
    expect(found).to_have_count(0)
    expect(page.locator("#settings-none")).to_be_visible()
    assert not page.complaints  # type: ignore[attr-defined]
