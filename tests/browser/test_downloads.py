"""From a search to a download and through its life, by keyboard alone; what comes meanwhile is shown and said."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from models_catalog.downloads.models import Download
from models_catalog.models import Copy
from tests.browser import cases_downloads
from tests.browser.checks import tab_to, until
from tests.deployments import builders


def test_find_choose_and_download_by_keyboard(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_downloads.download_find(), role="operator")
    tab_to(page, page.locator("#q"))
    page.keyboard.type("gguf")
    page.keyboard.press("Enter")
    found = page.get_by_role("link", name="acme/Tiny-1B-Instruct-GGUF")
    expect(found).to_be_visible()
    tab_to(page, found)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("acme/Tiny-1B-Instruct-GGUF")
    tab_to(page, page.get_by_role("radio", name="Q4_K_M"))
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="Q8_0")).to_be_checked()
    tab_to(page, page.get_by_role("spinbutton", name="Not faster than, MiB/s"))
    page.keyboard.type("2.5")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Waiting for the host")
    row = Download.objects.get()
    assert (row.label, row.limit_mib_s, row.folder) == ("Q8_0", 2.5, "/srv/models")


def test_a_download_is_cancelled_by_keyboard_after_a_question(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    page = visit(cases_downloads.download_paused(), role="operator")
    tab_to(page, page.get_by_role("button", name="Cancel", exact=True))
    page.keyboard.press("Enter")
    question = page.get_by_role("heading", name="Cancel the download of acme/Tiny-1B-Instruct?")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert Download.objects.get().state == "paused"
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Cancel it"))
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Cancelled")
    expect(page.locator("#lead")).to_contain_text("Cancelled by operator-person")


def test_what_ended_is_narrowed_by_keyboard(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_downloads.downloads())
    tab_to(page, page.get_by_role("radio", name="All", exact=True))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("acme/Seventh-7B")).to_have_count(0)
    expect(page.get_by_role("radio", name="Failed")).to_be_checked()
    expect(page.get_by_text("The disk of /srv/models")).to_be_visible()
    assert page.evaluate("document.activeElement.id") == "show-failed", "the focus stays where the person is"


def test_the_page_of_a_download_that_is_done_says_when_the_model_is_there(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    page = visit(cases_downloads.download_done(), role="operator")
    expect(page.locator("#arriving")).to_contain_text("shows up here in a moment")
    row = Download.objects.get()
    cases_downloads.vllm(row.host)
    copy: Copy = builders.make_copy(row.host)
    Download.objects.update(made=[copy.path])
    expect(page.get_by_role("link", name="Deploy", exact=True)).to_be_visible(timeout=15_000)
    until(page, "document.querySelector('#announce').textContent.includes('is in the catalog')")
    page.get_by_role("link", name="Deploy", exact=True).click()
    page.wait_for_url(f"**/deployments/new?artifact={copy.artifact_id}")
