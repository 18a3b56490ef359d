"""What a person sees while things move, in a real browser on a whole Berth with a fake engine."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from deployments import services
from deployments.models import Deployment
from panel.accounts.models import User
from panel.audit.models import Event
from tests.browser import checks
from tests.browser.conftest import browser  # noqa: F401  # a fixture
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


@pytest.fixture(scope="module", autouse=True)
def models(stack: Stack) -> None:
    make_fake_model(stack.models / "quick", phase_s=0.05)
    make_fake_model(stack.models / "slow", phase_s=1.0)
    make_fake_model(stack.models / "breaks", mode="traceback", phase_s=0.3)
    stack.scan()


@pytest.fixture
def open_page(stack: Stack, browser: Browser) -> Iterator[Callable[..., Page]]:  # noqa: F811
    """open_page("/", "operator") → the page, as a person of that role in a browser of their own."""
    from django.test import Client

    contexts: list[BrowserContext] = []

    def go(path: str, role: str = "operator") -> Page:
        user, _made = User.objects.get_or_create(username=f"{role}-person", defaults={"role": role})
        client = Client()
        client.force_login(user)
        context = browser.new_context(base_url=stack.url, locale="en-GB", reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        cookies = [{"name": name, "value": m.value, "url": stack.url} for name, m in client.cookies.items()]
        context.add_cookies(cookies)  # type: ignore[arg-type]  # plain dicts of the same keys
        page = context.new_page()
        page.complaints = checks.watch(page, stack.url)  # type: ignore[attr-defined]  # rides along with the page
        page.goto(path)
        checks.rest(page)
        return page

    yield go
    for context in contexts:
        context.close()


def address(row: Deployment) -> str:
    return f"/deployments/{row.pk}/"


def complaints(page: Page) -> list[str]:
    """A newer plan ends the question of the one before it, and htmx tells the console; that is meant."""
    return [c for c in page.complaints if "abort" not in c.lower() and "afterRequest" not in c]  # type: ignore[attr-defined]


def badge(page: Page, word: str) -> None:
    expect(page.locator("#state")).to_have_text(word, timeout=WAIT_MS)


def at_rest(stack: Stack, row: Deployment) -> None:
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_deploy_from_the_form_and_watch_it_become_ready(stack: Stack, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/deployments/new?artifact={stack.artifact('slow').pk}")
    page.get_by_label("Name", exact=True).fill("watched")
    page.locator("#expert > summary").click()
    page.get_by_label("KV cache on the CPU, GiB").fill("1")
    expect(page.locator("#plan")).to_contain_text("Can start")
    fetched: list[str] = []
    page.on("request", lambda sent: fetched.append(sent.url) if "/log?" in sent.url else None)
    page.get_by_role("button", name="Deploy").click()
    badge(page, "Starting")
    line = page.locator("#log .ln:visible")
    checks.until(page, "document.querySelectorAll('#log .ln').length >= 3", WAIT_MS)
    checks.until(page, "document.querySelectorAll('#log .ln').length >= 12", WAIT_MS)
    assert len(fetched) <= 4, f"lines were fetched one by one, not sent: {fetched}"
    # search while it grows
    search = page.get_by_role("searchbox", name="Search in the log")
    search.fill("architecture")
    expect(line.first).to_contain_text("architecture")
    expect(line.filter(has_not_text=re.compile("architecture", re.I))).to_have_count(0)
    search.fill("no such words")
    expect(page.get_by_text("No such line.")).to_be_visible()
    # the page of the next state comes by itself
    expect(page.get_by_role("heading", name="Use it")).to_be_visible(timeout=WAIT_MS)
    badge(page, "Ready")
    expect(page.locator("#answer")).to_contain_text("Paris")
    page.get_by_label("Your message").fill("Where?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat .msg")).to_have_count(4)
    expect(page.get_by_label("Your message")).to_have_value("")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it").click()
    expect(page.get_by_role("heading", name="It is stopped. Its memory is free.")).to_be_visible(timeout=WAIT_MS)
    assert complaints(page) == []


def test_from_the_home_page_to_a_running_engine_in_at_most_six_presses(
    stack: Stack, open_page: Callable[..., Page]
) -> None:
    """The whole way, to a process that answers: nothing is typed, no flag is set."""
    page = open_page("/")
    count = "addEventListener('pointerdown', () => { sessionStorage.clicks = +(sessionStorage.clicks || 0) + 1 }, true)"
    page.evaluate(f"() => {count}")
    page.context.add_init_script(count)
    page.get_by_role("link", name="Deploy a model").first.click()
    model = page.locator("#model-list label", has_text="quick")
    if not model.locator("input").is_checked():
        model.click()
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("heading", name="Use it")).to_be_visible(timeout=WAIT_MS)
    badge(page, "Ready")
    expect(page.locator("#answer")).to_contain_text("Paris")
    assert int(page.evaluate("sessionStorage.clicks")) <= 6
    row = Deployment.objects.get(pk=int(page.url.rstrip("/").rpartition("/")[2]))
    assert row.run is not None and row.run.ready_at and row.revision is not None
    spec = row.revision.spec
    assert (spec["extra_args"], spec["options"], spec["env"]) == ([], {}, {})
    at_rest(stack, row)


def test_a_crash_while_starting_becomes_the_failed_page(stack: Stack, open_page: Callable[..., Page]) -> None:
    row = stack.deploy("breaks", "breaks", restart={"policy": "never"})
    page = open_page(address(row))
    badge(page, "Failed")
    expect(page.get_by_role("heading", name="No memory is left for requests")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Exit code 1.")
    expect(page.locator("pre.rootline")).to_contain_text("ValueError: No available memory")
    page.locator("#log .ln").first.wait_for()
    everything = page.locator("#log .ln:visible").count()
    page.locator("label", has_text="Errors").click()
    expect(page.locator("#log .ln[data-kind=info]:visible")).to_have_count(0)
    assert 0 < page.locator("#log .ln:visible").count() < everything
    assert complaints(page) == []


def test_death_when_ready_becomes_the_failed_page(stack: Stack, open_page: Callable[..., Page]) -> None:
    row = stack.deploy("dies", "quick", restart={"policy": "never"})
    stack.wait_for(row, "ready")
    page = open_page(address(row))
    psutil.Process(row.run.job.status["pid"]).kill()
    badge(page, "Failed")
    expect(page.get_by_role("heading", name="The engine was ended by SIGKILL.")).to_be_visible()
    page.get_by_role("button", name="Start again unchanged").click()
    badge(page, "Ready")
    at_rest(stack, row)


def test_a_hidden_tab_rests_and_knows_everything_when_seen_again(stack: Stack, open_page: Callable[..., Page]) -> None:
    row = stack.deploy("hidden", "quick")
    stack.wait_for(row, "ready")
    page = open_page(address(row))
    badge(page, "Ready")
    hide(page, True)
    checks.until(page, "document.documentElement.dataset.stream === 'off'", WAIT_MS)
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    at_rest(stack, row)
    page.wait_for_timeout(1500)
    assert asked == [], "a hidden tab asks for nothing"
    badge(page, "Ready")
    hide(page, False)
    badge(page, "Stopped")


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange')) }",
        hidden,
    )


def test_two_people_see_the_same_and_only_one_may_act(stack: Stack, open_page: Callable[..., Page]) -> None:
    row = stack.deploy("shared", "quick")
    stack.wait_for(row, "ready")
    pages: dict[str, Any] = {
        "operator": open_page(address(row)),
        "viewer": open_page(address(row), "viewer"),
        "list": open_page("/", "viewer"),
    }
    expect(pages["viewer"].get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(pages["viewer"].get_by_role("button", name="Send")).to_have_count(1)
    expect(pages["list"].locator(f"#state-{row.pk}")).to_have_text("Ready")
    pages["operator"].get_by_role("button", name="Stop", exact=True).click()
    pages["operator"].get_by_role("button", name="Stop it").click()
    badge(pages["viewer"], "Stopped")
    expect(pages["viewer"].locator("main")).to_contain_text("stopped by operator-person")
    expect(pages["list"].locator(f"#state-{row.pk}")).to_have_text("Stopped")
    badge(pages["operator"], "Stopped")
    assert [complaints(page) for page in pages.values()] == [[], [], []]


def test_a_double_click_makes_one_deployment(stack: Stack, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/deployments/new?artifact={stack.artifact('quick').pk}")
    page.get_by_label("Name", exact=True).fill("pressed-twice")
    page.locator("#expert > summary").click()
    page.get_by_label("KV cache on the CPU, GiB").fill("1")
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.get_by_role("button", name="Deploy").dblclick()
    expect(page.get_by_role("heading", level=1, name="pressed-twice")).to_be_visible()
    row = Deployment.objects.get(name="pressed-twice")  # and not two
    made = Event.objects.filter(verb="deployment.created", target_id=str(row.pk))
    assert made.count() == 1
    stack.wait_for(row, "ready")
    assert row.runs.count() == 1
    at_rest(stack, row)
