"""What every page must keep: no complaint of axe or of the browser, no overflow, nothing from another address."""

import time
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Error, Locator, Page, Request

SHOTS = Path(__file__).resolve().parents[2] / "test-output" / "screenshots"
AXE = Axe()
# A newer question ends the one before it (hx-sync), and htmx tells the console; a refused or lost one says other words.
SUPERSEDED = ("htmx:sendAbort", "htmx:afterRequest")


def watch(page: Page, base: str) -> list[str]:
    """Collect errors of the console (refused by the CSP, say), of scripts, and requests to other addresses."""
    complaints: list[str] = []

    def console(message: ConsoleMessage) -> None:
        aborted = message.text.startswith(SUPERSEDED)
        if message.type == "error" and not aborted and "/healthz" not in message.location.get("url", ""):
            complaints.append(f"console: {message.text}")

    def request(sent: Request) -> None:
        if not sent.url.startswith((base, "data:", "blob:")):
            complaints.append(f"request to {sent.url}")

    page.on("console", console)
    page.on("pageerror", lambda error: complaints.append(f"script: {error}"))
    page.on("request", request)
    return complaints


def rest(page: Page, timeout_ms: float = 10_000) -> None:
    """Wait until the page has loaded, its stream is connected (if it has one), and htmx has nothing under way."""
    page.wait_for_load_state("load")
    until(
        page,
        "(!document.querySelector('[data-live]') || document.documentElement.dataset.stream === 'on')"
        " && !document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling, .htmx-added')",
        timeout_ms,
    )


def until(page: Page, script: str, timeout_ms: float = 10_000) -> None:
    """Wait until a script is true. Not Playwright's own wait, which needs the eval that our policy forbids."""
    end = time.monotonic() + timeout_ms / 1000
    while not _is_true(page, script):
        assert time.monotonic() < end, f"never came true: {script}"
        page.wait_for_timeout(30)


def _is_true(page: Page, script: str) -> bool:
    try:
        return bool(page.evaluate(script))
    except Error as exc:
        if "navigation" not in str(exc):
            raise
        return False  # a page that changes by itself: its next one is being loaded


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page, for people: test-output/screenshots/<name>.png."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def violations(page: Page) -> list[str]:
    """axe-core's findings (WCAG 2.2 A and AA, and best practice), one line each."""
    if page.evaluate("typeof window.axe") == "undefined":  # half a megabyte: once per page, not once per look
        page.evaluate(AXE.axe_script)
    found: dict[str, Any] = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{v['id']} ({v['impact']}): {v['help']}: {node['html'][:200]}"
        for v in found["violations"]
        for node in v["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """Elements that make the page wider than its window; regions that scroll by themselves are meant."""
    return page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > wide + 1
            && !e.closest('.scroll-x, .log, pre, .vh, .defs')).slice(0, 8).map(e => e.outerHTML.slice(0, 160));
        }"""
    ) or (["the page is wider than its window"] if _wider(page) else [])


def _wider(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


SEEN_FOCUS = """() => {
  const at = document.activeElement;
  if (!at || at === document.body || at === document.documentElement) return null;
  const box = at.getBoundingClientRect(), label = at.closest('label');
  const marked = [at, label].some(el => {
    const style = el && getComputedStyle(el);
    return style && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1.5;
  });
  const around = label ? label.getBoundingClientRect() : box;
  const seen = around.bottom > 0 && around.top < innerHeight && around.right > 0 && around.left < innerWidth;
  return { marked, seen, html: at.outerHTML.slice(0, 120) };
}"""


def tab_to(page: Page, goal: Locator, most: int = 80, key: str = "Tab") -> None:
    """Press Tab until the focus is at `goal`; at every stop it must be seen where the focus is."""
    for _ in range(most):
        page.keyboard.press(key)
        try:
            stop = page.evaluate(SEEN_FOCUS)
            there = goal.count() > 0 and goal.first.evaluate("el => el === document.activeElement")
        except Error as exc:
            if "navigation" not in str(exc):
                raise
            rest(page)  # the page of the next state came by itself
            continue
        if stop is None:
            continue  # the end of the page: the browser's own bar
        assert stop["marked"], f"the focus is not seen at {stop['html']}"
        assert stop["seen"], f"the focus is outside the window at {stop['html']}"
        if there:
            return
    raise AssertionError(f"the keyboard never came to {goal}")


def assert_printable(page: Page, name: str) -> None:
    """On paper: black on white in every theme, nothing wider than the sheet, no menu and no buttons."""
    page.emulate_media(media="print")
    found: dict[str, Any] = page.evaluate(
        """() => ({
          back: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
          shown: [...document.querySelectorAll('.side, .btn, .skip, .filters')].filter(e => e.offsetParent).length })"""
    )
    wide = overflow(page)
    page.emulate_media(media="screen")
    assert found == {"back": "rgb(255, 255, 255)", "ink": "rgb(0, 0, 0)", "shown": 0}, f"{name} in print: {found}"
    assert not wide, f"{name} in print is too wide:\n" + "\n".join(wide)


def assert_sound(page: Page, name: str) -> None:
    """Everything at once, also with every <details> open; a picture is kept first."""
    shoot(page, name)
    assert not (found := violations(page)), f"{name}: " + "\n".join(found)
    assert not (wide := overflow(page)), f"{name} is too wide:\n" + "\n".join(wide)
    broken = page.evaluate(
        "[...document.querySelectorAll('.nowrap')].filter(e => getComputedStyle(e).whiteSpace !== 'nowrap')"
        ".map(e => e.outerHTML.slice(0, 200))"
    )
    assert not broken, f"{name}: these should stay on one line:\n" + "\n".join(broken)
    if page.locator("details:not([open])").count():
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.dataset.shut = !d.open; d.open = true })")
        assert not (found := violations(page)), f"{name}, details open: " + "\n".join(found)
        assert not (wide := overflow(page)), f"{name}, details open, is too wide:\n" + "\n".join(wide)
        page.evaluate("document.querySelectorAll('details[data-shut=true]').forEach(d => d.open = false)")
    assert not page.complaints, f"{name}: {page.complaints}"  # type: ignore[attr-defined]
