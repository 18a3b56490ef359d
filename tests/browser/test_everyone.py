"""For everyone: no movement for those who asked for none, one voice for screen readers, one page on paper."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.cases import all_cases
from tests.browser.checks import SHOTS, shoot, until

CASES = {case.name: case for case in all_cases()}
MOVING = "getComputedStyle(document.querySelector('.spin')).animationName"


def named(*parts: str) -> str:
    """The first listed page whose name holds one of the words."""
    return next(name for name in CASES if any(part in name for part in parts))


def test_nothing_moves_for_people_who_asked_for_that(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(CASES[named("starting", "loading", "weights")].make(), role="operator")
    expect(page.locator(".spin").first).to_be_attached()
    assert page.evaluate(MOVING) == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVING) == "spin", "the test would see movement"


def test_what_changes_at_the_same_time_is_said_once_and_together(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    page = visit(CASES["activity"].make())
    page.evaluate(
        """() => { window.heard = [];
          new MutationObserver(() => heard.push(document.querySelector('#announce').textContent))
            .observe(document.querySelector('#announce'), { childList: true, characterData: true, subtree: true });
          for (const [id, text] of [['a', 'first'], ['b', 'second']]) {
            const el = document.createElement('span'); el.id = id; el.dataset.say = text; document.body.append(el) } }"""
    )
    settled = "document.dispatchEvent(new CustomEvent('htmx:afterSettle'))"
    page.evaluate(settled)
    page.evaluate(settled)
    page.evaluate("document.querySelector('#b').dataset.say = 'third'")
    page.evaluate(settled)
    page.evaluate(settled)
    assert page.evaluate("heard") == ["first. second", "third"]


def test_filters_of_the_record_say_how_much_they_found(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit(CASES["activity"].make())
    page.get_by_label("Outcome").select_option("failed")
    until(page, "/entr/.test(document.querySelector('#announce').textContent)")
    assert page.locator("#announce").text_content() == page.locator("#amount").get_attribute("data-say")


@pytest.mark.parametrize("name", ["activity", "deployment-ready"])
def test_a_page_on_paper(transactional_db: None, visit: Callable[..., Page], name: str) -> None:
    page = visit(CASES[name].make(), dark=True)
    SHOTS.mkdir(parents=True, exist_ok=True)
    file = SHOTS.parent / f"{name}.pdf"
    page.pdf(path=file, format="A4")
    assert file.stat().st_size > 5_000
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1020})
    shoot(page, f"{name}.print")
