"""The page of a failed start in a browser: the way to the root line of a huge log, and the answer in place."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from deployments.models import Failure
from tests.browser.cases_failures import failed_start
from tests.browser.checks import until
from tests.browser.deployment_rows import gpu_deployment, page_of

ROOT = b"ValueError: User-specified max_model_len (204800) is greater than the derived max_model_len (4096).\n"
ECHO = b"RuntimeError: Engine core initialization failed. See root cause above.\n"


def in_sight(page: Page, line: int) -> bool:
    """Whether the line is seen: inside its own scrolling box and inside the window."""
    return page.evaluate(
        "id => { const el = document.getElementById(id); if (!el) return false;"
        "const at = el.getBoundingClientRect(), box = el.closest('.log').getBoundingClientRect();"
        "return at.top >= box.top - 1 && at.top < box.bottom && at.top >= 0 && at.top < innerHeight }",
        f"log-L{line}",
    )


def test_the_proof_leads_to_its_line_in_a_huge_log(transactional_db: None, visit: Callable[..., Page]) -> None:
    row, copy = gpu_deployment("failed")
    filler = b"".join(b"INFO 11-30 14:02:09 [x.py:1] a line of a long log, number %d\n" % n for n in range(60_000))
    failed_start(row, copy, filler + ROOT + ECHO + filler)  # 7 MiB, the cause in the middle
    page = visit(page_of(row), role="operator")
    until(page, "document.querySelector('#log-L60001.root') !== null")
    assert "User-specified max_model_len" in (page.locator("#log-L60001").text_content() or "")
    expect(page.locator("#log-L60001 .tag")).to_have_text("root cause")
    expect(page.locator("#log-L60002 .tag")).to_have_text("follows from line 60,001")
    assert page.locator("#log .ln").count() < 4000, "the page takes a part of it"
    expect(page.locator("#log")).to_contain_text("number 59999", use_inner_text=False)  # and its end
    page.get_by_role("link", name="Line 60,001 of the log").click()
    until(page, "location.hash === '#log-L60001'")
    assert in_sight(page, 60_001)
    page.locator("#log").evaluate("el => { el.scrollTop = 0 }")
    page.get_by_role("button", name="Root cause").click()
    assert in_sight(page, 60_001)
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_link_from_elsewhere_opens_at_the_line(transactional_db: None, visit: Callable[..., Page]) -> None:
    row, copy = gpu_deployment("failed")
    run = failed_start(row, copy, b"INFO a line\n" * 400 + ROOT + b"INFO after\n" * 40)
    page = visit(f"/runs/{run.pk}/#log-L401", role="viewer")
    until(page, "document.querySelector('#log-L401.root') !== null")
    assert in_sight(page, 401)


def test_the_log_begins_at_the_root_line_on_a_phone(transactional_db: None, visit: Callable[..., Page]) -> None:
    row, copy = gpu_deployment("failed")
    long = b"INFO 11-30 14:02:09 args: " + b"an_option=value, " * 80 + b"\n"
    failed_start(row, copy, long * 30 + ROOT + ECHO)
    page = visit(page_of(row), role="viewer", width=390)
    until(page, "document.querySelector('#log-L31.root') !== null")
    until(
        page,
        "(() => { const at = document.querySelector('#log-L31').getBoundingClientRect(),"
        "box = document.querySelector('#log').getBoundingClientRect();"
        "return at.top >= box.top && at.top < box.bottom })()",
    )


def test_was_this_right_is_answered_in_place(transactional_db: None, visit: Callable[..., Page]) -> None:
    row, copy = gpu_deployment("failed")
    failed_start(row, copy, b"INFO a line\n" * 3 + ROOT)
    page = visit(page_of(row), role="operator")
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text("operator-person says that it was not right.")
    note = page.get_by_role("textbox", name="What it really was")
    note.fill("The disk was full.")
    note.press("Enter")
    expect(page.locator("#verdict-said")).to_contain_text("“The disk was full.”")
    expect(page.locator("#announce")).to_have_text("Kept")
    assert Failure.objects.get().note == "The disk was full."
    page.get_by_role("button", name="Take this back").click()
    expect(page.locator("#verdict-said")).to_have_count(0)
    assert Failure.objects.get().right is None and not page.complaints  # type: ignore[attr-defined]
