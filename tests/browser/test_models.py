"""The shelf by keyboard alone, what it says while it is narrowed, and the way from a damaged file to its download."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from models_catalog.downloads.models import Download
from models_catalog.models import Copy
from panel.audit.models import Event
from tests.browser import cases_models
from tests.browser.checks import rest, tab_to, until


def test_the_list_is_narrowed_by_keyboard(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_models.models())
    rows = page.locator("#catalog tbody tr")
    every = rows.count()
    tab_to(page, page.locator("#q"))
    page.keyboard.type("smol")
    until(page, "document.querySelectorAll('#catalog tbody tr').length === 1")
    until(page, "document.querySelector('#announce').textContent.includes('1 model found')")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    until(page, f"document.querySelectorAll('#catalog tbody tr').length === {every}")
    tab_to(page, page.get_by_role("combobox", name="Order"))
    tab_to(page, page.get_by_role("radio", name="All", exact=True))
    page.keyboard.press("ArrowRight")  # Fits
    page.keyboard.press("ArrowRight")  # Whole
    expect(page.get_by_role("radio", name="Whole")).to_be_checked()
    until(page, "!document.querySelector('#catalog').textContent.includes('Not usable')")
    tab_to(page, page.locator("#more-filters > summary"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("combobox", name="Tag"))
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelectorAll('#catalog tbody tr').length === 1")
    rest(page)
    assert page.evaluate("document.activeElement.name") == "tag", "the focus stays where the person is"
    tab_to(page, page.locator("#catalog tbody th a"))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("SmolLM2-135M-Instruct")


def test_nothing_found_leads_back(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_models.models_nothing_matches())
    page.get_by_role("link", name="Show all models").click()
    expect(page.locator("#catalog tbody tr").first).to_be_visible()


def test_a_last_copy_is_deleted_by_keyboard(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_models.last_copy())
    button = page.get_by_role("button", name="Delete the files")
    tab_to(page, button)
    page.keyboard.press("Enter")  # the browser itself asks for the box first
    assert not Event.objects.filter(verb="model.delete_asked").exists()
    tab_to(page, page.get_by_role("checkbox", name="Delete it all the same"), key="Shift+Tab")
    page.keyboard.press("Space")
    tab_to(page, button)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Being deleted", exact=True)).to_be_visible()
    assert Copy.objects.get().delete_job is not None


def test_from_a_damaged_file_to_the_download_that_mends_it(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(cases_models.damaged(), role="operator")
    model = page.url
    page.get_by_role("button", name="Download 1 of 4 weight files again").click()
    page.wait_for_url("**/models/downloads/**")
    assert str(Download.objects.get().pk) in page.url
    expect(page.get_by_text("being downloaded again to atlas")).to_be_visible()
    assert Download.objects.get().state in ("waiting", "running") and Download.objects.get().replace
    page.goto(model)
    page.get_by_role("link", name="See the download that mends it").click()
    page.wait_for_url("**/models/downloads/**")
