"""The whole main job without a mouse: sign in, pick a model, deploy it, watch it start, stop it. Tab, Enter, Space, arrows
and Escape only; wherever the focus is, it is seen. What changes is said once, for people who listen."""

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from playwright.sync_api import Browser, Page, expect

from panel.accounts.models import User
from tests.browser import checks
from tests.browser.checks import tab_to
from tests.browser.conftest import browser  # noqa: F401  # a fixture
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
PASSWORD = "harbour lights at nine"
# Keeps what was said, over all pages of the way.
LISTEN = """addEventListener('DOMContentLoaded', () => {
  const voice = document.querySelector('#announce');
  if (voice) new MutationObserver(() => {
    const heard = JSON.parse(sessionStorage.heard || '[]');
    sessionStorage.heard = JSON.stringify([...heard, voice.textContent]);
  }).observe(voice, { childList: true, characterData: true, subtree: true });
})"""


@pytest.fixture
def page(stack: Stack, browser: Browser) -> Iterator[Page]:  # noqa: F811
    make_fake_model(stack.models / "first", phase_s=0.05)
    make_fake_model(stack.models / "second", phase_s=1.0)
    stack.scan()
    hasher = Argon2PasswordHasher()  # tests have a faster one, which the running panel does not know
    User.objects.create(username="ada", password=hasher.encode(PASSWORD, hasher.salt()), role="operator")
    context = browser.new_context(base_url=stack.url, locale="en-GB", reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(LISTEN)
    yield context.new_page()
    context.close()


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_the_main_job_without_a_mouse(stack: Stack, page: Page) -> None:
    page.goto("/")
    # sign in; the field for the name has the focus or is reached
    name = page.locator("input[name=username], input[name=name]").first
    if not name.evaluate("el => el === document.activeElement"):
        tab_to(page, name)
    page.keyboard.type("ada")
    tab_to(page, page.locator("input[type=password]"))
    page.keyboard.type(PASSWORD)
    press(page, "Enter")
    expect(page).not_to_have_url(re.compile("/login"), timeout=WAIT_MS)
    checks.rest(page)
    # pick a model
    tab_to(page, page.locator("main a[href*='/deployments/new']"))
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    checks.rest(page)
    choices = page.locator("#model-list input[type=radio]")
    tab_to(page, choices.first)
    press(page, "Space", "ArrowDown")
    second = page.locator("#model-list label", has_text="second").locator("input")
    if not second.is_checked():
        press(page, "ArrowUp")
    expect(second).to_be_checked()
    tab_to(page, page.get_by_label("Name", exact=True))
    press(page, "Control+a")
    page.keyboard.type("by-keys")
    tab_to(page, page.locator("#expert > summary"))
    press(page, "Enter")
    tab_to(page, page.get_by_label("KV cache on the CPU, GiB"))
    press(page, "Control+a")
    page.keyboard.type("1")
    expect(page.locator("#plan")).to_contain_text("Can start")
    # deploy
    tab_to(page, page.get_by_role("button", name="Deploy"))
    press(page, "Enter")
    expect(page.locator("#state")).to_be_visible()
    # watch: the log can be reached and scrolled, and the page of the next state comes by itself
    expect(page.locator("#log")).to_be_visible(timeout=WAIT_MS)  # the engine is asked about the settings first
    tab_to(page, page.locator("#log"))
    press(page, "ArrowDown")
    expect(page.get_by_role("heading", name="Use it")).to_be_visible(timeout=WAIT_MS)
    checks.rest(page)
    # stop, first asked and left, then for good
    stop = page.get_by_role("button", name="Stop", exact=True)
    tab_to(page, stop)
    press(page, "Enter")
    expect(page.get_by_role("button", name="Leave as it is").first).to_be_focused()
    press(page, "Escape")
    expect(page.get_by_role("button", name="Stop it")).to_be_hidden()
    expect(stop).to_be_focused()
    press(page, "Enter")
    tab_to(page, page.get_by_role("button", name="Stop it"))
    press(page, "Space")
    expect(page.get_by_role("heading", name="It is stopped. Its memory is free.")).to_be_visible(timeout=WAIT_MS)

    heard = page.evaluate("JSON.parse(sessionStorage.heard || '[]')")
    assert any("weights" in text.lower() for text in heard), f"the steps of the start were not said: {heard}"
    assert not [text for text, after in pairwise(heard) if text == after], f"something was said twice: {heard}"
    assert len(heard) < 40, "a start is told step by step, not line by line"
